"""One client's connection: requests in, one at a time, and their answers out. What is answered is the host's work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol, cast

from breakloop.testing.http import MalformedError, Reader, SeenRequest
from breakloop.testing.player import Player
from breakloop.testing.steps import Step

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Host(Protocol):
    """Whom a connection asks for answers and tells what happens."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
        ...

    def connected(self, connection: Connection) -> int:
        """Return the connection's number."""
        ...

    def disconnected(self, connection: Connection) -> None:
        """Take note that it is gone."""
        ...

    def heard_head(self, seen: SeenRequest, connection: Connection) -> Iterator[Step] | None:
        """Return the steps of an answer that does not wait for the body, if that is wanted."""
        ...

    def heard(self, seen: SeenRequest) -> Iterator[Step]:
        """Return the steps of the answer to a complete request."""
        ...

    def complain(self, connection: Connection, problem: str) -> None:
        """Take note of what is no HTTP."""
        ...

    def changed(self) -> None:
        """Take note that a request or its answer has come to its end."""
        ...


class Connection(asyncio.Protocol):
    """One connection of the stand-in."""

    def __init__(self, host: Host) -> None:
        self.number = 0
        self.seen: SeenRequest | None = None  # the request being read or answered
        self.player: Player | None = None
        self._host = host
        self._reader = Reader()
        self._transport: asyncio.Transport | None = None
        self._advancing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast("asyncio.Transport", transport)  # TCP and TLS give no other
        self.number = self._host.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Called by the loop: whatever was under way is over."""
        if self.player is not None:
            self.player.abandon()
        elif self.seen is not None:
            self.seen.outcome = "aborted"
        self._host.disconnected(self)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._reader.feed(data)
        self._advance()

    def pause_writing(self) -> None:
        """Called by the loop: the client reads too slowly."""
        if self.player is not None:
            self.player.pause_writing()

    def resume_writing(self) -> None:
        """Called by the loop: the client has read."""
        if self.player is not None:
            self.player.resume_writing()

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _advance(self) -> None:
        """Read on, as far as requests are there and the answer before is through."""
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
        # Once a request is complete, what comes is the next one, which waits for its turn.
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
        elif (seen.header("expect") or "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(_CONTINUE)

    def _play(self, seen: SeenRequest, steps: Iterator[Step]) -> None:
        if self._transport is None or self._transport.is_closing():
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
        """Leave what the client sends where it is."""
        if self._transport is not None:
            self._transport.pause_reading()

    def _refuse(self, problem: str) -> None:
        self._host.complain(self, problem)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_BAD)
            self._transport.close()
