"""The connections of the stand-in LLM: they read requests and send the responses that it returns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from breakloop.testing.http import MalformedError, RequestReader, SeenRequest
from breakloop.testing.sending import Player, Step

if TYPE_CHECKING:
    from breakloop.testing.llm import StandInLLM

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BAD: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class StandInConnection(asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(self, host: StandInLLM) -> None:
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
