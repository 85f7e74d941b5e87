"""Starting a process of the fleet: the same Python, executed anew, with a line to the supervisor, its settings in
memory, and a session of its own, so that a terminal's Ctrl-C is the supervisor's business alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from breakloop.fleet.handover import Handover, write
from breakloop.fleet.line import Line, Say, pair

Heard = Callable[[Say], None]


class Child:
    """One process that was started."""

    def __init__(self, process: asyncio.subprocess.Process, line: Line) -> None:
        self._process = process
        self._line = line

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def say(self, message: Say, sockets: Sequence[socket.socket] = ()) -> bool:
        """Tell it something."""
        return self._line.say(message, sockets)

    async def wait(self) -> int:
        """Wait for its end, hear what it said last, and return its exit code; negative for a signal."""
        code = await self._process.wait()
        self._line.drain()
        self._line.close()
        return code

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self._process.kill()


async def launch(handover: Handover, heard: Heard) -> Child:
    """Start a process."""
    ours, theirs = pair()
    memory = write(replace(handover, line=theirs.fileno()))
    inherited = [memory, theirs.fileno(), *handover.listeners]
    if handover.shares >= 0:
        inherited.append(handover.shares)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(["-P"] if _is_safe() else []),
            "-m",
            "breakloop.fleet",
            handover.role,
            str(handover.number),
            str(memory),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            pass_fds=inherited,
            start_new_session=True,
        )
    finally:
        theirs.close()
        os.close(memory)
    return Child(process, Line(ours, lambda message, _sockets: heard(message), lambda: None))


def _is_safe() -> bool:
    """Modules in the working directory are not looked for here, so they must not be there."""
    return bool(sys.flags.safe_path) or sys.path[:1] not in ([""], [str(Path.cwd())])


def how(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
