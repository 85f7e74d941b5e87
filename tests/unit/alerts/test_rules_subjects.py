"""What belongs together."""

from __future__ import annotations

import pytest

from breakloop.alerts.rules import ENDS, FAMILIES, ends, order_key, same_agent, subject
from breakloop.model import events
from breakloop.model.events import Event
from tests.alert_world import NOW, killed, limited, loop, paused, released
from tests.each import each


def test_one_loop_is_one_subject() -> None:
    """However often it is seen, by whichever detector (G-4)."""
    assert subject(loop()) == subject(loop(kind="exact", hit_count=9, fingerprint="other", at=NOW + 60))
    others = [
        loop("other"),
        loop(caller="key:9"),
        loop(shadow=True),
        Event(events.LOOP_DETECTED, NOW, loop().data, "p2"),
    ]
    assert len({subject(one) for one in [loop(), *others]}) == 5
    assert len(subject(loop("x" * 10_000))) == len(subject(loop()))


def test_the_store_is_one_for_all_projects() -> None:
    one, other = (Event(events.STORE_DEGRADED, NOW, {"error": str(at)}, at) for at in ("", "default"))
    assert subject(one) == subject(other)


def test_each_upstream_fails_by_itself() -> None:
    """And each cause is another (G-4)."""
    failed = [
        Event(events.UPSTREAM_FAILED, NOW, {"upstream": name, "cause": cause, "status": status})
        for name, cause, status in (("a", "x", 502), ("a", "x", 504), ("b", "x", 502), ("a", "y", 502))
    ]
    assert len({subject(event) for event in failed}) == 3


def test_what_keeps_its_order() -> None:
    """A loop, its agent's kill and its release arrive in this order (G-4)."""
    cleared = Event("loop.cleared", NOW, {"agent": "summariser", "caller": "key:5f1c"}, "default")
    assert len({order_key(one) for one in (loop(), killed(), released(), cleared, loop(kind="exact"))}) == 1
    assert order_key(loop("other")) != order_key(loop())
    data = {"policy": "p", "key": "k", "shadow": False}
    assert order_key(Event(events.BREAKER_OPENED, NOW, data, "d")) == order_key(
        Event(events.BREAKER_CLOSED, NOW, data, "d")
    )
    assert order_key(Event(events.BUNDLE_REJECTED, NOW, {})) == order_key(
        Event(events.BUNDLE_LOADED, NOW, {"version": 2})
    )
    assert order_key(limited("a")) != order_key(limited("b"))


@each(
    "event, family, over",
    [
        (released(), "kill", True),
        (released(), "loop", True),
        (released("other"), "loop", False),
        (released(caller="key:9"), "loop", False),
        (released(agent="", binds="caller"), "loop", True),
        (released(caller="", binds="name"), "loop", True),
        (released(agent="", caller=""), "loop", False),
        (Event(events.AGENT_RELEASED, NOW, released().data, "other"), "loop", False),
        (released(), "breaker", False),
        (loop(), "loop", False),
    ],
)
def test_what_ends_a_loop(event: Event, family: str, over: bool) -> None:
    """Of the same agent, or of all agents of a caller (G-4)."""
    assert ends(event, family, "default", loop().data) is over


def test_what_ends_a_breaker() -> None:
    data = {"policy": "p", "key": "k", "shadow": False, "rate": 7}
    assert ends(Event(events.BREAKER_CLOSED, NOW, data | {"by": "operator"}), "breaker", "d", data)
    assert not ends(Event(events.BREAKER_CLOSED, NOW, data | {"key": "other"}), "breaker", "d", data)


def test_everything_that_lasts_can_end() -> None:
    """No alert stays open for ever (G-4)."""
    fading = {"limit", "shadow"}
    assert set(FAMILIES.values()) - fading == {family for families in ENDS.values() for family in families}
    assert same_agent(killed(), "default", loop().data)


@pytest.mark.parametrize(
    ("said", "over"),
    [
        ({}, True),
        ({"kind": "tail"}, True),
        ({"kind": "steps"}, False),
        ({"policy": "other"}, False),
        ({"shadow": True}, False),
    ],
)
def test_one_loop_of_an_agent_may_be_over_and_another_not(said: dict[str, object], over: bool) -> None:
    """Nobody is told that all is well because a shadow policy has calmed down (G-4)."""
    known = loop(kind="tail", policy="mine").data
    cleared = Event(events.LOOP_CLEARED, NOW, {"agent": known["agent"], "caller": known["caller"], **said}, "default")
    assert ends(cleared, "loop", "default", known) is over


def test_each_pause_is_a_question_of_its_own() -> None:
    """No cooldown of another one hides it, and its answer or a release ends it (K-8, G-4)."""
    one, other = paused(), paused(id="p-2")
    assert subject(one) != subject(other)
    answered = Event(events.RUN_ANSWERED, NOW, {"id": "p-1", "agent": "summariser"}, "default")
    assert ends(answered, "pause", "default", one.data)
    assert not ends(answered, "pause", "default", other.data)
    assert ends(released(), "pause", "default", one.data)
    assert not ends(released("another"), "pause", "default", one.data)
    assert order_key(one) == order_key(answered)
