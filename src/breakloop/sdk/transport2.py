"""Transports for httpx2: `transport` in the words of httpx's successor, whose classes are its own. The SDKs of OpenAI
and Anthropic take one by `http_client=httpx2.Client(transport=BreakloopTransport())`."""

from __future__ import annotations

import httpx2

from breakloop.model.answer import NO_ANSWER, Answer
from breakloop.model.decision import Decision
from breakloop.sdk import exchange
from breakloop.sdk.guard import Guard
from breakloop.sdk.rendering import denied


class _Stream(exchange.Tapped, httpx2.SyncByteStream):
    pass


class _AsyncStream(exchange.AsyncTapped, httpx2.AsyncByteStream):
    pass


class BreakloopTransport(httpx2.BaseTransport):
    """Judges what passes through `transport`: `httpx2.Client(transport=BreakloopTransport())`."""

    def __init__(self, transport: httpx2.BaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx2.HTTPTransport()
        self.guard = guard or Guard()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Judge a request; answer it in the server's stead, or send it on."""
        body = request.read() if exchange.wants_body(request) else b""
        decision = self.guard.judge(exchange.call_of(request, body))
        if not decision.allowed:
            return _denied(request, decision)
        self.guard.wait(decision)
        noted = exchange.steered(decision)
        try:
            response = self._transport.handle_request(request if noted is None else exchange.changed(request, noted))
        except BaseException:
            self.guard.settle(decision, Answer(NO_ANSWER))
            raise
        along = exchange.reading(self.guard, decision, response)
        if response.is_closed:
            along.end(complete=True)
        elif isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _Stream(response.stream, along)
        return response

    def close(self) -> None:
        """Close the transport behind it."""
        self._transport.close()


class AsyncBreakloopTransport(httpx2.AsyncBaseTransport):
    """The same for `httpx2.AsyncClient`."""

    def __init__(self, transport: httpx2.AsyncBaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx2.AsyncHTTPTransport()
        self.guard = guard or Guard()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Judge a request; answer it in the server's stead, or send it on."""
        body = await request.aread() if exchange.wants_body(request) else b""
        decision = await self.guard.ajudge(exchange.call_of(request, body))
        if not decision.allowed:
            return _denied(request, decision)
        await self.guard.await_(decision)
        noted = exchange.steered(decision)
        sent = request if noted is None else exchange.changed(request, noted)
        try:
            response = await self._transport.handle_async_request(sent)
        except BaseException:
            await self.guard.asettle(decision, Answer(NO_ANSWER))
            raise
        along = exchange.reading(self.guard, decision, response)
        if response.is_closed:
            await along.aend(complete=True)
        elif isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _AsyncStream(response.stream, along)
        return response

    async def aclose(self) -> None:
        """Close the transport behind it."""
        await self._transport.aclose()


def _denied(request: httpx2.Request, decision: Decision) -> httpx2.Response:
    status, headers, body = denied(decision)
    return httpx2.Response(status, headers=headers, content=body, request=request)
