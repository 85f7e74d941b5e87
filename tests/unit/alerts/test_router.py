"""One loop is told of once, and once more when it is over: neither at every request, nor only once ever."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.alerts import router as module
from breakloop.alerts.router import FIRING, RECOVERED, AlertNotice, AlertRouter, payload
from breakloop.alerts.rules import QUIET_S, AlertRule
from breakloop.model import events
from breakloop.model.events import Event
from tests.alert_world import NOW, killed, limited, loop, released, rule

LOOPS = rule("loops", ("loop",), ("chat",), recovery=True)


class Told:
    """A router, and what it told."""

    def __init__(self, *rules: AlertRule) -> None:
        self.router = AlertRouter(rules or (LOOPS,))

    def __call__(self, *happened: Event, now: float | None = None) -> list[tuple[str, str, str]]:
        return [(one.rule.name, one.state, one.payload["event"]) for one in self.notices(*happened, now=now)]

    def notices(self, *happened: Event, now: float | None = None) -> list[AlertNotice]:
        at = now if now is not None else max(one.at for one in happened)
        change = self.router.route([(one, payload(one)) for one in happened], at)
        self.router.accept(change)
        return change.notices


def test_once_while_it_goes_on_and_once_when_it_is_over() -> None:
    """A hundred sightings, one alert, one recovery (G-4)."""
    told = Told()
    assert told(loop()) == [("loops", FIRING, "loop.detected")]
    assert told(*(loop(at=NOW + number * 30, kind="exact") for number in range(1, 100))) == []
    (over,) = told.notices(released(at=NOW + 3000))
    assert (over.state, over.payload["event"], over.about["event"]) == (RECOVERED, "agent.released", "loop.detected")
    assert (over.since, over.count) == (NOW, 100)
    assert told(released(at=NOW + 3001)) == []


def test_not_only_once_ever() -> None:
    """The next loop of the same agent is told again, but not within the cooldown (G-4)."""
    told = Told()
    told(loop())
    told(released(at=NOW + 10))
    assert told(loop(at=NOW + 20)) == []
    assert told(released(at=NOW + 30)) == []  # nobody was told of it, so nobody is told that it is over
    assert told(loop(at=NOW + 299)) == []
    assert told(loop(at=NOW + 300)) == [("loops", FIRING, "loop.detected")]


def test_a_loop_that_is_heard_of_no_more_is_over() -> None:
    """After ten quiet minutes, or its own longer cooldown (G-4)."""
    told = Told()
    told(loop(), loop("slow", cooldown_seconds=3600))
    assert told(now=NOW + QUIET_S - 1) == []
    assert told(now=NOW + QUIET_S) == [("loops", RECOVERED, "loop.cleared")]
    assert told(now=NOW + 3599) == []
    assert told(now=NOW + 3600) == [("loops", RECOVERED, "loop.cleared")]
    assert told(now=NOW + 9999) == []


def test_a_held_agent_is_quiet_and_its_loop_is_not_over() -> None:
    """It ends when the agent is released (G-1, G-4)."""
    told = Told(LOOPS, rule("kills", ("kill_switch",), ("pager",), recovery=True))
    assert told(loop(), killed(at=NOW + 1)) == [("loops", FIRING, "loop.detected"), ("kills", FIRING, "agent.killed")]
    assert told(now=NOW + 86_400) == []
    assert told(released(at=NOW + 86_401)) == [
        ("loops", RECOVERED, "agent.released"),
        ("kills", RECOVERED, "agent.released"),
    ]


def test_a_hold_that_ends_by_itself() -> None:
    told = Told()
    told(loop(), killed(at=NOW, expires_at=NOW + 7200))
    assert told(now=NOW + 7200) == []
    assert told(now=NOW + 7200 + QUIET_S) == [("loops", RECOVERED, "loop.cleared")]


def test_agents_do_not_hide_each_other() -> None:
    told = Told()
    assert len(told(loop("a"), loop("b"), loop("a"), loop("b"))) == 2


def test_what_happens_once_is_told_once_a_cooldown() -> None:
    """A budget's stages are different things; nothing ends them (G-4)."""
    told = Told(rule("money", ("budget",), ("mail",), cooldown_seconds=60.0, recovery=True))

    def reached(percent: int, at: float = NOW) -> Event:
        return Event(events.BUDGET_THRESHOLD, at, {"key": "k", "threshold_percent": percent}, "default")

    assert len(told(reached(80), reached(100))) == 2
    assert told(reached(80, NOW + 59)) == []
    assert len(told(reached(80, NOW + 60))) == 1
    assert told(now=NOW + 10**7) == []


@pytest.mark.parametrize(
    ("word", "begins", "ends"),
    [
        ("breaker", (events.BREAKER_OPENED, {"policy": "p", "key": "k"}), (events.BREAKER_CLOSED, {"policy": "p", "key": "k"})),
        ("store", (events.STORE_DEGRADED, {"error": "gone"}), (events.STORE_RECOVERED, {"reason": "answers"})),
        ("bundle", (events.BUNDLE_REJECTED, {"problem": "x"}), (events.BUNDLE_LOADED, {"version": 3})),
        ("worker.died", (events.WORKER_DIED, {"process": "worker 1"}), (events.WORKER_REPLACED, {"process": "worker 1"})),
    ],
)  # fmt: skip
def test_other_things_that_go_on(word: str, begins: Any, ends: Any) -> None:
    """They stay until somebody says that they are over (G-4)."""
    told = Told(rule("ops", (word,), ("pager",)))
    assert told(Event(begins[0], NOW, begins[1])) == [("ops", FIRING, begins[0])]
    assert told(Event(begins[0], NOW + 5, begins[1]), now=NOW + 86_400) == []
    assert told(Event(ends[0], NOW + 86_401, ends[1])) == [("ops", RECOVERED, ends[0])]


def test_limits_are_over_when_they_are_quiet() -> None:
    told = Told(rule("limits", ("limit",), ("chat",)))
    assert told(limited(), limited(), limited("other")) == [("limits", FIRING, "limit.exceeded")] * 2
    assert told(now=NOW + QUIET_S) == [("limits", RECOVERED, "limit.over")] * 2


def test_reminders() -> None:
    """Only if a rule asks for them (G-4)."""
    told = Told(rule("loops", ("loop",), ("chat",), repeat_seconds=900.0))
    seen = [bool(told(loop(at=NOW + minute * 60))) for minute in range(31)]
    assert [minute for minute, yes in enumerate(seen) if yes] == [0, 15, 30]


def test_nothing_has_changed_until_it_is_on_disk() -> None:
    """Events that could not be written are routed again, with the same result (G-4)."""
    router = AlertRouter([LOOPS])
    first, change = (router.route([(loop(), payload(loop()))], NOW) for _ in range(2))
    assert first == change
    assert len(change.notices) == 1
    assert router.states == {}
    router.accept(change)
    assert router.last_at("loops") == NOW
    assert router.last_at("other") is None


def test_they_are_forgotten_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invented names fill nothing (Y-2)."""
    monkeypatch.setattr(module, "STATES_MAX", 10)
    told = Told()
    told(*(loop(f"a{number}") for number in range(50)))
    assert len(told.router.states) == 10
    told(now=NOW + QUIET_S)
    told(now=NOW + 2 * QUIET_S)
    assert told.router.states == {}


def test_what_nobody_ends_is_forgotten_silently() -> None:
    """After a month, so that the next one is told again (G-4)."""
    told = Told(rule("ops", ("store",), ("pager",)))
    down = Event(events.STORE_DEGRADED, NOW, {})
    assert len(told(down)) == 1
    assert told(now=NOW + 31 * 86_400) == []
    assert len(told(Event(events.STORE_DEGRADED, NOW + 31 * 86_400, {}))) == 1


def test_what_is_handed_to_targets() -> None:
    (notice,) = Told().notices(loop())
    body = notice.body()
    assert {name: body[name] for name in ("rule", "state", "count", "since")} == {"rule": "loops", "state": "firing", "count": 1, "since": "2027-01-15T08:00:00.000Z"}  # fmt: skip
    assert body["payload"]["data"]["agent"] == "summariser"
