"""Allow lists on their own; through the engine they are in tests/unit/test_engine_loops.py."""

from __future__ import annotations

import math
from typing import Any

import pytest

from breakloop.detect.counting import AllowList, route_matches
from tests.builders import call
from tests.unit.detect.reading import Reader

WHO = Reader(caller_id="me", agent_id="bot")
NOBODY: dict[str, Any] = {"routes": {}, "agents": {}, "callers": {}, "tools": {}, "fingerprints": {}}


def covers(now: float = 0.0, called: str = "", **lists: Any) -> bool:
    return AllowList(**{**NOBODY, **lists}).covers(call("/v1/x", query=called), "f", WHO, now)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("routes", "/v1/*"), ("routes", "/v1/x"), ("agents", "bot"), ("callers", "me"), ("fingerprints", "f")],
)
def test_each_kind_and_its_expiry(kind: str, value: str) -> None:
    """Covered until the time, and not at it (LD-6)."""
    timed: dict[str, Any] = {kind: {value: 10.0}}
    assert covers(9.9, **timed)
    assert not covers(10.0, **timed)
    for_ever: dict[str, Any] = {kind: {value: math.inf}}
    assert covers(**for_ever)
    other: dict[str, Any] = {kind: {value + "x": math.inf}}
    assert not covers(**other)


def test_tools_need_all_of_them() -> None:
    """A call is covered only if every tool it names is listed and not expired, and it names one (LD-6)."""
    listed = {"search": math.inf, "read": 10.0}
    assert covers(called="search,read", tools=listed)
    assert not covers(10.0, called="search,read", tools=listed)
    assert not covers(called="search,write", tools=listed)
    assert not covers(called="", tools=listed)


def test_an_empty_list_says_nothing() -> None:
    """So that it costs nothing per request (LD-6)."""
    assert not AllowList(**NOBODY)
    assert not covers()
    for kind in NOBODY:
        assert AllowList(**{**NOBODY, kind: {"a": 1.0}})


@pytest.mark.parametrize(
    ("route", "path", "fits"),
    [("/a", "/a", True), ("/a", "/a/", False), ("/a*", "/ab", True), ("/a/*", "/a", False), ("/*", "/", True)],
)
def test_routes(route: str, path: str, fits: bool) -> None:
    """Exact, or a prefix ending in `*` (K-2, LD-6)."""
    assert route_matches(route, path) is fits
