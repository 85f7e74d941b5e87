"""Runs about which a person is asked: the question, its answer, and what the client gets (K-6)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from breakloop.engine.quarantine import AGENT, CALLER, RUN, Hold, held
from breakloop.model.verdict import PauseState
from tests.unit.engine.holds import DUE, NOW, THE_RUN, Here, Kept, paused


@pytest.fixture
def here() -> Here:
    return Here()


def test_a_run_is_paused_once(here: Here) -> None:
    """There is one question about a run at a time. It is stored, and published with the request (K-6)."""
    kept = Kept(here)
    first = here.quarantine.pause(paused(), "r-1")
    assert here.quarantine.pause(paused("q-2"), "r-2") is first
    assert here.find("a", run=THE_RUN) is first
    assert kept.heard == ["run a"]
    [told] = here.events
    assert (told.name, told.at, told.project, told.request_id) == ("run.paused", NOW, "p", "r-1")
    who = {"id": "q-1", "agent": "a", "caller": "caller", "session": "s-1", "reason": "it loops"}
    assert told.data == who | {"answer_by": DUE, "then": "deny"}


def test_a_run_that_goes_on_may_be_paused_again(here: Here) -> None:
    """By what the answer does not cover (K-6)."""
    here.quarantine.answer(here.quarantine.pause(paused()), "1h", NOW, "ann")
    second = here.quarantine.pause(paused("q-2"))
    assert second.question is not None
    assert second.question.id == "q-2"
    assert here.find("a", run=THE_RUN) is second


@pytest.mark.parametrize(("at", "answer"), [(DUE - 0.1, ""), (DUE, "deny")])
def test_the_default_applies_when_the_time_is_over(here: Here, at: float, answer: str) -> None:
    """Without an answer; it is published without a name (K-6)."""
    here.quarantine.pause(paused())
    found = here.find("a", run=THE_RUN, at=at)
    assert found is not None
    assert found.question is not None
    assert found.question.answer == answer
    told = [(event.at, event.data["answer"], event.data["by"]) for event in here.events[1:]]
    assert told == ([(DUE, "deny", "")] if answer else [])


def test_the_default_does_not_replace_an_answer(here: Here) -> None:
    """An hour from the answer, although the time for it ends within that hour (K-6)."""
    hold = here.quarantine.pause(paused())
    given = here.quarantine.answer(hold, "1h", DUE - 10, "ann")
    assert here.find("a", run=THE_RUN, at=DUE + 3589.5) is given
    assert here.find("a", run=THE_RUN, at=DUE + 3590) is None


@pytest.mark.parametrize(
    ("foreign", "by", "ours"), [(False, "", True), (False, "ann", True), (True, "ann", True), (True, "", False)]
)
def test_an_answer_is_stored_and_published_by_one_instance(here: Here, foreign: bool, by: str, ours: bool) -> None:
    """By the one that was asked, and the default by the one that asked (K-3, K-6)."""
    kept = Kept(here)
    here.quarantine.adopt(paused(), foreign=foreign)
    [hold] = here.quarantine.by_key.values()
    made = here.quarantine.answer(hold, "1h", NOW + 1, by)
    assert here.find("a", run=THE_RUN, at=NOW + 1) is made
    assert kept.heard == ["run a"] * ours
    assert [(event.name, event.data["by"]) for event in here.events] == [("run.answered", by)] * ours


def test_a_run_that_is_killed_is_held_from_then_on(here: Here) -> None:
    """As by an operator's kill, until somebody releases it (K-6)."""
    kept = Kept(here)
    made = here.quarantine.answer(here.quarantine.pause(paused()), "kill", NOW + 7, "ann")
    assert (made.since, made.until, made.by, made.question) == (NOW + 7, math.inf, "ann", None)
    assert here.find("a", run=THE_RUN, at=NOW + 8) is made
    assert kept.heard == ["run a", "run a"]
    assert [(event.name, event.at) for event in here.events] == [
        ("run.paused", NOW), ("run.answered", NOW + 7), ("agent.killed", NOW + 7),
    ]  # fmt: skip


@pytest.mark.parametrize(("answer", "at_once"), [("1h", True), ("land", True), ("deny", False), ("kill", False)])
def test_what_was_counted_against_a_run_is_cleared_once(here: Here, answer: str, at_once: bool) -> None:
    """When the run may go on: what is counted later belongs to the next question (K-6)."""
    dropped: list[str] = []
    here.quarantine.drop_with(dropped.extend)
    here.quarantine.answer(here.quarantine.pause(paused()), answer, NOW + 1, "ann")
    assert dropped == ["k"] * at_once
    here.quarantine.release("p", run=THE_RUN, now=NOW + 2)
    assert dropped == ["k"]


def test_an_amount_is_used_up(here: Here) -> None:
    """What is left is stored. The last micro-dollar ends the answer, which is no release (K-6)."""
    kept = Kept(here)
    given = here.quarantine.answer(here.quarantine.pause(paused()), "0.01usd", NOW, "ann")
    here.quarantine.use(given, NOW, 9_999)
    left = here.find("a", run=THE_RUN)
    assert left is not None
    assert left.question is not None
    assert left.question.left == 1
    here.quarantine.use(given, NOW, 1)  # not the current state
    assert here.find("a", run=THE_RUN) is left
    here.quarantine.use(left, NOW, 1)
    assert here.find("a", run=THE_RUN) is None
    assert kept.heard == ["run a", "run a", "used a", "end of a by "]
    assert [event.name for event in here.events] == ["run.paused", "run.answered"]


@pytest.mark.parametrize("spent", [10_000, 10_001, 50_000])
def test_a_call_may_cost_more_than_what_is_left(here: Here, spent: int) -> None:
    """It ends the answer (K-6)."""
    given = here.quarantine.answer(here.quarantine.pause(paused()), "0.01usd", NOW, "ann")
    here.quarantine.use(given, NOW, spent)
    assert here.find("a", run=THE_RUN) is None


def test_a_run_that_has_to_finish_stays_held_after_its_last_call(here: Here) -> None:
    """Two calls pass; the answer is kept, so that further ones are denied (K-6)."""
    kept = Kept(here)
    hold = here.quarantine.answer(here.quarantine.pause(paused()), "land", NOW, "ann")
    passed = []
    for _ in range(3):
        passed.append(hold.grants)
        here.quarantine.use(hold, NOW)
        found = here.find("a", run=THE_RUN)
        assert found is not None
        hold = found
    assert passed == [True, True, False]
    assert kept.heard == ["run a", "run a", "used a", "used a"]


def test_an_answer_for_a_time_is_not_used_up(here: Here) -> None:
    """Nor is a hold without a question (K-6)."""
    given = here.quarantine.answer(here.quarantine.pause(paused()), "1h", NOW, "ann")
    here.quarantine.use(given, NOW)
    assert here.find("a", run=THE_RUN) is given
    here.kill("b")
    killed = here.find("b")
    assert killed is not None
    here.quarantine.use(killed, NOW)
    assert here.find("b") is killed


def test_the_runs_that_wait_for_an_answer(here: Here) -> None:
    """The oldest first; not those that were answered, or whose time is over (K-6)."""
    for number, since in (("q-1", NOW), ("q-2", NOW + 1), ("q-3", NOW + 2)):
        here.quarantine.pause(replace(paused(number), run=number, since=since))
    here.kill("b")
    first, second, third = here.quarantine.pauses(NOW + 2)
    assert (first.run, second.run, third.run) == ("q-1", "q-2", "q-3")
    assert here.quarantine.paused == 3
    here.quarantine.answer(second, "1h", NOW + 3, "ann")
    assert here.quarantine.pauses(NOW + 3) == [first, third]
    assert here.quarantine.paused == 2
    assert [hold.run for hold in here.quarantine.holds(NOW + 3)] == ["q-1", "q-3", ""]  # of those that deny requests
    assert here.quarantine.pauses(DUE) == []


def test_a_hold_takes_precedence_over_an_answer_that_lets_calls_pass(here: Here) -> None:
    """The answer applies to one pause; holds on the run, on the run that started it and on the caller stay (K-6)."""

    def find() -> str:
        found = here.quarantine.find("p", "caller", "a", lambda: THE_RUN, NOW, lambda: ("parent", "root"))
        return "" if found is None else found.why

    def granted(binds: str, agent: str, why: str) -> None:
        hold = replace(paused(), binds=binds, agent=agent, why=why, run=THE_RUN if binds == RUN else "")
        here.quarantine.answer(here.quarantine.pause(hold), "1h", NOW, "ann")

    granted(AGENT, "caller", "granted to the caller")
    assert find() == "granted to the caller"
    granted(AGENT, "a", "granted to the agent")
    assert find() == "granted to the agent"
    granted(RUN, "a", "granted to the run")
    assert find() == "granted to the run"
    here.quarantine.hold(Hold(RUN, "p", "caller", "a", NOW, math.inf, "a ceiling", "parent"))
    assert find() == "granted to the run"
    here.quarantine.hold(Hold(RUN, "p", "caller", "a", NOW, math.inf, "the tree", "root", by="ann"))
    assert find() == "the tree"
    here.quarantine.hold(Hold(RUN, "p", "caller", "a", NOW, math.inf, "this run", THE_RUN, by="ann"))
    assert find() == "this run"
    here.quarantine.hold(Hold(CALLER, "p", "caller", "", NOW, math.inf, "the caller"))
    assert find() == "the caller"


@pytest.mark.parametrize(
    ("left_s", "retry_s", "within"),
    [(61, 60, "1 min 1 s"), (60, 60, "1 min"), (58.5, 59, "59 s"), (1.5, 2, "2 s"), (0.5, 1, "1 s"), (0, 1, "1 s")],
)
def test_when_to_ask_for_a_paused_run_again(left_s: float, retry_s: int, within: str) -> None:
    """In a minute, or when the time for an answer is over; in a second at the earliest (K-6, A-4)."""
    verdict = held(paused(), DUE - left_s)
    assert (verdict.reason, verdict.status, verdict.rule, verdict.never) == ("run_paused", 429, "pause", False)
    assert verdict.retry_after_s == retry_s
    assert f"Without an answer within {within}, it stays held." in verdict.message
    assert verdict.pause == PauseState(paused().key, 30.0)


@pytest.mark.parametrize(
    ("answer", "reason", "message"),
    [
        ("deny", "run_paused", "This run is paused: it loops. Nobody answered in time. A person has to release it."),
        ("land", "agent_quarantined", "This run had to finish, and has made its last calls."),
    ],
)
def test_a_paused_run_that_may_not_go_on(answer: str, reason: str, message: str) -> None:
    """Trying again does not help, and no call waits for an answer (K-6, A-4)."""
    hold = paused()
    assert hold.question is not None
    for why in ("it loops", "it loops."):
        verdict = held(replace(hold, why=why, question=replace(hold.question, answer=answer)), NOW)
        assert (verdict.allowed, verdict.reason, verdict.status, verdict.rule) == (False, reason, 429, "pause")
        assert (verdict.message, verdict.never, verdict.retry_after_s) == (message, True, None)
        if reason == "run_paused":
            assert verdict.pause == PauseState(hold.key, 0.0)


def test_a_pause_stops_calls_in_flight_if_its_answer_is_kill(here: Here) -> None:
    """While it waits, calls in flight go on (K-6)."""
    stopped: list[None] = []
    here.quarantine.on_stop = lambda: stopped.append(None)
    hold = here.quarantine.pause(paused())
    assert not stopped
    here.quarantine.answer(hold, "kill", NOW + 1, "ann")
    assert len(stopped) == 1


def test_calls_that_wait_are_woken_by_every_change(here: Here) -> None:
    """When a hold begins, is answered, is used, and ends, whoever ends it (K-6)."""
    changed: list[str] = []
    here.quarantine.on_change = lambda hold: changed.append(
        f"{hold.agent} {'held' if hold.key in here.quarantine.by_key else 'free'}"
    )
    here.kill("killed", until=NOW + 5)
    here.quarantine.sweep(NOW + 5)
    here.kill("elsewhere")
    here.quarantine.forget((AGENT, "p", "caller", "elsewhere"), NOW)
    once = here.quarantine.answer(here.quarantine.pause(paused()), "once", NOW, "ann")
    here.quarantine.use(once, NOW)
    assert changed == [
        "killed held", "killed free", "elsewhere held", "elsewhere free", "a held", "a held", "a free",
    ]  # fmt: skip
