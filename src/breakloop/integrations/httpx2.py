"""Transports for httpx2: `transport` in the words of httpx's successor, whose classes are its own. The SDKs of OpenAI
and Anthropic take one by `http_client=httpx2.Client(transport=GuardTransport())`."""

from __future__ import annotations

from typing import Final

import httpx2

from breakloop.sdk import http
from breakloop.sdk.guard import Guard


class _Stream(http.TappedStream, httpx2.SyncByteStream):
    pass


class _AsyncStream(http.AsyncTappedStream, httpx2.AsyncByteStream):
    pass


_KINDS: Final = http.HttpxClasses(httpx2.Response, httpx2.SyncByteStream, _Stream)
_ASYNC_KINDS: Final = http.HttpxClasses(httpx2.Response, httpx2.AsyncByteStream, _AsyncStream)


class GuardTransport(httpx2.BaseTransport):
    """Judges what passes through `transport`: `httpx2.Client(transport=GuardTransport())`."""

    def __init__(self, transport: httpx2.BaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx2.HTTPTransport()
        self.guard = guard or Guard()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Judge a request; answer it in the server's stead, or send it on."""
        answer: httpx2.Response = http.send_guarded(self.guard, request, self._transport.handle_request, _KINDS)
        return answer

    def close(self) -> None:
        """Close the transport behind it."""
        self._transport.close()


class AsyncGuardTransport(httpx2.AsyncBaseTransport):
    """The same for `httpx2.AsyncClient`."""

    def __init__(self, transport: httpx2.AsyncBaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx2.AsyncHTTPTransport()
        self.guard = guard or Guard()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Judge a request; answer it in the server's stead, or send it on."""
        send = self._transport.handle_async_request
        answer: httpx2.Response = await http.asend_guarded(self.guard, request, send, _ASYNC_KINDS)
        return answer

    async def aclose(self) -> None:
        """Close the transport behind it."""
        await self._transport.aclose()
