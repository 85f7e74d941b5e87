"""The line between the supervisor and a process."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from breakloop.app.workers.ipc import PipeMessage, SupervisorPipe, pair
from tests.deadlines import DEADLINE_S


class Ear:
    def __init__(self, end: socket.socket) -> None:
        self.heard: asyncio.Queue[tuple[PipeMessage, list[socket.socket]]] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.line = SupervisorPipe(
            end, lambda message, sockets: self.heard.put_nowait((message, sockets)), self.ended.set
        )

    async def next(self) -> tuple[PipeMessage, list[socket.socket]]:
        return await asyncio.wait_for(self.heard.get(), DEADLINE_S)


def run(steps: Any) -> None:
    async def main() -> None:
        ours, theirs = pair()
        one, other = Ear(ours), Ear(theirs)
        try:
            await steps(one, other)
        finally:
            one.line.close()
            other.line.close()

    asyncio.run(main())


def test_messages_and_sockets_are_handed_over() -> None:
    """A socket that was handed over works, and no process inherits it by accident (S-5)."""

    async def steps(one: Ear, other: Ear) -> None:
        left, right = socket.socketpair()
        with left:
            assert one.line.send({"do": "channel", "worker": 1}, [right])
            assert one.line.send({"do": "stop"})
            right.close()
            message, sockets = await other.next()
            assert message == {"do": "channel", "worker": 1}
            with sockets[0] as received:
                assert not os.get_inheritable(received.fileno())
                received.sendall(b"hello")
                assert left.recv(10) == b"hello"
        assert await other.next() == ({"do": "stop"}, [])

    run(steps)


def test_the_end_of_the_other_is_noticed_once() -> None:
    """That is how a process learns that its supervisor is gone (S-5)."""

    async def steps(one: Ear, other: Ear) -> None:
        one.line.send({"is": "ready"})
        one.line.close()
        assert (await other.next())[0] == {"is": "ready"}
        await asyncio.wait_for(other.ended.wait(), DEADLINE_S)
        assert not one.ended.is_set()
        assert not other.line.send({"do": "stop"})

    run(steps)


def test_what_was_said_last_is_heard() -> None:
    """Of a process that is gone already (S-5)."""

    async def steps(one: Ear, other: Ear) -> None:
        one.line.send({"is": "failed", "why": "because"})
        other.line.read()
        assert other.heard.get_nowait()[0] == {"is": "failed", "why": "because"}

    run(steps)


def test_a_long_text_is_cut_and_a_full_line_says_so() -> None:
    """Whoever does not listen holds up nobody (S-5)."""

    async def steps(one: Ear, other: Ear) -> None:
        assert one.line.send({"is": "failed", "why": "x" * 1_000_000})
        message, _ = await other.next()
        assert len(message["why"]) == 32 * 1024
        deaf = other.line
        asyncio.get_running_loop().remove_reader(deaf._end.fileno())
        said = 0
        while one.line.send({"do": "reload"}):
            said += 1
            assert said < 100_000

    run(steps)
