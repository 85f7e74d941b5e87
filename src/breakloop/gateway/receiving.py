"""The receiving half of a client's connection: bytes become requests, strictly in order and one at a time; what cannot
be a request is refused. Answering is `connection`'s half, cutting bytes into requests `incoming`'s work.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from breakloop.errors import RequestError
from breakloop.gateway.head import Request
from breakloop.gateway.hub import Hub, Phase
from breakloop.gateway.incoming import Incoming
from breakloop.gateway.reply import CONTINUE, render_refusal

_LINGER_BYTES: Final = 1024 * 1024

# module names cost less than enum members
IDLE, HEAD, BODY, WAITING, QUEUED, LINGERING, CLOSED = Phase


class Receiving(asyncio.Protocol):
    """Takes requests out of the stream and hands them to `dispatch`."""

    __slots__ = (
        "_blocked", "_discarded", "_hub", "_incoming", "_limits", "_parse", "_peer", "_reading", "_stamp", "_transport",
        "phase",
    )  # fmt: skip

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._parse = hub.heads.parse
        self._limits = hub.limits
        self._incoming = Incoming(hub.heads, hub.limits, hub.room, hub.streams)
        self._transport = cast("asyncio.Transport", None)  # comes with connection_made
        self._peer = ""
        self.phase = IDLE
        self._stamp = hub.tick  # when the phase began or last made progress
        self._reading = True
        self._blocked = False  # the client does not read its answers
        self._discarded = 0  # bytes, while lingering

    def dispatch(self, request: Request) -> None:
        """Answer a request, now or later."""
        raise NotImplementedError

    def upload(self) -> None:
        """More of a body has come that passes in pieces."""
        raise NotImplementedError

    def leave(self) -> None:
        """The client is gone: free at once whatever was at work for it."""
        self._incoming.clear()
        self.phase = CLOSED

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or close it at once when there are too many (Y-2)."""
        self._transport = cast("asyncio.Transport", transport)
        hub = self._hub
        if len(hub.live) >= hub.limits.connections or hub.draining:
            hub.refused += 1
            self.phase = CLOSED
            self._transport.abort()
            return
        peer = transport.get_extra_info("peername")
        if peer is None:  # gone already: nobody to answer, and nobody knows whose request it was
            self.phase = CLOSED
            self._transport.abort()
            return
        hub.connections += 1
        hub.live.add(self)
        self._peer = peer[0] if isinstance(peer, tuple) else ""

    def data_received(self, data: bytes) -> None:
        """Hand over what came; it is used when everything of this turn has been read."""
        self._hub.received(self, data)

    def take(self, data: bytes) -> None:
        """Use what came. One whole request alone in one segment, the usual case, takes the short way."""
        if self.phase is IDLE and not self._blocked:
            end = data.find(b"\r\n\r\n") + 4
            if 4 < end <= self._limits.head_bytes:
                size = len(data)
                try:
                    request = self._parse(data if end == size else data[:end], self._peer)
                except RequestError:
                    pass  # the long way meets it again and finds out which fault came first
                else:
                    if request.length == size - end <= self._limits.body_bytes:
                        if end < size:
                            request.body = data[end:]
                        self.dispatch(request)
                        return
        self._receive(data)

    def eof_received(self) -> bool:
        """A half-closed connection counts as closed: nobody waits for an answer any more (E-6)."""
        self._hub.answer()  # what came before the end is a request like any other
        self.leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Free everything that was held for this client."""
        self.leave()
        self._hub.gone(self)

    def _receive(self, data: bytes) -> None:
        if self.phase is LINGERING:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.close()
        elif self.phase is not CLOSED:
            self._incoming.push(data)
            if self.phase < WAITING:
                self.advance()
            elif self._incoming.streaming:
                self.upload()
            self.update_reading()

    def advance(self) -> None:
        """Answer what is complete, until a reply has to wait or this connection's turn is over."""
        try:
            for _ in range(self._limits.pipelined):
                request = None if self._blocked else self._incoming.next(self._peer)
                if request is None:
                    self._want_more()
                    break
                self.phase = IDLE
                self.dispatch(request)
                self._hub.send()  # before the next: whether this client reads its answers is known only then
                if self.phase is not IDLE:
                    break
            else:
                self.phase = QUEUED
                self._hub.loop.call_soon(self._take_turn)
        except RequestError as error:
            self.refuse(error)
        self._incoming.compact()

    def _take_turn(self) -> None:
        if self.phase is QUEUED:
            self.phase = IDLE
            self.advance()
            self.update_reading()

    def _want_more(self) -> None:
        """The request in the buffer is incomplete: note what is missing and since when."""
        if self._incoming.body is not None:
            self.phase = BODY
            self._stamp = self._hub.tick
            self.tell_to_continue()
        elif self.phase is IDLE and len(self._incoming):
            self.phase = HEAD
            self._stamp = self._hub.tick

    def tell_to_continue(self) -> None:
        """The client waits for this before it sends its body."""
        if self._incoming.continue_due:
            self._incoming.continue_due = False
            self.write(CONTINUE)

    # The other half's side

    def write(self, data: bytes) -> None:
        """Write now, after everything that is posted."""
        self._hub.send()
        if not self._transport.is_closing():  # uvloop raises on a write after close
            self._transport.write(data)

    def refuse(self, error: RequestError) -> None:
        """Answer a fault, and end the connection without destroying the answer (see `Phase.LINGERING`)."""
        self._hub.bad_requests += 1
        self.write(render_refusal(self._hub.lines, error.status, str(error)))
        self.linger()

    def linger(self) -> None:
        """Nothing more is sent; read on for a moment."""
        self._hub.send()
        self._incoming.clear()
        self.phase = LINGERING
        self._stamp = self._hub.tick
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self.update_reading()
        else:
            self.close()

    def close(self) -> None:
        """End the connection when everything is written."""
        self._hub.send()
        self._incoming.clear()
        self.phase = CLOSED
        self._stamp = self._hub.tick
        self._transport.close()

    def update_reading(self) -> None:
        """Read unless answers pile up, or too much has piled up behind a reply that waits."""
        limits = self._limits
        wanted = not self._blocked and len(self._incoming) <= max(limits.backlog_bytes, limits.head_bytes)
        if wanted is not self._reading and self.phase is not CLOSED:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # The server's side, which the other half completes

    def expire(self) -> None:
        """End what takes too long (Y-2); called once a second."""
        raise NotImplementedError

    def drain(self) -> None:
        """The server stops: leave now if nothing is under way (S-6)."""
        raise NotImplementedError

    def cut(self) -> None:
        """The server's grace is over."""
        raise NotImplementedError

    def abort(self) -> None:
        """End without waiting for what is still to be written."""
        self._transport.abort()
