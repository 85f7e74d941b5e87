"""Starting the programs that are measured, each pinned to one core, and reading what they cost from /proc."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.certificate import self_signed

READY = "breakloop ready on "
_OUR_SETTINGS = ("BREAKLOOP_", "LOOP_GUARD_")
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
    server_tokens off;
%s
}
"""
_NO_CONTENT = """\
    server {
        listen 127.0.0.1:%d;
        location / { return 204; }
    }
"""
# As fast as nginx goes: connections to the upstream are kept, and a body does not wait to be complete, nor on a disk.
_PASS = """\
    upstream up { server 127.0.0.1:%(upstream)d; keepalive 256; keepalive_requests 1000000000; keepalive_timeout 600s; }
    server {
        listen 127.0.0.1:%(port)d;
        client_max_body_size 0;
        client_header_buffer_size 8k;
        client_body_buffer_size 256k;
        location / {
            proxy_pass %(scheme)s://up;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_buffering %(buffering)s;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_ssl_trusted_certificate %(certificate)s;
        }
    }
"""

_ALONE = ("--port", "0", "--admin-port", "0")  # several run at the same time


@dataclass(frozen=True, slots=True)
class Program:
    """A running program: its process and the port it answers on."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        """User and system time of the whole process tree so far."""
        return sum(self.cpu_each_s().values())

    def cpu_each_s(self) -> dict[int, float]:
        """The same for each process of the tree."""
        return {pid: _cpu_s(pid) for pid in _tree(self.pid)}

    def rss_bytes(self) -> int:
        """Memory that the whole process tree has in use."""
        return sum(_rss_bytes(pid) for pid in _tree(self.pid))


@dataclass(frozen=True, slots=True)
class Upstream(Program):
    """The stand-in upstream: `port` is plain, `tls_port` has the certificate in the file."""

    tls_port: int
    certificate: Path


@contextmanager
def nginx(folder: Path, core: int) -> Iterator[Program]:
    """nginx with one worker that answers 204 to everything."""
    port = free_port()
    with _nginx(folder, core, port, _NO_CONTENT % port) as program:
        yield program


@contextmanager
def nginx_proxy(
    folder: Path, core: int, upstream: Upstream, *, tls: bool = False, buffering: bool = True
) -> Iterator[Program]:
    """nginx with one worker that passes everything on."""
    port = free_port()
    server = _PASS % {
        "port": port,
        "upstream": upstream.tls_port if tls else upstream.port,
        "scheme": "https" if tls else "http",
        "buffering": "on" if buffering else "off",
        "certificate": upstream.certificate,
    }
    with _nginx(folder, core, port, server) as program:
        yield program


@contextmanager
def _nginx(folder: Path, core: int, port: int, server: str) -> Iterator[Program]:
    path = shutil.which("nginx", path=os.environ.get("PATH", "") + os.pathsep + _SBIN)
    if path is None:
        raise SystemExit("bench: nginx is not installed; `sh scripts/install-system.sh nginx` installs it")
    folder.mkdir()
    (folder / "nginx.conf").write_text(_NGINX % server)
    command = ["taskset", "-c", str(core), path, "-p", str(folder), "-c", "nginx.conf"]
    with running(command, {}) as process:
        wait_for(port, process, 10)
        yield Program(process.pid, port)


@contextmanager
def redis(folder: Path, core: int) -> Iterator[Program]:
    """A Redis that keeps nothing on disk."""
    path = shutil.which("redis-server")
    if path is None:
        raise SystemExit(
            "bench: redis-server is not installed; `sh scripts/install-system.sh redis-server` installs it"
        )
    folder.mkdir()
    port = free_port()
    options = {"port": str(port), "bind": "127.0.0.1", "save": "", "dir": str(folder), "logfile": str(folder / "log")}
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    with running(["taskset", "-c", str(core), path, *flags], {}) as process:
        wait_for(port, process, 10)
        yield Program(process.pid, port)


@contextmanager
def breakloop(
    folder: Path, core: int, policy: dict[str, Any], env: dict[str, str], flags: Sequence[str] = ()
) -> Iterator[Program]:
    """The decision service, with a policy."""
    folder.mkdir()
    file = _policy_file(folder, policy)
    with _serving(core, [*serve_command(file, folder / "data"), *flags], env) as program:
        yield program


@contextmanager
def breakloop_proxy(
    folder: Path,
    cores: int | str,
    url: str,
    policy: dict[str, Any] | None,
    env: dict[str, str],
    flags: Sequence[str] = (),
) -> Iterator[Program]:
    """The proxy in front of `url`, with or without a policy."""
    folder.mkdir()
    given = [*_ALONE, "--mode", "all", "--upstream", f"up={url}", "--data-dir", str(folder / "data"), *flags]
    if policy is not None:
        given += ["--policy", str(_policy_file(folder, policy))]
    with _serving(cores, [sys.executable, "-m", "breakloop", "serve", *given], env) as program:
        yield program


@contextmanager
def upstream(folder: Path, core: int) -> Iterator[Upstream]:
    """The stand-in upstream."""
    folder.mkdir()
    certificate, key = self_signed(folder)
    command = ["taskset", "-c", str(core), sys.executable, "-m", "bench.upstream", str(certificate), str(key)]
    with running(command, {}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        if len(ports) != 2:
            raise SystemExit("bench: the upstream did not start; its messages are above")
        yield Upstream(process.pid, int(ports[0]), int(ports[1]), certificate)


@contextmanager
def _serving(core: int | str, command: list[str], env: dict[str, str]) -> Iterator[Program]:
    with running(["taskset", "-c", str(core), *command], env, stdout=subprocess.PIPE) as process:
        yield Program(process.pid, _announced_port(process))


def _policy_file(folder: Path, policy: dict[str, Any]) -> Path:
    file = folder / "policy.json"
    file.write_text(json.dumps(policy))
    return file


def serve_command(policy: Path, data_dir: Path) -> list[str]:
    """How the decision service is started."""
    flags = [*_ALONE, "--mode", "decision", "--policy", str(policy), "--data-dir", str(data_dir)]
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
def running(command: list[str], env: dict[str, str], stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block. None of our own settings reach it but those in `env`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_OUR_SETTINGS)}
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


def wait_for(port: int, process: subprocess.Popen[str], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"bench: {process.args!r} did not start; its messages are above")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tree(pid: int) -> list[int]:
    """A process and everything it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [pid, *(below for child in children for below in _tree(int(child)))]


def _cpu_s(pid: int) -> float:
    # The clock of another process as Linux numbers it (clock_getcpuclockid(3)): /proc/PID/stat has steps of 10 ms.
    return time.clock_gettime(~pid << 3 | 2)


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE")
