"""What is counted off the path of a request."""

from __future__ import annotations

from breakloop.model.events import (
    LIMIT_EXCEEDED,
    LOOP_DETECTED,
    SHADOW_WOULD_REJECT,
    Activity,
    AgentUse,
    Event,
    LoopUse,
)
from breakloop.observe.metrics import EventCounters


def test_events_by_name_and_loops_by_kind() -> None:
    """What a dashboard asks first (G-5)."""
    counted = EventCounters()
    loop = {"kind": "exact", "action": "reject", "agent": "secret-agent", "shadow": False}
    counted.take([Event(LOOP_DETECTED, 1.0, loop), Event(LOOP_DETECTED, 2.0, loop)])
    counted.take([Event(LOOP_DETECTED, 3.0, {**loop, "shadow": True}), Event("bundle.loaded", 4.0, {})])
    counters = counted.values.values
    assert counters["breakloop_events_total"] == {("loop.detected",): 3, ("bundle.loaded",): 1}
    assert counters["breakloop_loops_total"] == {("exact", "reject", "false"): 2, ("exact", "reject", "true"): 1}
    assert "secret-agent" not in str(counters)


def test_denials_by_policy() -> None:
    """Denials by policy (G-5)."""
    counted = EventCounters()
    data = {"policy": "fair-use", "rule": "r", "reason": "tpm_exceeded"}
    counted.take([Event(LIMIT_EXCEEDED, 1.0, data), Event(SHADOW_WOULD_REJECT, 1.0, data)])
    counters = counted.values.values
    assert counters["breakloop_limit_denials_total"] == {("fair-use", "tpm_exceeded"): 1}
    assert counters["breakloop_shadow_rejects_total"] == {("fair-use", "tpm_exceeded"): 1}


def test_money_spent_and_saved_by_project() -> None:
    """In micro-dollars; agents and callers are no labels (G-5, G-3)."""
    counted = EventCounters()
    activity = Activity(
        agents={
            ("blue", "key:1", "a"): AgentUse(requests=2, cost_microusd=30, model="gpt-x"),
            ("blue", "key:2", "b"): AgentUse(requests=2, cost_microusd=12, model="gpt-y"),
            ("red", "key:3", "c"): AgentUse(requests=2),
        },
        loops={
            ("blue", "key:1", "a", "f1"): LoopUse(passed=3, stopped=2, stopped_microusd=8),
            ("blue", "key:2", "b", "f2"): LoopUse(passed=3),
        },
    )
    counted.take_activity(activity)
    counted.take_activity(activity)
    assert counted.values.values == {
        "breakloop_spend_microusd_total": {("blue",): 84},
        "breakloop_model_spend_microusd_total": {("gpt-x",): 60, ("gpt-y",): 24},
        "breakloop_saved_requests_total": {("blue",): 4},
        "breakloop_saved_microusd_total": {("blue",): 16},
    }


def test_names_from_outside_are_bounded() -> None:
    """Whoever makes up models or projects fills nobody's memory (G-5)."""
    counted = EventCounters(combinations_max=2)
    for model in ("a", "b", "c", "d", "a"):
        counted.take_activity(Activity(agents={("p", "", ""): AgentUse(cost_microusd=1, model=model)}))
    found = counted.values.values["breakloop_model_spend_microusd_total"]
    assert found == {("a",): 2, ("b",): 1, ("other",): 2}
