"""What is told of an answer that repeats itself."""

from __future__ import annotations

from breakloop.engine.engine import repeated_event
from tests.builders import bundle, chat, world


def test_told_like_other_loops() -> None:
    """With the fields that receivers of `loop.detected` know; a watcher that only tells is in shadow (LD-8, G-2)."""
    here = world(bundle())
    asked = chat(model="m-1")
    here.descriptors.chat(asked)
    asked.identity.project, asked.request_id, asked.decision.guards_stream = "p", "r-1", 1
    event = repeated_event(asked, here.descriptors, "cut", "the same 120 characters", 9, 5.0)
    assert (event.name, event.at, event.project, event.request_id) == ("loop.detected", 5.0, "p", "r-1")
    told = {name: event.data[name] for name in ("model", "kind", "hit_count", "action", "shadow", "evidence")}
    assert told == {
        "model": "m-1",
        "kind": "stream",
        "hit_count": 9,
        "action": "cut",
        "shadow": False,
        "evidence": "the same 120 characters 9 times in one answer",
    }
    asked.decision.guards_stream = 2
    assert repeated_event(asked, here.descriptors, "warn", "the same 1 characters", 1, 5.0).data["shadow"] is True
