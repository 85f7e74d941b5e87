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
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
SRC: Final = ROOT / "src"
_MESSAGE_MAX: Final = 1 << 20
# What `breakloop serve` has imported once it is ready.
_CLIENT: Final = Path(__file__).with_name("forking_client.py")
_IMPORTS: Final = ("breakloop.cli.serve", "breakloop.app.runtime", "breakloop.admin.app", "breakloop.history.database")


class Forked:
    """A running `breakloop`, as a `subprocess.Popen` with text on its standard output."""

    def __init__(self, arguments: list[str], *, cwd: Path, env: dict[str, str], stderr: IO[str]) -> None:
        told, tell = os.pipe()
        read, write = os.pipe()
        message = json.dumps({"arguments": arguments, "cwd": str(cwd), "env": env}).encode()
        server, _ = _server()
        null = os.open(os.devnull, os.O_RDONLY)
        socket.send_fds(server, [message], [null, write, stderr.fileno(), tell])
        for one in (null, write, tell):
            os.close(one)
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
    if _can_fork():
        return Forked(arguments, cwd=cwd, env=env, stderr=stderr)
    return start_anew(arguments, cwd=cwd, env=env, stderr=stderr)


def shell_line() -> str:
    """Return the line of a shell script that becomes `breakloop` with the script's arguments, files and process group."""
    if _can_fork():
        return f'exec {sys.executable} -IS {_CLIENT} {_server()[1]} "$@"'
    return f'exec {sys.executable} -m breakloop "$@"'


def _can_fork() -> bool:
    return hasattr(os, "pidfd_open") and "coverage" not in sys.modules  # which has to begin with the process


def start_anew(arguments: list[str], *, cwd: Path, env: dict[str, str], stderr: IO[str]) -> subprocess.Popen[str]:
    """The same, by a new interpreter."""
    command = [sys.executable, "-m", "breakloop", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True)


@cache
def _server() -> tuple[socket.socket, Path]:
    """One for this process, and the path of the socket on which it hears shell scripts. It ends when the first socket is
    closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_MAX)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(SRC), str(ROOT)))}
    path = Path(tempfile.mkdtemp(prefix="breakloop-")) / "scripts"
    scripts = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    scripts.bind(str(path))
    scripts.listen()
    handed = [theirs.fileno(), scripts.fileno()]
    command = [sys.executable, "-m", __name__, *map(str, handed)]
    process = subprocess.Popen(command, cwd="/", env=environment, pass_fds=handed)
    theirs.close()
    scripts.close()

    def end() -> None:
        ours.close()
        process.wait()
        path.unlink()
        path.parent.rmdir()

    atexit.register(end)
    return ours, path


def _become() -> None:
    """Wait for starts, and fork for each. Returns in the forks, as what was asked for."""
    asked, scripts = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    with selectors.DefaultSelector() as waiting:
        waiting.register(asked, selectors.EVENT_READ)
        waiting.register(scripts, selectors.EVENT_READ)
        tells: dict[int, tuple[int, int]] = {}
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not asked and key.fileobj is not scripts:
                    _tell(waiting, key.fd, *tells.pop(key.fd))
                    continue
                told = asked if key.fileobj is asked else scripts.accept()[0]
                message, files, _, _ = socket.recv_fds(told, _MESSAGE_MAX, 4)
                if not message and told is asked:
                    sys.exit()
                if told is not asked:
                    files.append(told.detach())
                pid = os.fork()
                if not pid:
                    others = [asked.detach(), scripts.detach(), files.pop(), *tells]
                    for one in (*others, *(other for _, other in tells.values())):
                        os.close(one)
                    break
                tell = files.pop()
                for one in files:
                    os.close(one)
                os.write(asked.fileno() if told is asked else tell, b"%d" % pid)
                ends = os.pidfd_open(pid)
                tells[ends] = pid, tell
                waiting.register(ends, selectors.EVENT_READ)
            else:
                continue
            break
    _as_asked(json.loads(message), files)


def _tell(waiting: selectors.BaseSelector, ends: int, pid: int, tell: int) -> None:
    """Pass on how a process ended."""
    waiting.unregister(ends)
    os.close(ends)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        os.write(tell, b"%d" % code)
    os.close(tell)


def _as_asked(asked: dict[str, Any], files: list[int]) -> None:
    for standard, given in enumerate(files):
        os.dup2(given, standard)
        os.close(given)
    with suppress(PermissionError):  # in another session nobody ends it by its group
        if "group" in asked:
            os.setpgid(0, asked["group"])
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    time.tzset()
    sys.argv = ["breakloop", *asked["arguments"]]


if __name__ == "__main__":
    for _name in _IMPORTS:
        import_module(_name)
    gc.disable()
    gc.freeze()  # a collection would copy the pages of all that is imported, in each fork
    _become()
    gc.enable()
    runpy.run_module("breakloop", run_name="__main__", alter_sys=True)
