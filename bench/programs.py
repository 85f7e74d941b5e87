"""Starting the programs that are measured, each pinned to one core, and reading what they cost from /proc."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY = "breakloop ready on "
_TICKS = os.sysconf("SC_CLK_TCK")
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
_NGINX = """\
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr crit;
events { worker_connections 1024; }
http {
    access_log off;
    keepalive_timeout 600s;
    keepalive_requests 1000000000;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {
        listen 127.0.0.1:%d;
        location / { return 204; }
    }
}
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A running program: its process and the port it answers on."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        """User and system time of the whole process tree so far."""
        return sum(_cpu_s(pid) for pid in _tree(self.pid))


@contextmanager
def nginx(folder: Path, core: int) -> Iterator[Program]:
    """nginx with one worker that answers 204 to everything."""
    path = shutil.which("nginx", path=os.environ.get("PATH", "") + os.pathsep + _SBIN)
    if path is None:
        raise SystemExit("bench: nginx is not installed; `sh scripts/install-system.sh nginx` installs it")
    folder.mkdir()
    port = _free_port()
    (folder / "nginx.conf").write_text(_NGINX % port)
    command = ["taskset", "-c", str(core), path, "-p", str(folder), "-c", "nginx.conf"]
    with _running(command, {}) as process:
        _wait_for(port, process)
        yield Program(process.pid, port)


@contextmanager
def breakloop(folder: Path, core: int, policy: dict[str, Any], env: dict[str, str]) -> Iterator[Program]:
    """The real command, with a policy, as anybody would start it."""
    folder.mkdir()
    file = folder / "policy.json"
    file.write_text(json.dumps(policy))
    command = ["taskset", "-c", str(core), *serve_command(file, folder / "data")]
    with _running(command, env, stdout=subprocess.PIPE) as process:
        yield Program(process.pid, _announced_port(process))


def serve_command(policy: Path, data_dir: Path) -> list[str]:
    """How the decision service is started."""
    flags = ["--mode", "decision", "--port", "0", "--policy", str(policy), "--data-dir", str(data_dir)]
    return [sys.executable, "-m", "breakloop", "serve", *flags]


def core_busy_s() -> dict[int, float]:
    """Seconds each core has been busy so far, with whatever."""
    busy: dict[int, float] = {}
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, numbers)
            busy[int(name[3:])] = (user + nice + system + irq + softirq + steal) / _TICKS
    return busy


@contextmanager
def _running(command: list[str], env: dict[str, str], stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BREAKLOOP_")}
    process = subprocess.Popen(command, stdout=stdout, text=True, env={**clean, "BREAKLOOP_LOG_LEVEL": "error", **env})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _announced_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        _, found, address = line.partition(READY)
        if found:
            return int(address.strip().rpartition(":")[2])
    raise SystemExit("bench: breakloop did not start; its messages are above")


def _wait_for(port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("bench: nginx did not start; its messages are above")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tree(pid: int) -> list[int]:
    """A process and everything it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [pid, *(below for child in children for below in _tree(int(child)))]


def _cpu_s(pid: int) -> float:
    # The name in the second field may hold blanks and brackets: count from the last bracket.
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS
