"""What is told of upstreams that fail."""

from __future__ import annotations

from typing import Any

from breakloop.clock import FakeClock
from breakloop.gateway.upstream import UpstreamFaults
from breakloop.model.call import Call
from breakloop.model.events import UPSTREAM_FAILED, Event


def call(upstream: str = "openai", request_id: str = "r-1") -> Call:
    return Call("POST", "/v1/x", "h", "", {}, "192.0.2.1", b"", request_id=request_id, upstream=upstream)


def data(events: list[Event]) -> list[dict[str, Any]]:
    return [dict(event.data) for event in events]


def test_an_outage_is_told_once_in_ten_seconds(clock: FakeClock) -> None:
    """The first at once, and how many more there were; what comes later begins anew (G-2)."""
    events: list[Event] = []
    faults = UpstreamFaults(events.append, clock)
    for number in range(5):
        faults.record(call(request_id=f"r-{number}"), 502, "refused the connection")
    assert [(one.name, one.at, one.request_id) for one in events] == [(UPSTREAM_FAILED, clock.now(), "r-0")]
    assert data(events) == [{"upstream": "openai", "cause": "refused the connection", "status": 502}]
    clock.advance(9)
    faults.sweep()
    assert len(events) == 1
    clock.advance(1)
    faults.sweep()
    assert data(events[1:]) == [{**events[0].data, "left_out": 3}]
    assert events[1].request_id == "r-4"
    faults.record(call(), 502, "refused the connection")
    clock.advance(10)
    faults.sweep()
    assert data(events[2:]) == [events[0].data]


def test_upstreams_and_causes_are_told_apart(clock: FakeClock) -> None:
    """And there are not more of them than a bound (G-2)."""
    events: list[Event] = []
    faults = UpstreamFaults(events.append, clock)
    faults.record(call(), 502, "refused the connection")
    faults.record(call("anthropic"), 502, "refused the connection")
    faults.record(call(), 504, "did not respond in time")
    assert [(one["upstream"], one["status"]) for one in data(events)] == [
        ("openai", 502), ("anthropic", 502), ("openai", 504)
    ]  # fmt: skip
    for number in range(200):
        faults.record(call(), 502, f"cause {number}")
    assert len(events) == 100


def test_a_clock_that_was_set_back_silences_nobody(clock: FakeClock) -> None:
    events: list[Event] = []
    faults = UpstreamFaults(events.append, clock)
    faults.record(call(), 502, "x")
    clock.advance(-1000)
    faults.sweep()
    faults.record(call(), 502, "x")
    assert len(events) == 2
