"""What the drop-in clients share."""

from __future__ import annotations

import httpx2
import pytest

from breakloop.sdk.clients import client_options, denial_in, with_agent_headers
from breakloop.sdk.context import agent


def test_options_point_at_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody says otherwise; header fields that are given go before names (P-2)."""
    monkeypatch.setenv("BREAKLOOP_URL", "http://gate:1/")
    assert client_options({}, "/v1", "", "") == {"base_url": "http://gate:1/v1"}
    assert client_options({"base_url": "http://own"}, "/v1", "", "")["base_url"] == "http://own"
    made = client_options({"default_headers": {"X-Agent-Id": "mine", "X": "y"}}, "", "a", "s")
    assert made["default_headers"] == {"X-Agent-Id": "mine", "X-Agent-Session": "s", "X": "y"}


def test_names_of_the_block_around() -> None:
    """Where the client has none of its own (C-7)."""
    with agent("a", session="s"):
        assert with_agent_headers({"X-Agent-Id": "own"}) == {"X-Agent-Id": "own", "X-Agent-Session": "s"}
    assert with_agent_headers({}) == {}


def test_which_errors_are_denials() -> None:
    """By our header field; what cannot be read any more is the SDK's (P-2)."""
    ours = httpx2.Response(429, headers={"X-Breakloop-Reason": "loop_detected"}, json={"detail": {"hit_count": 6}})
    decision = denial_in(ours)
    assert decision is not None
    assert (decision.is_loop, decision.hit_count) == (True, 6)
    assert denial_in(httpx2.Response(429, json={"error": {}})) is None

    closed = httpx2.Response(429, headers={"X-Breakloop-Reason": "x"}, content=iter([b"x"]))
    closed.close()
    assert denial_in(closed) is None
