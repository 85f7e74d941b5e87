"""The HTTP server of the stand-in: connections, the requests they received, and waiting for conditions."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Self, cast

from breakloop.clock import Clock, SystemClock
from breakloop.testing.answer import News
from breakloop.testing.http import MalformedError, RequestReader, SeenRequest
from breakloop.testing.sending import Player, Step

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class StandInConnection(asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(self, host: StandInServer) -> None:
        self.number = 0
        self.seen: SeenRequest | None = None  # the request being read or answered
        self.player: Player | None = None
        self._host = host
        self._reader = RequestReader()
        self._advancing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # TCP and TLS provide no other
        self.number = self._host.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.player is not None:
            self.player.abandon()
        elif self.seen is not None:
            self.seen.outcome = "aborted"
        self._host.disconnected(self)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        self._advance()

    def pause_writing(self) -> None:
        if self.player is not None:
            self.player.pause_writing()

    def resume_writing(self) -> None:
        if self.player is not None:
            self.player.resume_writing()

    def abort(self) -> None:
        self._transport.abort()

    def _advance(self) -> None:
        """Parse further requests once the previous response is sent."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._step():
                pass
        except MalformedError as error:
            self._refuse(str(error))
        finally:
            self._advancing = False

    def _step(self) -> bool:
        seen = self.seen
        if seen is None:
            seen = self._reader.head()
            if seen is None:
                return False
            self._begin(seen)
        # After a complete request, further bytes belong to the next one, which waits.
        if seen.complete or not self._reader.body(seen):
            return False
        if self.player is None:
            self._play(seen, self._host.heard(seen))
        elif self.player.over:
            self._next()
        self._host.changed()
        return self.seen is None

    def _begin(self, seen: SeenRequest) -> None:
        self.seen = seen
        seen.connection = self.number
        early = self._host.heard_head(seen, self)
        if early is not None:
            self._play(seen, early)
        elif (seen.header("expect") or "").lower() == "100-continue":
            self._transport.write(_CONTINUE)

    def _play(self, seen: SeenRequest, steps: Iterator[Step]) -> None:
        if self._transport.is_closing():
            return
        seen.outcome = "answering"
        self.player = Player(self._transport, steps, seen, self._ended, self._host.loop)
        self.player.go()

    def _ended(self) -> None:
        seen = self.seen
        if seen is None:
            return
        self._host.changed()
        if seen.complete:
            self._next()
            self._advance()

    def _next(self) -> None:
        self.seen = self.player = None

    def stop_reading(self) -> None:
        self._transport.pause_reading()

    def _refuse(self, problem: str) -> None:
        self._host.complain(self, problem)
        if not self._transport.is_closing():
            self._transport.write(_BAD)
            self._transport.close()


REMEMBERED: Final = 10_000
_BACKLOG: Final = 4096
_STOP_S: Final = 5.0


class StandInServer:
    """A server on a loopback port. `async with` starts and stops it."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, clock: Clock | None = None, port: int = 0) -> None:
        self.host = "127.0.0.1"
        self.port = port  # 0 until it listens, if no port was given
        self.opened = 0  # connections so far
        self.closed = 0  # closed connections
        self.request_count = 0
        self.malformed: list[str] = []  # errors of requests that were not valid HTTP
        self._tls = tls
        self._clock: Clock = clock or SystemClock()
        self._requests: deque[SeenRequest] = deque(maxlen=REMEMBERED)
        self._live: dict[int, StandInConnection] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.Server | None = None
        self._news = News()

    # -- starting and stopping

    async def start(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._listener = await self._loop.create_server(
            lambda: StandInConnection(self), self.host, self.port, ssl=self._tls, backlog=_BACKLOG
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._listener is None:
            return
        self._listener.close()
        for connection in tuple(self._live.values()):
            connection.abort()
        await self._news.until(lambda: not self._live, _STOP_S)
        await self._listener.wait_closed()
        self._listener = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("the stand-in is not started")
        return self._loop

    @property
    def url(self) -> str:
        """Return the base URL without a trailing slash."""
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    # -- observations

    @property
    def requests(self) -> list[SeenRequest]:
        """Return the last 10,000 requests in the order of their heads."""
        return list(self._requests)

    @property
    def open(self) -> int:
        return self.opened - self.closed

    @property
    def aborted(self) -> list[SeenRequest]:
        """Return the requests whose client disconnected before the end of the response."""
        return [seen for seen in self._requests if seen.outcome == "aborted"]

    def is_connected(self, seen: SeenRequest) -> bool:
        """Return whether the connection of a request is still open."""
        return seen.connection in self._live

    async def wait_until(self, condition: Callable[[], bool], *, timeout_s: float = 5.0) -> None:
        """Wait until the condition holds. Raises TimeoutError if it does not in time."""
        await self._news.until(condition, timeout_s)

    async def wait_for_requests(self, count: int = 1, *, timeout_s: float = 5.0) -> SeenRequest:
        """Wait until this number of requests has arrived completely; returns the newest."""
        done = lambda: sum(seen.complete for seen in self._requests) >= count  # noqa: E731 - short, and used once
        await self._news.until(done, timeout_s)
        return [seen for seen in self._requests if seen.complete][-1]

    async def wait_for_disconnect(self, seen: SeenRequest | None = None, *, timeout_s: float = 5.0) -> SeenRequest:
        """Wait until the connection of a request (by default the newest) is closed; returns the request."""
        found = self._requests[-1] if seen is None else seen
        await self._news.until(lambda: not self.is_connected(found), timeout_s)
        return found

    async def wait_until_idle(self, *, timeout_s: float = 5.0) -> None:
        """Wait until no connection is open."""
        await self._news.until(lambda: not self._live, timeout_s)

    # -- called by connections

    def connected(self, connection: StandInConnection) -> int:
        self.opened += 1
        self._live[self.opened] = connection
        self._news.tell()
        return self.opened

    def disconnected(self, connection: StandInConnection) -> None:
        self.closed += 1
        del self._live[connection.number]
        self._news.tell()

    def complain(self, connection: StandInConnection, problem: str) -> None:
        self.malformed.append(f"connection {connection.number}: {problem}")
        self._news.tell()

    def changed(self) -> None:
        """Called when a request or a response is complete."""
        self._news.tell()

    def heard_head(self, seen: SeenRequest, connection: StandInConnection) -> Iterator[Step] | None:  # noqa: ARG002
        """Return the steps of a response that does not wait for the body, or None."""
        self.request_count += 1
        seen.number = self.request_count
        seen.received_at = self._clock.now()
        self._requests.append(seen)
        self._news.tell()
        return None

    def heard(self, seen: SeenRequest) -> Iterator[Step]:
        """Return the steps of the response to a complete request."""
        raise NotImplementedError

    def resume(self) -> None:
        """Continue all stalled responses."""
        for connection in tuple(self._live.values()):
            if connection.player is not None and connection.player.held:
                connection.player.resume()
