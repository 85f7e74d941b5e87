"""The transports for httpx."""

from __future__ import annotations

import httpx

from breakloop.integrations import httpx as transport
from tests.unit.sdk.transports import Suite


class TestHttpx(Suite):
    module = httpx
    kit = transport
