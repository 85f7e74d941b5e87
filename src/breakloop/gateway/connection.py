"""One client connection: requests to the handler, replies out, strictly in order and one at a time.

Cutting bytes into requests is `incoming`'s work, listening and shutting down `server`'s. No timer runs per request:
the server's sweep calls `expire`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import cast

from breakloop.errors import RequestError
from breakloop.gateway.head import CLOSE, Reply, Request
from breakloop.gateway.hub import Hub, Phase
from breakloop.gateway.incoming import Incoming
from breakloop.gateway.reply import CONTINUE, error_reply, render, render_refusal

_LINGER_BYTES = 1024 * 1024


_IDLE, _HEAD, _BODY, _WAITING, _QUEUED, _LINGERING, _CLOSED = Phase  # module names cost less than enum members


async def _result(reply: Awaitable[Reply]) -> Reply:
    return await reply


class Connection(asyncio.Protocol):
    """The protocol object of one client."""

    __slots__ = (
        "_blocked", "_discarded", "_handle", "_held", "_hub", "_incoming", "_limits", "_lines", "_parse", "_peer",
        "_pending", "_reading", "_stamp", "_transport", "phase",
    )  # fmt: skip

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._handle = hub.handler
        self._parse = hub.heads.parse
        self._lines = hub.lines
        self._limits = hub.limits
        self._incoming = Incoming(hub.heads, hub.limits, hub.room)
        self._transport = cast("asyncio.Transport", None)  # comes with connection_made
        self._peer = ""
        self.phase = _IDLE
        self._stamp = hub.tick  # when the phase began or last made progress
        self._pending: asyncio.TimerHandle | asyncio.Task[Reply] | None = None
        self._held: tuple[Request, Reply] | None = None  # a throttled reply
        self._reading = True
        self._blocked = False  # the client does not read its answers
        self._discarded = 0  # bytes, while lingering

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or close it at once when there are too many (Y-2)."""
        self._transport = cast("asyncio.Transport", transport)
        hub = self._hub
        if len(hub.live) >= hub.limits.connections or hub.draining:
            hub.refused += 1
            self.phase = _CLOSED
            self._transport.abort()
            return
        hub.connections += 1
        hub.live.add(self)
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""

    def data_received(self, data: bytes) -> None:
        """Hand over what came; it is used when everything of this turn has been read."""
        self._hub.received(self, data)

    def take(self, data: bytes) -> None:
        """Use what came. One whole request alone in one segment, the usual case, takes the short way."""
        if self.phase is _IDLE:
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
                        self._dispatch(request)
                        return
        self._receive(data)

    def eof_received(self) -> bool:
        """A half-closed connection counts as closed: nobody waits for a throttled reply any more (E-6)."""
        self._hub.answer()  # what came before the end is a request like any other
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Free everything that was held for this client."""
        self._leave()
        self._hub.gone(self)

    def pause_writing(self) -> None:
        """Stop reading requests while the client does not read answers."""
        self._blocked = True
        self._stamp = self._hub.tick
        self._update_reading()

    def resume_writing(self) -> None:
        """Carry on where `pause_writing` stopped."""
        self._blocked = False
        self._stamp = self._hub.tick
        if self.phase < _WAITING:
            self._advance()
        self._update_reading()

    def _receive(self, data: bytes) -> None:
        if self.phase is _LINGERING:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self._close()
        elif self.phase is not _CLOSED:
            self._incoming.push(data)
            if self.phase < _WAITING:
                self._advance()
            self._update_reading()

    def _advance(self) -> None:
        """Answer what is complete, until a reply has to wait or this connection's turn is over."""
        try:
            for _ in range(self._limits.pipelined):
                request = None if self._blocked else self._incoming.next(self._peer)
                if request is None:
                    self._want_more()
                    break
                self.phase = _IDLE
                self._dispatch(request)
                self._hub.send()  # before the next: whether this client reads its answers is known only then
                if self.phase is not _IDLE:
                    break
            else:
                self.phase = _QUEUED
                self._hub.loop.call_soon(self._take_turn)
        except RequestError as error:
            self._refuse(error)
        self._incoming.compact()

    def _take_turn(self) -> None:
        if self.phase is _QUEUED:
            self.phase = _IDLE
            self._advance()
            self._update_reading()

    def _want_more(self) -> None:
        """The request in the buffer is incomplete: note what is missing and since when."""
        if self._incoming.body is not None:
            self.phase = _BODY
            self._stamp = self._hub.tick
            if self._incoming.continue_due:
                self._incoming.continue_due = False
                self._write(CONTINUE)
        elif self.phase is _IDLE and len(self._incoming):
            self.phase = _HEAD
            self._stamp = self._hub.tick

    def _dispatch(self, request: Request) -> None:
        self._hub.requests += 1
        try:
            reply = self._handle(request)
        except RequestError as error:
            reply = error_reply(error.status, str(error))
        except Exception as error:  # noqa: BLE001 - the outermost edge: one broken request must not end the process
            reply = self._hub.handler_failed(error)
        if isinstance(reply, Reply) and reply.delay_s <= 0:
            self._send(request, reply)
        else:
            self._wait(request, reply)

    def _wait(self, request: Request, reply: Reply | Awaitable[Reply]) -> None:
        """Hold the reply until its time; its timer or task ends at once if the client leaves (E-6)."""
        self.phase = _WAITING
        if not isinstance(reply, Reply):
            task = self._hub.loop.create_task(_result(reply))
            task.add_done_callback(partial(self._finished, request))
            self._pending = task
        elif reply.delay_s > 0:
            self._held = (request, reply)
            self._pending = self._hub.loop.call_later(reply.delay_s, self._release, request, reply)
        else:
            self._release(request, reply)

    def _finished(self, request: Request, task: asyncio.Task[Reply]) -> None:
        if self.phase is not _WAITING:
            return  # the client left first
        try:
            reply = task.result()
        except RequestError as error:
            reply = error_reply(error.status, str(error))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the outermost edge, as in `_dispatch`
            reply = self._hub.handler_failed(error)
        self._wait(request, reply)

    def _release(self, request: Request, reply: Reply) -> None:
        """The time of a held reply has come: send it and go on with what the client sent meanwhile."""
        self._pending = self._held = None
        self.phase = _IDLE
        self._send(request, reply)
        if self.phase is _IDLE:
            self._advance()
        self._update_reading()

    def _send(self, request: Request, reply: Reply) -> None:
        hub = self._hub
        self._stamp = hub.tick
        connection = CLOSE if hub.draining else request.connection
        data = render(self._lines, reply, connection, request.method)
        if hub.answering:
            hub.post(self._transport, data)
        else:
            self._write(data)
        if connection is CLOSE:
            self._close()

    def _write(self, data: bytes) -> None:
        self._hub.send()
        if not self._transport.is_closing():  # uvloop raises on a write after close
            self._transport.write(data)

    def _refuse(self, error: RequestError) -> None:
        """Answer, and end the connection without destroying the answer (see `Phase.LINGERING`)."""
        self._hub.bad_requests += 1
        self._write(render_refusal(self._lines, error.status, str(error)))
        self._incoming.clear()
        self.phase = _LINGERING
        self._stamp = self._hub.tick
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        else:
            self._close()

    def _leave(self) -> None:
        """The client is gone: free its timer or task at once."""
        if self._pending is not None:
            self._hub.abandoned += 1
            self._pending.cancel()
            self._pending = self._held = None
        self._incoming.clear()
        self.phase = _CLOSED

    def _close(self) -> None:
        self._hub.send()
        self._incoming.clear()
        self.phase = _CLOSED
        self._stamp = self._hub.tick
        self._transport.close()

    def _update_reading(self) -> None:
        """Read unless answers pile up, or too much has piled up behind a reply that waits."""
        limits = self._limits
        wanted = not self._blocked and len(self._incoming) <= max(limits.backlog_bytes, limits.head_bytes)
        if wanted is not self._reading and self.phase is not _CLOSED:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # The server's side

    def expire(self) -> None:
        """End what takes too long (Y-2); called once a second."""
        age, limits, phase = self._hub.tick - self._stamp, self._limits, self.phase
        if self._blocked or phase is _CLOSED:  # closed by us, but the client does not read the rest
            if age > limits.body_s:
                self._hub.timeouts += 1
                self._transport.abort()
        elif phase is _IDLE or phase is _LINGERING:
            if age > (limits.idle_s if phase is _IDLE else limits.linger_s):
                self._close()
        elif phase in (_HEAD, _BODY) and age > (limits.head_s if phase is _HEAD else limits.body_s):
            self._hub.timeouts += 1
            self._refuse(RequestError(408, "the request did not arrive in time"))

    def drain(self) -> None:
        """The server stops: leave now if nothing is under way (S-6)."""
        if self.phase in (_IDLE, _LINGERING):
            self._close()

    def cut(self) -> None:
        """The server's grace is over: a throttled reply goes out now, anything else ends unanswered."""
        if self._held is not None and self._pending is not None:
            self._pending.cancel()
            self._release(*self._held)
        self._leave()
        self._transport.close()

    def abort(self) -> None:
        """End without waiting for what is still to be written."""
        self._transport.abort()
