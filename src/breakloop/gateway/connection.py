"""One client connection: requests to the handler, replies and forwarded answers out, in order and one at a time.

How requests are received is `receiving`'s, listening and shutting down `server`'s, the way to an upstream and back
`exchange`'s. No timer runs per request: the server's sweep calls `expire`.

The receiving half of a client's connection: bytes become requests, strictly in order and one at a time; what cannot
be a request is refused. Answering is `connection`'s half, cutting bytes into requests `incoming`'s work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final, cast

from breakloop.errors import RequestError
from breakloop.gateway.exchange import DeferredReply, Exchange, Made
from breakloop.gateway.http_request import CLOSE, Reply, Request
from breakloop.gateway.http_response import CONTINUE, error_reply, render, render_refusal
from breakloop.gateway.hub import IncomingBody, LoopTurn, Phase
from breakloop.gateway.upstream import has_left, reset

_LINGER_BYTES: Final = 1024 * 1024

# module names cost less than enum members
IDLE, HEAD, BODY, WAITING, QUEUED, LINGERING, CLOSED = Phase


class Receiving(asyncio.Protocol):
    """Takes requests out of the stream and hands them to `dispatch`."""

    __slots__ = (
        "_blocked", "_discarded", "_hub", "_incoming", "_limits", "_parse", "_peer", "_reading", "_stamp", "_transport",
        "phase",
    )  # fmt: skip

    def __init__(self, hub: LoopTurn) -> None:
        self._hub = hub
        self._parse = hub.heads.parse
        self._limits = hub.limits
        self._incoming = IncomingBody(hub.heads, hub.limits, hub.room, hub.streams)
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


async def _result(reply: Awaitable[Reply]) -> Reply:
    return await reply


class Connection(Receiving):
    """The protocol object of one client."""

    __slots__ = ("_exchange", "_handle", "_held", "_held_upload", "_lines", "_pending", "_unsent")

    def __init__(self, hub: LoopTurn) -> None:
        super().__init__(hub)
        self._handle = hub.handler
        self._lines = hub.lines
        self._pending: asyncio.TimerHandle | asyncio.Task[Reply] | DeferredReply | None = None
        self._held: tuple[Request, Reply] | None = None  # a throttled reply
        self._exchange: Exchange | None = None  # a request that was forwarded
        self._held_upload = False
        self._unsent = 0  # bytes, when it was looked at last

    # The transport's side

    def pause_writing(self) -> None:
        """Stop reading requests, and the upstream's answer, while the client does not read."""
        self._blocked = True
        self._stamp = self._hub.tick
        if self._exchange is not None:
            self._exchange.pause()
        self.update_reading()

    def resume_writing(self) -> None:
        """Carry on where `pause_writing` stopped."""
        self._blocked = False
        self._stamp = self._hub.tick
        if self._exchange is not None:
            self._exchange.resume()
        if self.phase < WAITING:
            self.advance()
        self.update_reading()

    def leave(self) -> None:
        """The client is gone: free its timer, task or upstream at once."""
        if self._pending is not None:
            self._hub.abandoned += 1
            self._pending.cancel()
            self._pending = self._held = None
        if self._exchange is not None:
            self._hub.abandoned += 1
            exchange, self._exchange = self._exchange, None
            exchange.cancel()
        super().leave()

    # Answers

    def dispatch(self, request: Request) -> None:
        """Ask the handler, and send what it says or wait for it."""
        self._hub.requests += 1
        try:
            reply = self._handle(request)
            if type(reply) is DeferredReply and reply.make is not None:
                reply = reply.make()
        except RequestError as error:
            reply = error_reply(error.status, str(error))
        except Exception as error:  # noqa: BLE001 - the outermost edge: one broken request must not end the process
            reply = self._hub.handler_failed(error)
        if type(reply) is Exchange:
            self._forward(request, reply)
        elif isinstance(reply, Reply) and reply.delay_s <= 0:
            self._send(request, reply)
        elif type(reply) is DeferredReply:
            self.phase = WAITING
            self._pending = reply
            reply.wait(partial(self._decided, request))
        else:
            self._wait(request, reply)

    def _decided(self, request: Request, make: Made) -> None:
        """What was waited for is decided. The client is still there, or nobody would be told."""
        self._pending = None
        try:
            reply = make()
        except RequestError as error:
            reply = error_reply(error.status, str(error))
        except Exception as error:  # noqa: BLE001 - the outermost edge, as in `dispatch`
            reply = self._hub.handler_failed(error)
        if isinstance(reply, Exchange):
            self._forward(request, reply)
        else:
            self._wait(request, reply)

    def _wait(self, request: Request, reply: Reply | Awaitable[Reply]) -> None:
        """Hold the reply until its time; its timer or task ends at once if the client leaves (E-6)."""
        self.phase = WAITING
        if not isinstance(reply, Reply):
            task = self._hub.loop.create_task(_result(reply))
            task.add_done_callback(partial(self._finished, request))
            self._pending = task
        elif reply.delay_s > 0:
            self._held = (request, reply)
            self._pending = self._hub.loop.call_later(reply.delay_s, self.answer, request, reply)
        else:
            self.answer(request, reply)

    def _finished(self, request: Request, task: asyncio.Task[Reply]) -> None:
        if self.phase is not WAITING:
            return  # the client left first
        try:
            reply = task.result()
        except RequestError as error:
            reply = error_reply(error.status, str(error))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the outermost edge, as in `dispatch`
            reply = self._hub.handler_failed(error)
        self._wait(request, reply)

    def answer(self, request: Request, reply: Reply) -> None:
        """The time of a reply has come: send it and go on with what the client sent meanwhile."""
        self._pending = self._held = self._exchange = None
        self.phase = IDLE
        self._send(request, reply)
        self._go_on()

    def _send(self, request: Request, reply: Reply) -> None:
        hub = self._hub
        self._stamp = hub.tick
        uploading = self._incoming.body is not None and self._incoming.streaming
        connection = CLOSE if hub.draining or uploading else request.connection
        data = render(self._lines, reply, connection, request.method)
        if hub.answering:
            hub.post(self._transport, data)
        else:
            self.write(data)
        if uploading:
            self.linger()
        elif connection is CLOSE:
            self.close()

    def _go_on(self) -> None:
        if self.phase is IDLE:
            if len(self._incoming):
                self.advance()
            self.update_reading()

    # Forwarded answers: the exchange's side

    def _forward(self, request: Request, exchange: Exchange) -> None:
        self.phase = WAITING
        self._exchange = exchange
        exchange.start(self)
        if request.streamed and self._exchange is exchange:
            self.tell_to_continue()
            self.upload()

    def upload(self) -> None:
        """Pass on what has come of a body, unless the upstream cannot take it."""
        exchange = self._exchange
        if exchange is None or self._held_upload or not self._incoming.streaming:
            return
        try:
            piece, done = self._incoming.pump()
        except RequestError as error:
            self._exchange = None
            exchange.cancel()
            if exchange.began:
                self.abort()
            else:
                self.refuse(error)
            return
        exchange.upload(piece, done=done)

    def hold(self, *, hold: bool) -> None:
        """Stop passing on the upload, or go on."""
        self._held_upload = hold
        if not hold:
            self.upload()
            self.update_reading()

    def relay(self, data: bytes) -> None:
        """Send bytes of the upstream's answer."""
        hub = self._hub
        if hub.answering:
            hub.post(self._transport, data)
        elif not self._transport.is_closing():  # uvloop raises on a write after close
            self._transport.write(data)

    def reset(self) -> None:
        """End the connection so that nobody can take it for the proper end of an answer without a length."""
        self._hub.send()
        reset(self._transport)

    def relayed(self, *, close: bool) -> None:
        """The upstream's answer is complete."""
        self._exchange = None
        self._held_upload = False
        self._stamp = self._hub.tick
        self.phase = IDLE
        if self._incoming.streaming:
            self.linger()
        elif close or self._hub.draining:
            self.close()
        else:
            self._go_on()

    # The server's side

    def expire(self) -> None:
        """End what takes too long (Y-2); called once a second."""
        if not self._reading and has_left(self._transport):
            self.leave()
            self._transport.abort()
            return
        age, limits, phase = self._hub.tick - self._stamp, self._limits, self.phase
        if self._blocked or phase is CLOSED:  # closed by us, but the client does not read the rest
            unsent, before = self._transport.get_write_buffer_size(), self._unsent
            self._unsent = unsent
            if unsent < before:
                self._stamp = self._hub.tick  # slow is not gone
            elif age > limits.body_s:
                self._hub.timeouts += 1
                self.reset()
        elif phase is IDLE or phase is LINGERING:
            if age > (limits.idle_s if phase is IDLE else limits.linger_s):
                self.close()
        elif self._exchange is not None:
            self._exchange.expire()
        elif phase in (HEAD, BODY) and age > (limits.head_s if phase is HEAD else limits.body_s):
            self._hub.timeouts += 1
            self.refuse(RequestError(408, "the request did not arrive in time"))

    def drain(self) -> None:
        """The server stops: leave now if nothing is under way (S-6)."""
        if self.phase in (IDLE, LINGERING):
            self.close()

    def cut(self) -> None:
        """The server's grace is over: a throttled reply goes out now, anything else ends unanswered."""
        forwarded = self._exchange is not None
        if self._held is not None and self._pending is not None:
            self._pending.cancel()
            self.answer(*self._held)
        self.leave()
        if forwarded:
            self.reset()  # a clean end would make a cut answer look whole
        else:
            self._transport.close()
