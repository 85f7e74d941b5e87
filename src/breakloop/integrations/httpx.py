"""Transports for httpx:

    from breakloop.integrations.httpx import GuardTransport
    client = httpx.Client(transport=GuardTransport())

LLM requests of the client are checked in process, wherever they go. A denial is the response that a gateway would send.
`breakloop.integrations.httpx2` is the same for httpx2, which the SDKs of OpenAI and Anthropic use.
"""

from __future__ import annotations

from typing import Final

import httpx

from breakloop.sdk import http
from breakloop.sdk.guard import Guard
from breakloop.sdk.toolkit import toolkit_of

__all__ = ["AsyncGuardTransport", "GuardTransport"]


class _Stream(http.TappedStream, httpx.SyncByteStream):
    pass


class _AsyncStream(http.AsyncTappedStream, httpx.AsyncByteStream):
    pass


_CLASSES: Final = http.HttpxClasses(httpx.Response, httpx.SyncByteStream, _Stream)
_ASYNC_CLASSES: Final = http.HttpxClasses(httpx.Response, httpx.AsyncByteStream, _AsyncStream)


class GuardTransport(httpx.BaseTransport):
    """Checks the requests that pass through `transport`: `httpx.Client(transport=GuardTransport())`."""

    def __init__(self, transport: httpx.BaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx.HTTPTransport()
        self.guard = guard or Guard()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        send = self._transport.handle_request
        response: httpx.Response = http.send_guarded(toolkit_of(self.guard), request, send, _CLASSES)
        return response

    def close(self) -> None:
        self._transport.close()


class AsyncGuardTransport(httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`: `httpx.AsyncClient(transport=AsyncGuardTransport())`."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None, *, guard: Guard | None = None) -> None:
        self._transport = transport or httpx.AsyncHTTPTransport()
        self.guard = guard or Guard()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        send = self._transport.handle_async_request
        response: httpx.Response = await http.asend_guarded(toolkit_of(self.guard), request, send, _ASYNC_CLASSES)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()
