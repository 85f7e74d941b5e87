"""Transports for httpx:

    from breakloop.integrations.httpx import GuardTransport
    client = httpx.Client(transport=GuardTransport())

LLM requests of the client are checked in process, wherever they go. A denial is the response that a gateway would send.
`breakloop.integrations.httpx2` is the same for httpx2, which the SDKs of OpenAI and Anthropic use.
"""

from __future__ import annotations

import httpx

from breakloop.sdk.http import AsyncGuardedTransport, GuardedTransport

__all__ = ["AsyncGuardTransport", "GuardTransport"]


class GuardTransport(GuardedTransport[httpx.BaseTransport], httpx.BaseTransport):
    """Checks the requests that pass through `transport`: `httpx.Client(transport=GuardTransport())`."""

    _library = httpx


class AsyncGuardTransport(AsyncGuardedTransport[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`: `httpx.AsyncClient(transport=AsyncGuardTransport())`."""

    _library = httpx
