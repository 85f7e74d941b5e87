"""What a webhook gets: all fields of the documented form, and nothing that is not a name, a digest or a count."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from breakloop.alerts.router import encoded, payload, timestamp
from breakloop.model.events import LOOP_DETECTED, Event
from tests.alert_world import CANARY, NOW, killed, loop

FIELDS = {"fingerprint", "hit_count", "model", "cooldown_seconds", "kind", "evidence", "action", "agent", "caller", "policy", "shadow"}  # fmt: skip


def test_a_loop() -> None:
    """The envelope and `data` (G-4)."""
    made = payload(loop(incident="inc-1", spent_microusd=120))
    assert {name: made[name] for name in made if name != "data"} == {
        "event": "loop.detected",
        "timestamp": "2027-01-15T08:00:00.000Z",
        "project_id": "default",
        "request_id": "req_def456",
    }
    assert set(made["data"]) == FIELDS | {"incident", "spent_microusd"}
    assert made["data"]["hit_count"] == 6
    assert json.loads(encoded(made)) == made


def test_a_loop_that_says_little_has_all_fields() -> None:
    """Receivers may rely on them (G-4)."""
    assert set(payload(Event(LOOP_DETECTED, NOW, {}))["data"]) == FIELDS


def test_nothing_long_or_deep() -> None:
    """Steps, scores and excerpts stay in the history, whatever form they have (Y-1)."""
    odd: dict[str, Any] = {"steps": [CANARY], "score": {"x": CANARY}, "excerpt": CANARY, "list": [CANARY], "map": {"a": CANARY}, "b": CANARY.encode()}  # fmt: skip
    for made in (payload(loop(**odd)), payload(loop(steps=CANARY))):
        assert CANARY not in encoded(made)
        assert set(made["data"]) == FIELDS


def test_it_is_bounded_and_always_json() -> None:
    """Names come from requests (Y-2)."""
    many = {f"n{number}": number for number in range(500)}
    made = payload(loop(agent="x" * 10_000, rate=math.inf, odd=math.nan, cut="\ud800", **many))
    assert len(made["data"]) <= 60
    assert len(made["data"]["agent"]) == 2000
    assert (made["data"]["rate"], made["data"]["odd"]) == (None, None)
    assert encoded(made).isascii()


def test_times_and_projects() -> None:
    assert datetime.fromisoformat(timestamp(NOW + 0.5)).timestamp() == NOW + 0.5
    assert payload(Event("store.degraded", NOW, {}), "default")["project_id"] == "default"
    assert payload(killed())["data"]["expires_at"] is None
