"""A server that speaks Redis' protocol and answers what the test says: errors, silence, half an answer, a lost line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import hiredis

from breakloop.store.redis.url import Address
from tests.deadlines import DEADLINE_S

OK = b"+OK\r\n"
Command = tuple[bytes, ...]
# Returns the bytes to send, None for silence; may raise ConnectionError to end the connection without an answer.
Script = Callable[[Command], bytes | None]


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def array(*parts: bytes | int | list[Any] | None) -> bytes:
    """An array of byte strings, numbers, nulls and arrays."""
    return b"*%d\r\n" % len(parts) + b"".join(_part(part) for part in parts)


def _part(part: bytes | int | list[Any] | None) -> bytes:
    if part is None:
        return b"$-1\r\n"
    if isinstance(part, int):
        return b":%d\r\n" % part
    return array(*part) if isinstance(part, list) else bulk(part)


def polite(command: Command) -> bytes:
    """Answers to a greeting, and +OK to all else."""
    if command[0] == b"PING":
        return b"+PONG\r\n"
    if command[0] == b"ROLE":
        return array(b"master", 0, [])
    return OK


class FakeRedis:
    """The server. `seen` has every command but greetings; `greetings` the rest; both in order."""

    GREETINGS = frozenset((b"AUTH", b"SELECT", b"CLIENT", b"ROLE", b"PING"))

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Command] = []
        self.greetings: list[Command] = []
        self.connections = 0
        self.ended = asyncio.Event()  # a connection has ended
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._arrived: asyncio.Queue[Command] = asyncio.Queue()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    async def next_seen(self) -> Command:
        """The next command that is no greeting, in the order of arrival."""
        return await asyncio.wait_for(self._arrived.get(), DEADLINE_S)

    def drop(self) -> None:
        """End every connection now, whoever waits."""
        for writer in self._writers:
            writer.transport.abort()

    def say(self, data: bytes) -> None:
        """Send something that was not asked for, to everybody."""
        for writer in self._writers:
            writer.write(data)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        parser = hiredis.Reader(notEnoughData=None)
        try:
            while data := await reader.read(65536):
                parser.feed(data)
                while (command := parser.gets()) is not None:
                    self._answer(tuple(command), writer)
        except ConnectionError:
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.close()
            self.ended.set()

    def _answer(self, command: Command, writer: asyncio.StreamWriter) -> None:
        greeting = command[0] in self.GREETINGS
        (self.greetings if greeting else self.seen).append(command)
        if not greeting:
            self._arrived.put_nowait(command)
        answer = self.script(command)
        if answer is not None:
            writer.write(answer)


@asynccontextmanager
async def fake_redis(script: Script = polite, *, port: int = 0, tls: Any = None) -> AsyncIterator[FakeRedis]:
    """Serve `script` on loopback."""
    fake = FakeRedis(script)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", port, ssl=tls)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
        fake.drop()


class Heard:
    """A receiver of calls with a queue, so that a test waits for the next one instead of for time to pass."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def __call__(self, *arguments: Any) -> None:
        item = arguments[0] if len(arguments) == 1 else arguments
        self.all.append(item)
        self._queue.put_nowait(item)

    async def next(self) -> Any:
        return await asyncio.wait_for(self._queue.get(), DEADLINE_S)
