"""One client connection: requests to the handler, replies and forwarded answers out, in order and one at a time.

How requests are received is `receiving`'s, listening and shutting down `server`'s, the way to an upstream and back
`exchange`'s. No timer runs per request: the server's sweep calls `expire`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial

from breakloop.errors import RequestError
from breakloop.gateway.exchange import Exchange
from breakloop.gateway.head import CLOSE, Reply, Request
from breakloop.gateway.hub import Hub
from breakloop.gateway.pending import Made, Pending
from breakloop.gateway.receiving import BODY, CLOSED, HEAD, IDLE, LINGERING, WAITING, Receiving
from breakloop.gateway.reply import error_reply, render
from breakloop.gateway.sockets import has_left, reset


async def _result(reply: Awaitable[Reply]) -> Reply:
    return await reply


class Connection(Receiving):
    """The protocol object of one client."""

    __slots__ = ("_exchange", "_handle", "_held", "_held_upload", "_lines", "_pending", "_unsent")

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self._handle = hub.handler
        self._lines = hub.lines
        self._pending: asyncio.TimerHandle | asyncio.Task[Reply] | Pending | None = None
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
            if type(reply) is Pending and reply.make is not None:
                reply = reply.make()
        except RequestError as error:
            reply = error_reply(error.status, str(error))
        except Exception as error:  # noqa: BLE001 - the outermost edge: one broken request must not end the process
            reply = self._hub.handler_failed(error)
        if type(reply) is Exchange:
            self._forward(request, reply)
        elif isinstance(reply, Reply) and reply.delay_s <= 0:
            self._send(request, reply)
        elif type(reply) is Pending:
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
