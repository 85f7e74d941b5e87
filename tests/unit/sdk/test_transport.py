"""The transports for httpx."""

from __future__ import annotations

import httpx

from breakloop.sdk import transport
from tests.unit.sdk.transports import Suite


class TestHttpx(Suite):
    module = httpx
    kit = transport
