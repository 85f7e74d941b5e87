"""Notices in words."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.alerts import messages
from breakloop.alerts.messages import AlertMessage, message_of, money, one_line
from breakloop.model import events
from breakloop.model.events import Event
from breakloop.model.verdict import ANSWERS
from tests.alert_world import NOW, killed, limited, loop, notice_body, paused, released
from tests.each import each


def told(event: Event, about: Event | None = None, link: str = "", **more: Any) -> AlertMessage:
    return message_of(notice_body(event, about, **more), link)


def test_a_loop() -> None:
    """The title tells agent, kind, what was done, and money (G-4)."""
    found = told(
        loop(), link="https://ops.example/", spent_microusd=1_230_000, saved_microusd=40_000_000, incident="inc-7"
    )
    assert found.title == "Agent summariser loops (tail), stopped, $1.23 spent"
    assert found.text == "the same last 3 messages 6 times The loop cost $1.23. Stopping it saved $40.00."
    assert (found.severity, found.recovered, found.source) == ("critical", False, "summariser")
    assert found.link == "https://ops.example/incidents/inc-7"
    facts = dict(found.facts)
    assert (facts["Agent"], facts["Blocked for"], facts["Saved"], facts["Alert rule"]) == ("summariser", "30 s", "$40.00", "night watch")  # fmt: skip
    assert "Evidence: the same last 3 messages 6 times" in found.plain()
    assert "spent" not in told(loop(), spent_microusd=0).title  # nothing is known of a model without a price


def test_a_paused_run() -> None:
    """What is asked, until when, what happens then, and a link for each answer (K-8, G-4)."""
    found = told(paused(), link="https://ops.example")
    assert (found.title, found.severity) == ("Agent summariser is paused and waits for your answer", "warning")
    assert found.text == (
        "tail loop (the same last 3 messages 6 times). Without an answer by 2027-01-15 08:30:00 UTC, it has to finish."
    )
    assert [words for words, _ in found.answers] == list(ANSWERS.values())
    assert found.link == "https://ops.example/pauses"
    assert "Go on for $5: https://ops.example/answer/p-1.5usd.x\n" in found.plain()
    assert not [value for _, value in found.facts if "/answer/" in value]
    answered = Event(events.RUN_ANSWERED, NOW, {"id": "p-1", "agent": "summariser", "answer": "once"}, "default")
    over = told(answered, paused())
    assert (over.title, over.answers) == ("Agent summariser is no longer paused", ())
    assert "/answer/" not in over.plain()


def test_its_end() -> None:
    over = told(released(), loop())
    assert (over.title, over.severity, over.recovered) == ("Agent summariser is released", "info", True)
    assert over.text == "It is over: released. It occurred 12 times since T0."
    cleared = Event("loop.cleared", NOW, loop().data, "default")
    assert told(cleared, loop(), saved_microusd=5_000_000).title == "Agent summariser no longer loops, $5.00 saved"


@each(
    "event, title, severity",
    [
        (killed(), "Agent summariser is quarantined", "critical"),
        (killed(""), "An agent is quarantined", "critical"),
        (loop(action="warn"), "Agent summariser loops (tail), warned", "warning"),
        (loop(action="land"), "Agent summariser loops (tail), landed", "warning"),
        (loop(shadow=True), "Agent summariser loops (tail), stopped (shadow)", "warning"),
        (limited(), "Limit per-agent of fair-use denies requests", "info"),
        (Event(events.BUDGET_THRESHOLD, NOW, {"policy": "p", "rule": "day", "threshold_percent": 80}), "Budget day of p is at 80 %", "warning"),
        (Event(events.BUDGET_THRESHOLD, NOW, {"policy": "p", "rule": "day", "threshold_percent": 100}), "Budget day of p is at 100 %", "critical"),
        (Event(events.BREAKER_OPENED, NOW, {"policy": "p", "rate": 7_000_000, "threshold": 5_000_000, "unit": "microusd"}), "Circuit breaker of p is open: $7.00 per minute", "critical"),
        (Event(events.STORE_DEGRADED, NOW, {"error": "gone"}), "The shared store is unavailable: each instance decides on its own", "error"),
        (Event(events.UPSTREAM_FAILED, NOW, {"upstream": "openai", "cause": "x"}), "Upstream openai is failing", "error"),
        (Event("some.thing_new", NOW, {"a": "{b}"}), "some.thing_new", "info"),
        (Event("{0}.{x}", NOW, {}), "0.x", "info"),
    ],
)  # fmt: skip
def test_titles(event: Event, title: str, severity: str) -> None:
    """Every event can be told (G-4)."""
    found = told(event)
    assert (found.title, found.severity) == (title, severity)


def test_a_budget_that_lands_says_so() -> None:
    """So that nobody wonders about short answers (G-4, LD-10)."""
    data = {"policy": "p", "rule": "day", "threshold_percent": 95, "used": 19e6, "budget": 20e6, "unit": "microusd"}
    texts = [told(Event(events.BUDGET_THRESHOLD, NOW, {**data, "action": action})).text for action in ("warn", "land")]
    assert texts == ["$19.00 of $20.00.", "$19.00 of $20.00. From here on, requests pass with tools switched off."]


def test_every_event_has_a_title_of_its_own() -> None:
    names = {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)}
    plain = {name for name in names if told(Event(name, NOW, {})).title == name}
    assert plain == {events.DESCRIPTOR_MISSING, events.BODY_NOT_UNPACKED}


def test_names_from_requests_stay_on_their_line() -> None:
    """Whatever an agent calls itself (Y-3)."""
    found = told(loop("evil\r\nBcc: all@example.com\u2028\x00\u202e {policy}" + "x" * 500))
    assert found.title.isprintable()
    assert len(found.title) <= 150
    assert "{policy}" in found.title  # what comes from outside is no template
    assert one_line("a" * 20, 10) == "a" * 9 + "…"


@pytest.mark.parametrize(
    ("microusd", "text"), [(0, "$0.00"), (1_234_567_000, "$1,234.57"), (1500, "$0.0015"), (None, ""), ("x", "")]
)
def test_money(microusd: object, text: str) -> None:
    assert money(microusd) == text


def test_amounts_have_units() -> None:
    assert messages.amount({"used": 1_500, "unit": "cost"}, "used") == "1.5"
    assert messages.amount({"used": 12_000, "unit": "token"}, "used") == "12,000 tokens"
    assert messages.amount({}, "used") == "?"
    data = {"used": 80, "budget": 100, "unit": "token"}
    assert told(Event(events.BUDGET_THRESHOLD, NOW, data)).text == "80 tokens of 100 tokens."
