"""Transports for httpx2, the successor of httpx:

    from breakloop.integrations.httpx2 import GuardTransport
    client = httpx2.Client(transport=GuardTransport())

LLM requests of the client are checked in process, wherever they go. A denial is the response that a gateway would send.
The SDKs of OpenAI and Anthropic take such a client as `http_client`.
"""

from __future__ import annotations

from typing import Final

import httpx2

from breakloop.sdk import http
from breakloop.sdk.guard import Guard
from breakloop.sdk.toolkit import toolkit_of

__all__ = ["AsyncGuardTransport", "GuardTransport"]


class _Stream(http.TappedStream, httpx2.SyncByteStream):
    pass


class _AsyncStream(http.AsyncTappedStream, httpx2.AsyncByteStream):
    pass


_CLASSES: Final = http.HttpxClasses(httpx2.Response, httpx2.SyncByteStream, _Stream)
_ASYNC_CLASSES: Final = http.HttpxClasses(httpx2.Response, httpx2.AsyncByteStream, _AsyncStream)


class GuardTransport(httpx2.BaseTransport):
    """Checks the requests that pass through `transport`: `httpx2.Client(transport=GuardTransport())`."""

    def __init__(self, transport: httpx2.BaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx2.HTTPTransport()
        self.guard = guard or Guard()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        send = self._transport.handle_request
        response: httpx2.Response = http.send_guarded(toolkit_of(self.guard), request, send, _CLASSES)
        return response

    def close(self) -> None:
        self._transport.close()


class AsyncGuardTransport(httpx2.AsyncBaseTransport):
    """The same for `httpx2.AsyncClient`: `httpx2.AsyncClient(transport=AsyncGuardTransport())`."""

    def __init__(self, transport: httpx2.AsyncBaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx2.AsyncHTTPTransport()
        self.guard = guard or Guard()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        send = self._transport.handle_async_request
        response: httpx2.Response = await http.asend_guarded(toolkit_of(self.guard), request, send, _ASYNC_CLASSES)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()
