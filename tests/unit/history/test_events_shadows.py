"""What policies in shadow mode would have denied."""

from __future__ import annotations

from breakloop.clock import FakeClock
from breakloop.history.store import History
from breakloop.model.events import SHADOW_WOULD_REJECT, Activity
from breakloop.model.records import EventFilter
from tests.histories import told


def test_shadow_report(history: History, clock: FakeClock) -> None:
    """By policy, rule and reason, the most frequent first; and the events themselves (X-2)."""
    now = clock.now()
    counts = {("p", "a", "r1", "rate"): 3, ("q", "a", "r1", "rate"): 4, ("p", "b", "r2", "budget"): 1}
    events = [told(SHADOW_WOULD_REJECT, now, policy="a", rule="r1", reason="rate")]
    history.write(events, Activity(shadow=counts), now)
    history.write([], Activity(shadow={("p", "b", "r2", "budget"): 9}), now + 1)
    assert history.shadow(now) == [("b", "r2", "budget", 10), ("a", "r1", "rate", 7)]
    assert history.shadow(now, "a") == [("a", "r1", "rate", 7)]
    assert history.shadow(now, "nothing") == []
    assert [event.data["policy"] for event in history.events(EventFilter(names=[SHADOW_WOULD_REJECT]))] == ["a"]


def test_days(history: History, clock: FakeClock) -> None:
    now = clock.now()
    history.write([], Activity(shadow={("p", "a", "r", "x"): 3}), now)
    history.write([], Activity(shadow={("p", "a", "r", "x"): 5}), now + 86_400)
    assert history.shadow(now) == [("a", "r", "x", 8)]
    assert history.shadow(now + 86_400) == [("a", "r", "x", 5)]
    assert history.shadow(now + 3 * 86_400) == []
