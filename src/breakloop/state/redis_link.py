"""One connection to one Redis server, for everybody at once: commands go out together once per turn of the event loop,
and answers come back in their order. It is used until it breaks; keeping one alive is `redis_keeper`'s.

Nothing is sent twice. When the connection ends, whoever still waits gets a `StateError`, and what he had sent may have
been carried out or not. Whoever stops waiting keeps his own books: his answer is still taken, in its place.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from breakloop.errors import SettingsError, StateError

SILENCE_S: Final = 2.0  # so long without a byte, while answers are due, and the server is given up
IN_FLIGHT_MAX: Final = 2048  # commands; a server that does not answer gets no more
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_NOT_YET: Final = object()


class RedisError(StateError):
    """An error that the server answered with. `code` is its first word: NOSCRIPT, OOM, READONLY, MOVED and so on."""

    def __init__(self, text: str) -> None:
        super().__init__(text.partition(", with args")[0])  # some quote what they were sent (SPEC Y-1)
        self.code = text.partition(" ")[0]


Answer = bytes | int | str | list[Any] | None | StateError
Then = Callable[[Answer], None]
Send = Callable[[tuple[bytes, ...], Then], None]


class Link(asyncio.Protocol):
    """A connection. Once it is over it stays so; `ended` is told, once, with the reason."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, silence_s: float = SILENCE_S, in_flight_max: int = IN_FLIGHT_MAX
    ) -> None:
        try:
            import hiredis  # noqa: PLC0415 - an extra: only those with a Redis need it
        except ImportError:
            raise SettingsError("Redis needs the extra 'redis' (pip install 'breakloop[redis]')") from None
        reader = hiredis.Reader(replyError=RedisError, notEnoughData=_NOT_YET)
        self._feed, self._next = reader.feed, reader.gets
        self._pack = cast("Callable[[tuple[bytes, ...]], bytes]", hiredis.pack_command)
        self._broken = hiredis.ProtocolError
        self._loop = loop
        self.ended: Callable[[str], None] | None = None
        self.erred: Callable[[RedisError], None] | None = None  # told of every error that is answered, first
        self.published: Callable[[list[Any]], None] | None = None  # told of messages of channels
        self._silence_s = silence_s
        self._in_flight_max = in_flight_max
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []  # what this turn sends
        self._waiting: deque[Then] = deque()
        self._heard = False
        self._watch: asyncio.TimerHandle | None = None
        self._why = ""

    # -- for callers --------------------------------------------------------------------------------------------------

    def send(self, args: tuple[bytes, ...], then: Then) -> None:
        """Send a command; `then` gets its answer, or a `StateError`, exactly once and never before this returns."""
        waiting = self._waiting
        if self._transport is None or len(waiting) >= self._in_flight_max:
            down = self._transport is None
            why = self._why or "there is no connection" if down else "too many commands wait for Redis"
            self._loop.call_soon(then, StateError(why))
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(self._pack(args))
        waiting.append(then)

    async def call(self, *args: bytes) -> Answer:
        """Send a command and wait for its answer; errors are returned, as to `then`."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.send(args, lambda answer: None if future.done() else future.set_result(answer))
        return await future

    def end(self, why: str) -> None:
        """Close at once; whoever waits is told why."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._why = self._why or why
            transport.abort()

    @property
    def alive(self) -> bool:
        """Whether it is connected, as far as is known."""
        return self._transport is not None

    @property
    def in_flight(self) -> int:
        """How many answers are due."""
        return len(self._waiting)

    # -- the transport's side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        _keep_alive(transport.get_extra_info("socket"))
        self._watch = self._loop.call_later(self._silence_s, self._check)

    def data_received(self, data: bytes) -> None:
        """Hand every complete answer to whoever is next."""
        self._heard = True
        self._feed(data)
        take, waiting = self._next, self._waiting
        try:
            while (answer := take()) is not _NOT_YET:
                kind = type(answer)
                if kind is RedisError and self.erred is not None:
                    self.erred(answer)
                elif kind is list and self.published is not None and answer[0] == b"message":
                    self.published(answer)
                    continue
                if waiting:
                    self._tell(waiting.popleft(), answer)
                else:  # whose the next answer would be, is unknown
                    self.end("the server sent an answer that nobody asked for")
                    return
        except self._broken:
            self.end("the server does not speak the protocol of Redis")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the transport's signature
        """Tell everybody who waits, then the keeper."""
        why = self._why = self._why or "the connection was lost"
        self._transport = None
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, deque()
        self._out.clear()
        for then in waiting:
            self._tell(then, StateError(why))
        if self.ended is not None:
            self.ended(why)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _tell(self, then: Then, answer: Answer) -> None:
        try:
            then(answer)
        except Exception as error:  # noqa: BLE001 - an outermost edge: one caller's fault must not lose others' answers
            context = {"message": "a receiver of a Redis answer failed", "exception": error}
            self._loop.call_exception_handler(context)

    def _check(self) -> None:
        """Look whether the server is still there; a quiet one is asked."""
        if self._waiting and not self._heard:
            self.end(f"the server did not answer for {self._silence_s:g} s")
            return
        if not self._waiting:
            self.send((b"PING",), _ignore)
        self._heard = False
        self._watch = self._loop.call_later(self._silence_s, self._check)


def _ignore(_answer: Answer) -> None:
    """Only that there is an answer matters."""


def _keep_alive(sock: socket.socket | None) -> None:
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # a peer that is gone again
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
