"""Starts `breakloop` without importing it each time: a process that has imported it forks for each start.

The start of `breakloop serve` takes half a second of CPU time, nearly all of it for imports. What the fork runs is the
same: `python -m breakloop` with its own arguments, environment, folder and files.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).resolve().parents[2]
SRC: Final = ROOT / "src"
_MESSAGE_MAX: Final = 1 << 20
# What `breakloop serve` has imported once it is ready.
_IMPORTS: Final = ("breakloop.cli.serve", "breakloop.app.runtime", "breakloop.admin.app", "breakloop.history.database")


class Forked:
    """A running `breakloop`, as a `subprocess.Popen` with text on its standard output."""

    def __init__(self, arguments: list[str], *, cwd: Path, env: dict[str, str], stderr: IO[str]) -> None:
        told, tell = os.pipe()
        read, write = os.pipe()
        message = json.dumps({"arguments": arguments, "cwd": str(cwd), "env": env}).encode()
        server = _server()
        socket.send_fds(server, [message], [write, stderr.fileno(), tell])
        os.close(write)
        os.close(tell)
        self.pid = int(server.recv(64))
        self.stdout: IO[str] | None = os.fdopen(read, "r")
        self.returncode: int | None = None
        self._told = told

    def poll(self) -> int | None:
        if self.returncode is None:
            self._look(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not self._look(timeout):
            raise subprocess.TimeoutExpired("breakloop", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _look(self, timeout: float | None) -> bool:
        """Read how it ended, if it has."""
        if not select.select([self._told], [], [], timeout)[0]:
            return False
        self.returncode = int(os.read(self._told, 64))
        os.close(self._told)
        return True

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = Forked | subprocess.Popen[str]


def start(arguments: list[str], *, cwd: Path, env: dict[str, str], stderr: IO[str]) -> Process:
    """Run `breakloop` with these arguments, and with a pipe as its standard output."""
    if hasattr(os, "pidfd_open") and "coverage" not in sys.modules:  # which has to begin with the process
        return Forked(arguments, cwd=cwd, env=env, stderr=stderr)
    return start_anew(arguments, cwd=cwd, env=env, stderr=stderr)


def start_anew(arguments: list[str], *, cwd: Path, env: dict[str, str], stderr: IO[str]) -> subprocess.Popen[str]:
    """The same, by a new interpreter."""
    command = [sys.executable, "-m", "breakloop", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True)


@cache
def _server() -> socket.socket:
    """One for this process. It ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_MAX)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(SRC), str(ROOT)))}
    command = [sys.executable, "-m", __name__, str(theirs.fileno())]
    process = subprocess.Popen(command, cwd="/", env=environment, pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _become() -> None:
    """Wait for starts, and fork for each. Returns in the forks, as what was asked for."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    with selectors.DefaultSelector() as waiting:
        waiting.register(asked, selectors.EVENT_READ)
        tells: dict[int, tuple[int, int]] = {}
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not asked:
                    _tell(waiting, key.fd, *tells.pop(key.fd))
                    continue
                message, files, _, _ = socket.recv_fds(asked, _MESSAGE_MAX, 3)
                if not message:
                    sys.exit()
                out, errors, tell = files
                pid = os.fork()
                if not pid:
                    for one in (asked.detach(), tell, *tells, *(other for _, other in tells.values())):
                        os.close(one)
                    break
                for one in (out, errors):
                    os.close(one)
                asked.send(b"%d" % pid)
                ends = os.pidfd_open(pid)
                tells[ends] = pid, tell
                waiting.register(ends, selectors.EVENT_READ)
            else:
                continue
            break
    _as_asked(json.loads(message), out, errors)


def _tell(waiting: selectors.BaseSelector, ends: int, pid: int, tell: int) -> None:
    """Pass on how a process ended."""
    waiting.unregister(ends)
    os.close(ends)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        os.write(tell, b"%d" % code)
    os.close(tell)


def _as_asked(asked: dict[str, object], out: int, errors: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for given, standard in ((null, 0), (out, 1), (errors, 2)):
        os.dup2(given, standard)
        os.close(given)
    os.chdir(str(asked["cwd"]))
    os.environ.clear()
    os.environ.update(asked["env"])  # type: ignore[call-overload]
    time.tzset()
    sys.argv = ["breakloop", *asked["arguments"]]  # type: ignore[misc]


if __name__ == "__main__":
    for _name in _IMPORTS:
        import_module(_name)
    gc.disable()
    gc.freeze()  # a collection would copy the pages of all that is imported, in each fork
    _become()
    gc.enable()
    runpy.run_module("breakloop", run_name="__main__", alter_sys=True)
