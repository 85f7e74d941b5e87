"""Folding events and sums into incidents, without a database."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from breakloop.history.incidents import QUIET_S, IncidentFolder, OpenIncident, concerned, new_incident_id
from breakloop.model.events import AGENT_KILLED, AGENT_RELEASED, LIMIT_EXCEEDED, Activity, Event, LoopUse
from breakloop.model.records import CLEARED, OPEN, STOPPED
from tests.histories import detected, told

T = 1_800_000_000.0
KEY = ("default", "key:1", "bot", "f1")


class Folded:
    """Batch after batch, as the store does it: what has changed is what is known next time."""

    def __init__(self) -> None:
        self.cases: dict[str, OpenIncident] = {}
        self._numbers = itertools.count(1)
        self.folding = self.next()

    def next(self) -> IncidentFolder:
        self.folding = IncidentFolder(self.cases.values(), lambda at: f"i{next(self._numbers)}")
        return self.folding

    def event(self, *events: Event) -> list[str]:
        ids = []
        for event in events:
            ids.append(self.next().event(event))
            self._keep()
        return ids

    def _keep(self) -> None:
        self.cases |= {case.id: case for case in self.folding.changed}

    def used(self, at: float, key: Any = KEY, **use: int) -> None:
        self.next().used(key, LoopUse(**use), at)
        self._keep()


@pytest.fixture
def folded() -> Folded:
    return Folded()


def test_a_detection_is_an_incident(folded: Folded) -> None:
    """Agent, model, kind, evidence, first and last time (G-3)."""
    assert folded.event(detected(T, hit_count=7)) == ["i1"]
    case = folded.cases["i1"]
    assert (case.project, case.caller, case.agent, case.model) == ("default", "key:1", "bot", "gpt")
    assert (case.kind, case.policy, case.fingerprint, case.action) == ("tail", "builtin", "f1", "reject")
    assert (case.first_at, case.last_at, case.ended_at) == (T, T, None)
    assert (case.detections, case.hit_count, case.cooldown_seconds) == (1, 7, 30)
    assert (case.evidence, case.shadow, case.state) == ("the same 3 messages 5 times", False, STOPPED)


def test_the_same_loop_again_is_the_same_incident(folded: Folded) -> None:
    """Also with another fingerprint; the last detection describes it, the highest count stays (G-3)."""
    again = detected(T + QUIET_S, fingerprint="f2", hit_count=3, cooldown_seconds=60, evidence="more")
    assert folded.event(detected(T), again) == ["i1", "i1"]
    case = folded.cases["i1"]
    assert (case.detections, case.fingerprint, case.hit_count, case.cooldown_seconds) == (2, "f2", 5, 60)
    assert (case.first_at, case.last_at, case.evidence) == (T, T + QUIET_S, "more")


def test_after_ten_quiet_minutes_it_is_another(folded: Folded) -> None:
    """The first is over, since the end of its quiet time (G-3)."""
    assert folded.event(detected(T), detected(T + QUIET_S + 1)) == ["i1", "i2"]
    assert (folded.cases["i1"].state, folded.cases["i1"].ended_at) == (CLEARED, T + QUIET_S)
    assert (folded.cases["i2"].state, folded.cases["i2"].detections) == (STOPPED, 1)


def test_a_long_cooldown_is_not_quiet(folded: Folded) -> None:
    """Who may not send for an hour and comes back with the same loop is still in it."""
    assert folded.event(detected(T, cooldown_seconds=3600), detected(T + 3600)) == ["i1", "i1"]


@pytest.mark.parametrize(
    "other",
    [{"caller": "key:2"}, {"agent": "b"}, {"kind": "exact"}, {"policy": "p"}, {"shadow": True}, {"project": "x"}],
)
def test_what_differs_is_another_incident(folded: Folded, other: dict[str, Any]) -> None:
    assert folded.event(detected(T), detected(T + 1, **other)) == ["i1", "i2"]


@pytest.mark.parametrize(
    ("action", "shadow", "state"),
    [
        ("warn", False, OPEN),
        ("steer", False, OPEN),
        ("throttle", False, OPEN),
        ("reject", False, STOPPED),
        ("kill", False, STOPPED),
        ("cut", False, STOPPED),
        ("reject", True, OPEN),
    ],
)
def test_state_says_whether_anything_was_stopped(folded: Folded, action: str, shadow: bool, state: str) -> None:
    folded.event(detected(T, action=action, shadow=shadow))
    assert folded.cases["i1"].state == state


def test_it_stays_stopped_when_a_later_detection_only_warns(folded: Folded) -> None:
    folded.event(detected(T), detected(T + 1, action="warn"))
    assert folded.cases["i1"].state == STOPPED


def test_a_kill_belongs_to_it_and_a_release_ends_it(folded: Folded) -> None:
    """A kill stops it for as long as the quarantine lasts (G-1, G-3)."""
    folded.event(detected(T, action="warn"))
    kill = told(AGENT_KILLED, T + 1, binds="agent", agent="bot", caller="key:1", expires_at=None)
    assert folded.event(kill) == ["i1"]
    case = folded.cases["i1"]
    assert (case.state, case.over_at) == (STOPPED, math.inf)
    assert folded.event(detected(T + 86_400)) == ["i1"]
    release = told(AGENT_RELEASED, T + 90_000, binds="agent", agent="bot", caller="key:1")
    assert folded.event(release) == ["i1"]
    assert (case.state, case.ended_at, case.over_at) == (CLEARED, T + 90_000, T + 90_000)
    assert folded.event(detected(T + 90_001)) == ["i2"]


def test_a_kill_that_ends_by_itself(folded: Folded) -> None:
    folded.event(detected(T), told(AGENT_KILLED, T + 1, agent="bot", caller="key:1", expires_at=T + 1800))
    assert folded.cases["i1"].over_at == T + 1800
    assert folded.event(detected(T + 1801)) == ["i2"]


def test_a_kill_by_name_is_for_every_caller(folded: Folded) -> None:
    """An operator's kill binds the agent's name; the event belongs to the last of its incidents (G-1)."""
    folded.event(detected(T, action="warn"), detected(T + 1, caller="key:2", action="warn"), detected(T + 2, agent="b"))
    folded.event(detected(T + 3, shadow=True), detected(T + 3, project="other", action="warn"))
    kill = told(AGENT_KILLED, T + 5, binds="name", agent="bot", caller="", expires_at=None)
    assert folded.event(kill) == ["i2"]
    states = {name: case.state for name, case in folded.cases.items()}
    assert states == {"i1": STOPPED, "i2": STOPPED, "i3": STOPPED, "i4": OPEN, "i5": OPEN}
    assert folded.cases["i3"].held_until == 0.0


def test_a_kill_of_a_caller_is_for_every_agent(folded: Folded) -> None:
    folded.event(detected(T, action="warn"), detected(T + 1, agent="b", action="warn"))
    assert folded.event(told(AGENT_KILLED, T + 2, agent="", caller="key:1", expires_at=T + 60)) == ["i2"]
    assert {case.state for case in folded.cases.values()} == {STOPPED}


def test_a_kill_without_a_loop_belongs_to_none(folded: Folded) -> None:
    assert folded.event(told(AGENT_KILLED, T, agent="bot", caller="key:1")) == [""]
    assert folded.event(told(AGENT_KILLED, T, agent="", caller="")) == [""]
    assert folded.cases == {}


def test_cleared_ends_only_what_it_names(folded: Folded) -> None:
    """`loop.cleared` (G-2)."""
    folded.event(detected(T), detected(T, kind="exact"))
    cleared = told("loop.cleared", T + 5, agent="bot", caller="key:1", kind="tail", policy="builtin")
    assert folded.event(cleared) == ["i1"]
    assert (folded.cases["i1"].state, folded.cases["i1"].ended_at) == (CLEARED, T + 5)
    assert folded.cases["i2"].ended_at is None


def test_other_events_belong_to_none(folded: Folded) -> None:
    folded.event(detected(T))
    assert folded.event(told(LIMIT_EXCEEDED, T, agent="bot", caller="key:1")) == [""]


def test_what_a_loop_spent_and_what_stopping_saved(folded: Folded) -> None:
    """Tokens and money spent in the loop, requests and money saved by stopping it (G-3)."""
    folded.event(detected(T))
    use = {"passed": 1, "passed_tokens": 2, "passed_microusd": 3, "stopped": 4}
    folded.used(T + 500, **use, stopped_tokens=5, stopped_microusd=6)
    folded.used(T + 501, **use, stopped_tokens=5, stopped_microusd=6)
    case = folded.cases["i1"]
    assert (case.spent_requests, case.spent_tokens, case.spent_microusd) == (2, 4, 6)
    assert (case.saved_requests, case.saved_tokens, case.saved_microusd) == (8, 10, 12)
    assert case.last_at == T + 501
    assert folded.event(detected(T + 501 + QUIET_S)) == ["i1"]


def test_uses_go_to_the_loop_they_are_of(folded: Folded) -> None:
    """The fingerprint decides; one that is not known any more goes to the last loop of that agent that goes on."""
    folded.event(detected(T), detected(T + 1, kind="exact", fingerprint="f2"), detected(T + 2, shadow=True))
    folded.used(T + 3, ("default", "key:1", "bot", "gone"), passed=10)
    folded.used(T + 3, passed=1)
    folded.used(T + 3, ("default", "key:9", "bot", "f1"), passed=100)
    assert {name: case.spent_requests for name, case in folded.cases.items()} == {"i1": 1, "i2": 10, "i3": 0}


def test_what_is_counted_late_still_goes_to_what_is_over(folded: Folded) -> None:
    folded.event(detected(T), told(AGENT_RELEASED, T + 1, agent="bot", caller="key:1"))
    folded.used(T + 2, stopped=1)
    folded.used(T + 2, ("default", "key:1", "bot", "other"), stopped=5)
    case = folded.cases["i1"]
    assert (case.saved_requests, case.state, case.ended_at, case.last_at) == (1, CLEARED, T + 1, T)


MARK = [T, "search", "aa", "bb", 10, False, "pass"]


def test_the_picture_is_the_newest_or_longest(folded: Folded) -> None:
    """Steps with their tools and digests, at most 60 (G-3)."""
    folded.event(detected(T, steps=[MARK, MARK], score={"total": 0.9}))
    case = folded.cases["i1"]
    assert (case.steps, case.steps_at, case.steps_count) == ([MARK, MARK], T, 2)
    assert case.score == {"total": 0.9}
    folded.event(detected(T + 1, steps=[[T - 5, *MARK[1:]]]))
    assert case.steps == [MARK, MARK]
    newer = [T + 9, *MARK[1:]]
    folded.event(detected(T + 2, steps=[newer]))
    assert (case.steps, case.steps_count) == ([newer], 1)
    many = [[T + index, *MARK[1:]] for index in range(80)]
    folded.event(detected(T + 3, steps=many))
    assert case.steps == many[-60:]


@pytest.mark.parametrize(
    "steps", [None, "text", 7, [], [[]], ["seven77"], [[math.nan, *MARK[1:]]], [["x", *MARK[1:]]], [[T, 1, *MARK[2:]]]]
)
def test_a_picture_that_is_none_changes_nothing(folded: Folded, steps: object) -> None:
    folded.event(detected(T, steps=steps))
    assert folded.cases["i1"].steps is None


def test_an_event_without_anything_is_no_reason_to_fail(folded: Folded) -> None:
    assert folded.event(told("loop.detected", T), told("loop.detected", T, hit_count="x", agent=7)) == ["i1", "i1"]
    assert folded.cases["i1"].hit_count == 0


def test_who_is_concerned() -> None:
    events = [
        detected(T, "a"),
        told(AGENT_KILLED, T, agent="b", caller="key:1"),
        told(AGENT_RELEASED, T, agent="", caller="key:2"),
        told(LIMIT_EXCEEDED, T, agent="c"),
        told(AGENT_KILLED, T, agent="", caller=""),
    ]
    assert concerned(events, Activity(loops={KEY: LoopUse()})) == ({"a", "b", "bot"}, {"key:2"})


def test_ids_sort_by_time_and_do_not_repeat() -> None:
    made = [new_incident_id(T + second) for second in range(50)]
    assert made == sorted(made)
    assert {len(name) for name in made} == {15}
    same = {new_incident_id(T) for _ in range(200)}
    assert len(same) == 200
    assert len({name[:7] for name in same}) == 1
    assert all(name.isalnum() and name.islower() for name in same if not name.isdigit())


def test_whose_requests_were_denied_is_not_said_to_pass(folded: Folded) -> None:
    """Also where the detection itself only warned, and another one denied (G-3)."""
    folded.event(detected(T, action="warn"))
    folded.used(T + 1, passed=1)
    assert folded.cases["i1"].state == OPEN
    folded.used(T + 2, stopped=1)
    assert folded.cases["i1"].state == STOPPED
