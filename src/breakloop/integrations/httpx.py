"""Transports for httpx: LLM requests of a client are judged in process, wherever they go. A denial comes back as the
answer that a gateway would give. `transport2` is the same for httpx2, which the SDKs of OpenAI and Anthropic use."""

from __future__ import annotations

from typing import Final

import httpx

from breakloop.sdk import http
from breakloop.sdk.guard import Guard


class _Stream(http.TappedStream, httpx.SyncByteStream):
    pass


class _AsyncStream(http.AsyncTappedStream, httpx.AsyncByteStream):
    pass


_KINDS: Final = http.HttpxClasses(httpx.Response, httpx.SyncByteStream, _Stream)
_ASYNC_KINDS: Final = http.HttpxClasses(httpx.Response, httpx.AsyncByteStream, _AsyncStream)


class GuardTransport(httpx.BaseTransport):
    """Judges what passes through `transport`: `httpx.Client(transport=GuardTransport())`."""

    def __init__(self, transport: httpx.BaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx.HTTPTransport()
        self.guard = guard or Guard()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Judge a request; answer it in the server's stead, or send it on."""
        answer: httpx.Response = http.send_guarded(self.guard, request, self._transport.handle_request, _KINDS)
        return answer

    def close(self) -> None:
        """Close the transport behind it."""
        self._transport.close()


class AsyncGuardTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport()
        self.guard = guard or Guard()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Judge a request; answer it in the server's stead, or send it on."""
        send = self._transport.handle_async_request
        answer: httpx.Response = await http.asend_guarded(self.guard, request, send, _ASYNC_KINDS)
        return answer

    async def aclose(self) -> None:
        """Close the transport behind it."""
        await self._transport.aclose()
