"""A channel over a real pair of sockets: messages arrive whole and in order, and nobody waits for the other side."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from breakloop.app.workers.ipc import BundleApplied, Channel, Message, WorkerCount, encode, open_channel
from tests.deadlines import DEADLINE_S


class End:
    """One end, and what happened there."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.ended = 0
        self.roomy = 0
        self.changed = asyncio.Event()
        self.channel = Channel(self._received, self._ended, self._roomy)

    def _received(self, message: Message) -> None:
        self.got.append(message)
        self.changed.set()

    def _ended(self) -> None:
        self.ended += 1
        self.changed.set()

    def _roomy(self) -> None:
        self.roomy += 1
        self.changed.set()

    def busy(self, *, over: bool = False) -> None:
        """It does not read for a while."""
        transport = self.channel._transport
        assert transport is not None
        (transport.resume_reading if over else transport.pause_reading)()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def opened() -> tuple[End, End]:
    ends, sockets = (End(), End()), socket.socketpair()
    for end, sock in zip(ends, sockets, strict=True):
        await open_channel(sock, end.channel)
    return ends


def test_messages_arrive_in_order() -> None:
    """Small ones, large ones, both ways (S-5)."""

    async def main() -> None:
        one, other = await opened()
        sent: list[Message] = [WorkerCount(1), BundleApplied(2, "x" * 500_000), WorkerCount(3)]
        assert [one.channel.send(message) for message in sent] == [True] * 3
        await other.until(lambda: len(other.got) == 3)
        assert other.got == sent
        other.channel.send(BundleApplied(9))
        await one.until(lambda: bool(one.got))
        await one.channel.finish(1.0)
        await other.until(lambda: bool(other.ended))
        assert (one.ended, other.ended) == (1, 1)
        assert not one.channel.send(WorkerCount(1))
        assert not other.channel.has_room

    asyncio.run(main())


def test_bytes_come_as_they_like() -> None:
    """A message in many pieces, several in one (S-5)."""

    async def main() -> None:
        end = End()
        data = b"".join(
            len(one).to_bytes(4, "big") + one
            for one in (encode(WorkerCount(1)), encode(WorkerCount(2)), encode(BundleApplied(3)))
        )
        for at in range(0, len(data) - 7, 1):
            end.channel.data_received(data[at : at + 1])
        end.channel.data_received(data[len(data) - 7 :])
        assert end.got == [WorkerCount(1), WorkerCount(2), BundleApplied(3)]

    asyncio.run(main())


def test_the_last_word_is_heard() -> None:
    """Also when the other side writes to somebody who has just finished (S-6)."""

    async def main() -> None:
        one, other = await opened()
        other.busy()
        one.channel.send(BundleApplied(1))
        finishing = asyncio.create_task(one.channel.finish(5.0))
        for _ in range(5):
            await asyncio.sleep(0)
        assert other.channel.send(WorkerCount(1))
        other.busy(over=True)
        await other.until(lambda: bool(other.ended))
        assert other.got == [BundleApplied(1)]
        await finishing
        await one.channel.finish(0.0)

    asyncio.run(main())


def test_nobody_waits_for_who_does_not_read() -> None:
    """What finds no room is not sent; there is room again when the other side has read (S-5)."""

    async def main() -> None:
        ends = End(), End()
        one, other = ends
        ours, theirs = socket.socketpair()
        await open_channel(ours, one.channel)
        large = BundleApplied(1, "x" * 400_000)
        sent = 0
        while one.channel.send(large):
            sent += 1
            assert sent < 50
        assert sent >= 2
        await open_channel(theirs, other.channel)
        await one.until(lambda: one.roomy == 1)
        assert one.channel.send(WorkerCount(1))
        await other.until(lambda: len(other.got) == sent + 1)
        one.channel.close()
        await other.until(lambda: bool(other.ended))
        other.channel.close()

    asyncio.run(main())


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1"])
def test_what_is_no_message_ends_it(data: bytes) -> None:
    """A stranger at the other end is not listened to (S-5)."""

    async def main() -> None:
        end = End()
        ours, theirs = socket.socketpair()
        with theirs:
            await open_channel(ours, end.channel)
            theirs.sendall(data)
            await end.until(lambda: bool(end.ended))
        assert end.got == []

    asyncio.run(main())
