"""Kill switches: who, where, until when, and which of several."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from breakloop.model.call import Call
from breakloop.policy.compiled import CompiledKillSwitch, KillSwitches
from tests.builders import at, bundle, call, world


def getter(name: str) -> Callable[[Call], str | None]:
    return lambda call: call.header(name.removeprefix("header:"))


def find(*switches: CompiledKillSwitch, path: str = "/v1/x", now: float = 100.0, **headers: str) -> int | None:
    """Index of the switch that stops a call, or None."""
    found = KillSwitches(switches, getter).find(call(path, headers=headers), now)
    return None if found is None else found.index


@pytest.mark.parametrize(
    ("route", "path", "stopped"),
    [
        ("", "/anything", True),
        ("/v1/x", "/v1/x", True),
        ("/v1/x", "/v1/x/", False),
        ("/v1/x", "/v1/xy", False),
        ("/v1/*", "/v1/x", True),
        ("/v1/*", "/v1/", True),
        ("/v1/*", "/v1", False),
        ("/v1/x*", "/v1/xy", True),
        ("/*", "/", True),
    ],
)
def test_routes_are_exact_or_a_prefix(route: str, path: str, stopped: bool) -> None:
    """`route` is exact, or a prefix where it ends in `*` (K-2)."""
    assert (find(CompiledKillSwitch(0, "header:a", "1", route), path=path, a="1") == 0) is stopped


def test_the_value_has_to_be_equal() -> None:
    """Exactly, and a missing descriptor is equal to nothing (K-2)."""
    switch = CompiledKillSwitch(0, "header:a", "1")
    assert find(switch, a="1") == 0
    assert find(switch, a="11") is None
    assert find(switch, b="1") is None


def test_expired_switches_are_skipped() -> None:
    """From the very moment on (K-2)."""
    switch = CompiledKillSwitch(0, "header:a", "1", expires=100.0)
    assert find(switch, now=99.9, a="1") == 0
    assert find(switch, now=100.0, a="1") is None
    assert find(switch, CompiledKillSwitch(1, "header:a", "1"), now=100.0, a="1") == 1


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0), (2, 3, 0, 1)])
def test_the_first_of_the_bundle_wins(order: tuple[int, ...]) -> None:
    """First match in the order of the bundle, across descriptors and values (K-2)."""
    kinds = [("header:a", ""), ("header:b", ""), ("header:a", "/v1/*"), ("header:c", "")]
    switches = [CompiledKillSwitch(index, kinds[kind][0], "1", kinds[kind][1]) for index, kind in enumerate(order)]
    assert find(*switches, a="1", b="1", c="1") == 0
    assert find(*switches, path="/v2", a="1", b="1", c="1") == (1 if order[0] == 2 else 0)
    assert find(*switches, b="1", c="2") == order.index(1)


@pytest.mark.parametrize(
    ("expires", "seconds"),
    [(math.inf, 3600), (100.0 + 3600, 3600), (100.0 + 3599.2, 3600), (100.0 + 60, 60), (100.0 + 0.01, 1)],
)
def test_retry_after_is_an_hour_or_less(expires: float, seconds: int) -> None:
    """`Retry-After: 3600`, less if it expires sooner, rounded up (K-2)."""
    assert CompiledKillSwitch(0, "header:a", "1", expires=expires).retry_after_s(100.0) == seconds


def test_a_bundles_switches_in_force() -> None:
    """Through the engine: the agent is stopped everywhere under its route, until the switch expires (K-2)."""
    switch = {"scope_key": "agent:id", "scope_value": "crawler", "route": "/v1/*", "expires_at": at(60)}
    here = world(bundle(kill_switches=[switch]))
    bad = call("/v1/x", path_agent="crawler")
    assert here.decide(bad).retry_after_s == 60
    assert here.decide(call("/v2", path_agent="crawler")).allowed
    assert here.decide(call("/v1/x", path_agent="writer")).allowed
    here.clock.advance(60)
    assert here.decide(bad).allowed


def test_those_that_are_added_come_after() -> None:
    """The first match wins, whichever descriptor it looks at (K-2)."""
    own = [CompiledKillSwitch(0, "header:x-a", "1"), CompiledKillSwitch(1, "header:x-b", "1")]
    added = [CompiledKillSwitch(0, "header:x-c", "1", id="c"), CompiledKillSwitch(0, "header:x-d", "1", id="d")]
    all_of_them = KillSwitches(own, getter).with_more(added)
    assert all_of_them.keys == {"header:x-a", "header:x-b", "header:x-c", "header:x-d"}

    def name(*headers: str) -> str:
        found = all_of_them.find(call(headers=dict.fromkeys(headers, "1")), 0.0)
        assert found is not None
        return found.name

    assert name("x-b", "x-c") == "kill_switches[1]"
    assert name("x-d", "x-c") == "kill_switch/c"
    assert name("x-d") == "kill_switch/d"


def test_a_switch_by_its_scope() -> None:
    """For people who ask whether a name is stopped as a whole: the first that lives and has no route (K-2)."""
    over, routed = (
        CompiledKillSwitch(0, "agent:id", "a", expires=5.0),
        CompiledKillSwitch(1, "agent:id", "a", route="/v1/x"),
    )
    whole = CompiledKillSwitch(2, "agent:id", "a")
    switches = KillSwitches([over, routed, whole], getter)
    assert switches.named("agent:id", "a", 9.0) is whole
    assert switches.named("agent:id", "a", 4.0) is over
    assert switches.named("agent:id", "b", 9.0) is None
