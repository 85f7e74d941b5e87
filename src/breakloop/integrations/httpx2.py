"""Transports for httpx2, the successor of httpx:

    from breakloop.integrations.httpx2 import GuardTransport
    client = httpx2.Client(transport=GuardTransport())

LLM requests of the client are checked in process, wherever they go. A denial is the response that a gateway would send.
The SDKs of OpenAI and Anthropic take such a client as `http_client`.
"""

from __future__ import annotations

import httpx2

from breakloop.sdk.http import AsyncGuardedTransport, GuardedTransport

__all__ = ["AsyncGuardTransport", "GuardTransport"]


class GuardTransport(GuardedTransport[httpx2.BaseTransport], httpx2.BaseTransport):
    """Checks the requests that pass through `transport`: `httpx2.Client(transport=GuardTransport())`."""

    _library = httpx2


class AsyncGuardTransport(AsyncGuardedTransport[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport):
    """The same for `httpx2.AsyncClient`: `httpx2.AsyncClient(transport=AsyncGuardTransport())`."""

    _library = httpx2
