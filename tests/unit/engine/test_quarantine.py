"""Who is held, for how long, and how a hold ends (G-1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from breakloop.engine.pauses import KEPT_S, Question
from breakloop.engine.quarantine import AGENT, CALLER, HOLDS_MAX, NAME, RUN, Hold, Key, Quarantine, held
from breakloop.store.ops import WindowWrite
from tests.builders import FailingStore
from tests.unit.engine.holds import DUE, NOW, Here, Kept, paused


@pytest.fixture
def here() -> Here:
    return Here()


def test_nobody_is_held_at_first(here: Here) -> None:
    assert not here.quarantine
    assert here.find("a") is None


def test_an_agent_of_one_caller_is_held(here: Here) -> None:
    """Automatic quarantine binds caller and agent (G-1)."""
    here.kill("a")
    assert here.quarantine
    assert len(here.quarantine) == 1
    found = here.find("a")
    assert found is not None
    assert (found.binds, found.why) == (AGENT, "it loops")
    assert here.find("b") is None
    assert here.find("a", caller="other") is None


def test_its_time_ends_it(here: Here) -> None:
    """Until `quarantine_seconds` pass (G-1)."""
    here.kill("a", until=NOW + 60)
    assert here.find("a", at=NOW + 59.9) is not None
    assert here.quarantine.holds(NOW + 60) == []
    assert here.find("a", at=NOW + 60) is None
    assert not here.quarantine
    assert [event.name for event in here.events] == ["agent.killed", "agent.released"]
    assert here.events[0].data["expires_at"] == NOW + 60


def test_the_third_agent_holds_the_caller(here: Here) -> None:
    """And the caller after 3 of its agents in 10 minutes (G-1)."""
    here.kill("a", at=NOW)
    here.kill("a", at=NOW + 1, until=math.inf)  # the same one again is not another
    here.kill("b", at=NOW + 300)
    assert here.find("c", at=NOW + 301) is None
    here.kill("c", at=NOW + 599)
    found = here.find("d", at=NOW + 600)
    assert found is not None
    assert found.binds == CALLER
    assert found.why == "3 of its agents were stopped within 10 minutes; the last: it loops"


def test_an_operator_binds_the_name(here: Here) -> None:
    """An operator's kill binds the agent's name in its project, whoever calls (G-1)."""
    here.quarantine.hold(Hold(NAME, "p", "", "a", NOW, math.inf, "by hand", by="ann"))
    assert here.find("a", caller="anybody") is not None
    assert here.quarantine.find("other", "anybody", "a", lambda: "", NOW) is None


def test_a_run_is_held_by_itself(here: Here) -> None:
    """A run at its ceiling, and no other one of the agent (G-1)."""
    here.quarantine.hold(Hold(RUN, "p", "caller", "a", NOW, math.inf, "50 steps", "s-1"))
    found = here.find("a", run="s-1")
    assert found is not None
    assert held(found, NOW).reason == "run_limit_exceeded"
    assert here.find("a", run="s-2") is None


def test_release_ends_it_and_clears_what_was_remembered(here: Here) -> None:
    """A person releases it, which also clears its windows (G-1)."""
    here.store.commit([], NOW, [WindowWrite("win:p:s:1:", 0, b"x", 60.0), WindowWrite("win:p:s:2:", 0, b"y", 60.0)])
    here.kill("a", clears=("win:p:s:1:",))
    ended = here.quarantine.release("p", agent="a", now=NOW + 1)
    assert [hold.agent for hold in ended] == ["a"]
    assert here.find("a") is None
    assert here.store.read_window("win:p:s:1:", NOW).version == 0
    assert here.store.read_window("win:p:s:2:", NOW).version == 1
    assert here.events[-1].data["reason"] == "released"
    assert here.quarantine.release("p", agent="a", now=NOW + 1) == []


def test_release_is_as_narrow_as_it_is_asked_for(here: Here) -> None:
    here.kill("a")
    here.quarantine.hold(Hold(AGENT, "p", "other", "a", NOW, math.inf, "it loops"))
    here.quarantine.hold(Hold(RUN, "p", "other", "a", NOW, math.inf, "50 steps", "s-1"))
    assert [hold.run for hold in here.quarantine.release("p", run="s-1", now=NOW)] == ["s-1"]
    assert [hold.caller for hold in here.quarantine.release("p", agent="a", caller="other", now=NOW)] == ["other"]
    assert here.quarantine.release("elsewhere", agent="a", now=NOW) == []
    assert [hold.caller for hold in here.quarantine.holds(NOW)] == ["caller"]


def test_what_ends_by_itself_still_counts_against_the_caller(here: Here) -> None:
    """Three of its agents in ten minutes, however short they were held (G-1)."""
    for number, agent in enumerate("ab"):
        here.kill(agent, at=NOW + 60 * number, until=NOW + 60 * number + 30)
        assert here.find(agent, at=NOW + 60 * number + 31) is None
    here.kill("c", at=NOW + 120, until=NOW + 150)
    found = here.find("d", at=NOW + 121)
    assert found is not None
    assert found.binds == CALLER


def test_a_release_survives_the_store(here: Here) -> None:
    """What was remembered runs out by itself; the request is not stopped for it (LD-7)."""
    quarantine = Quarantine(FailingStore().drop, here.events.append)
    quarantine.hold(Hold(AGENT, "p", "caller", "a", NOW, NOW + 5, "it loops", clears=("win:p:s:1:",)))
    assert quarantine.find("p", "caller", "a", lambda: "", NOW + 6) is None
    assert [event.name for event in here.events] == ["agent.killed", "store.degraded", "agent.released"]


def test_what_a_person_holds_is_never_crowded_out(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything that still holds, while something else is over (G-1, Y-2)."""
    monkeypatch.setattr("breakloop.engine.quarantine.HOLDS_MAX", 3)
    here.quarantine.hold(Hold(NAME, "p", "", "rogue", NOW, math.inf, "by hand", by="ann"))
    here.quarantine.hold(Hold(AGENT, "p", "caller-0", "a", NOW, NOW + 1, "it loops"))
    for number in range(1, 6):
        here.quarantine.hold(Hold(AGENT, "p", f"caller-{number}", "a", NOW + 2, math.inf, "it loops"))
    assert [hold.caller or hold.agent for hold in here.quarantine.holds(NOW)] == ["rogue", "caller-4", "caller-5"]


def test_what_has_just_ended_makes_room_before_what_still_holds(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """However old that is (G-1, Y-2)."""
    monkeypatch.setattr("breakloop.engine.quarantine.HOLDS_MAX", 2)
    for caller, since, until in (("old", NOW, math.inf), ("over", NOW, NOW + 5), ("new", NOW + 5, math.inf)):
        here.quarantine.hold(Hold(AGENT, "p", caller, "a", since, until, "it loops"))
    assert [hold.caller for hold in here.quarantine.holds(NOW)] == ["old", "new"]


def test_after_a_release_the_count_of_agents_begins_anew(here: Here) -> None:
    here.kill("a")
    here.kill("b")
    here.quarantine.release("p", agent="b", now=NOW)
    here.kill("c")
    assert here.find("z") is None


def test_a_longer_hold_wins(here: Here) -> None:
    here.kill("a", until=NOW + 60)
    here.kill("a", until=NOW + 30)
    here.kill("a", until=NOW + 60)
    here.kill("a", until=NOW + 90)
    [hold] = here.quarantine.holds(NOW)
    assert hold.until == NOW + 90
    assert len(here.events) == 2


def test_it_stays_bounded(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invented names fill no memory; the oldest goes (Y-2)."""
    assert HOLDS_MAX >= 10_000
    monkeypatch.setattr("breakloop.engine.quarantine.HOLDS_MAX", 3)
    for number in range(6):
        here.quarantine.hold(Hold(AGENT, "p", f"caller-{number}", "a", NOW, math.inf, "it loops"))
    assert [hold.caller for hold in here.quarantine.holds(NOW)] == ["caller-3", "caller-4", "caller-5"]


def test_blocked_loops_stay_bounded(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 for each sender, and 10,000 senders; the oldest goes (Y-2)."""
    for count in (256, 257):
        here.quarantine.blocked(("p", "caller", "a"), {f"k{number}": NOW + 60 for number in range(count)})
        assert here.quarantine.unblock("p", agent="a", now=NOW) == 256
    monkeypatch.setattr("breakloop.engine.quarantine.BLOCKED_MAX", 2)
    for agent in "abc":
        here.quarantine.blocked(("p", "caller", agent), {f"k{agent}": NOW + 60})
    assert [here.quarantine.unblock("p", agent=agent, now=NOW) for agent in "abc"] == [0, 1, 1]


def test_a_loop_that_blocks_again_is_not_the_oldest(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a release has to clear is what blocked last (G-1)."""
    monkeypatch.setattr("breakloop.engine.quarantine.BLOCKED_KEYS_MAX", 2)
    dropped: list[str] = []
    here.quarantine.drop_with(dropped.extend)
    for key in ("first", "second", "first", "third"):
        here.quarantine.blocked(("p", "caller", "a"), {key: NOW + 60})
    here.quarantine.unblock("p", agent="a", now=NOW)
    assert dropped == ["first", "third"]


def test_a_loop_blocks_until_its_time(here: Here) -> None:
    """A release says how many it ended (G-1)."""
    for now, number in ((NOW + 59, 1), (NOW + 60, 0)):
        here.quarantine.blocked(("p", "caller", "a"), {"k": NOW + 60})
        assert here.quarantine.unblock("p", agent="a", now=now) == number


def test_callers_are_remembered_while_there_is_room(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their third agent holds them as a whole (G-1, Y-2)."""
    monkeypatch.setattr("breakloop.engine.quarantine.HOLDS_MAX", 2)
    for agent in "ab":
        for caller in ("one", "two"):
            here.quarantine.hold(Hold(AGENT, "p", caller, agent, NOW, math.inf, "it loops"))
    here.quarantine.hold(Hold(AGENT, "p", "one", "c", NOW, math.inf, "it loops"))
    found = here.find("z", caller="one")
    assert found is not None
    assert found.binds == CALLER


@pytest.mark.parametrize(("seconds", "held_as_a_whole"), [(599.9, True), (600.0, False)])
def test_agents_of_the_last_ten_minutes_count(here: Here, seconds: float, held_as_a_whole: bool) -> None:
    for agent, at in (("a", NOW), ("b", NOW + 1), ("c", NOW + seconds)):
        here.kill(agent, at=at)
    assert (here.find("another", at=NOW + seconds) is not None) == held_as_a_whole


def test_what_begins_and_what_is_ended_is_kept(here: Here) -> None:
    """Before it is told; what ends by itself needs no word (S-1)."""
    kept = Kept(here)
    here.kill("a", until=NOW + 5)
    here.kill("b")
    here.kill("c")
    assert here.find("a", at=NOW + 6, caller="other") is None
    here.quarantine.sweep(NOW + 6)
    here.quarantine.release("p", agent="b", now=NOW, by="ann")
    assert kept.heard == ["agent a", "agent b", "agent c", "caller caller", "end of b by ann"]
    assert here.events[-1].data["by"] == "ann"


def test_what_is_crowded_out_is_not_kept_either(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breakloop.engine.quarantine.HOLDS_MAX", 1)
    kept = Kept(here)
    here.kill("a")
    here.kill("b", until=NOW + 5)
    here.kill("b", at=NOW + 6)
    assert kept.heard == ["agent a", "end of a by ", "agent b", "agent b"]


def test_what_is_adopted_binds_and_is_neither_kept_nor_told(here: Here) -> None:
    """From the disk, or from another instance (S-1, K-3)."""
    kept = Kept(here)
    for agent in "ab":
        here.quarantine.adopt(Hold(AGENT, "p", "caller", agent, NOW, NOW + 60, "it loops"), foreign=agent == "b")
    assert here.find("a") is not None
    assert here.find("b") is not None
    assert (kept.heard, here.events) == ([], [])
    here.quarantine.sweep(NOW + 60)
    assert [event.data["agent"] for event in here.events] == ["a"]  # whoever held the other tells of its end


def test_what_is_held_here_too_is_told_here(here: Here) -> None:
    """A hold that another instance made, and that this one prolongs (K-3)."""
    here.quarantine.adopt(Hold(AGENT, "p", "caller", "a", NOW, NOW + 60, "it loops"), foreign=True)
    here.kill("a", until=NOW + 90)
    here.quarantine.sweep(NOW + 90)
    assert [event.name for event in here.events] == ["agent.killed", "agent.released"]


def test_agents_that_others_held_count_against_the_caller(here: Here) -> None:
    """Three of its agents, wherever in the fleet (G-1)."""
    for agent in "ab":
        here.quarantine.adopt(Hold(AGENT, "p", "caller", agent, NOW, math.inf, "it loops"), foreign=True)
    here.kill("c", at=NOW + 1)
    found = here.find("z")
    assert found is not None
    assert found.binds == CALLER


def test_what_another_instance_ended_is_cleared_here_too(here: Here) -> None:
    """Windows of this process may be in use while the shared store is away (G-1)."""
    here.store.commit([], NOW, [WindowWrite("win:p:s:1:", 0, b"x", 60.0)])
    here.kill("a", clears=("win:p:s:1:",))
    told = len(here.events)
    here.quarantine.forget((AGENT, "p", "caller", "a"), NOW)
    here.quarantine.forget((AGENT, "p", "caller", "a"), NOW)
    assert here.find("a") is None
    assert here.store.read_window("win:p:s:1:", NOW).version == 0
    assert len(here.events) == told
    here.kill("b")
    here.kill("c")
    assert here.find("z") is None  # two agents of this caller, not three


@pytest.mark.parametrize(
    ("agent", "caller", "binds"), [("a", "", NAME), ("a", "caller", AGENT), ("", "caller", CALLER)]
)
def test_whom_a_release_of_loops_is_for(here: Here, agent: str, caller: str, binds: str) -> None:
    """Other instances get it as an order about the same sender (G-1, K-3)."""
    ended: list[Hold] = []

    class Register(Kept):
        def ended(self, holds: Sequence[Hold], by: str) -> None:
            ended.extend(holds)

    Register(here)
    here.quarantine.unblock("p", agent=agent, caller=caller, now=NOW, by="ann")
    assert [(order.binds, order.agent, order.caller, order.by) for order in ended] == [(binds, agent, caller, "ann")]


@pytest.mark.parametrize(
    ("hold", "message", "retry"),
    [
        (
            Hold(AGENT, "p", "c", "a", NOW, math.inf, "it loops"),
            'Agent "a" is quarantined: it loops. A person has to release it.',
            None,
        ),
        (
            Hold(CALLER, "p", "c", "", NOW, NOW + 9.5, "they loop"),
            "This caller is quarantined: they loop. It ends in 10 s.",
            10,
        ),
    ],
)
def test_what_the_client_is_told(hold: Hold, message: str, retry: int | None) -> None:
    """A denial with its reason; an SDK does not try again by itself (A-1, A-4)."""
    verdict = held(hold, NOW)
    assert (verdict.allowed, verdict.reason, verdict.status) == (False, "agent_quarantined", 429)
    assert verdict.message == message
    assert verdict.rule == f"quarantine/{hold.binds}"  # for logs and metrics
    assert verdict.retry_after_s == retry
    assert verdict.never


def test_prolonging_a_hold_needs_no_room(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full table loses no other hold (G-1, Y-2)."""
    monkeypatch.setattr("breakloop.engine.quarantine.HOLDS_MAX", 2)
    for agent, until in (("a", math.inf), ("b", NOW + 60), ("b", NOW + 90)):
        here.kill(agent, until=until)
    assert [(hold.agent, hold.until) for hold in here.quarantine.holds(NOW)] == [("a", math.inf), ("b", NOW + 90)]


def test_expired_holds_make_room_without_a_record_of_their_end(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a hold expires by itself (S-1, Y-2)."""
    monkeypatch.setattr("breakloop.engine.quarantine.HOLDS_MAX", 2)
    kept = Kept(here)
    for caller, since, until in (("old", NOW, math.inf), ("over", NOW, NOW + 5), ("new", NOW + 5, math.inf)):
        here.quarantine.hold(Hold(AGENT, "p", caller, caller, since, until, "it loops"))
    assert [hold.caller for hold in here.quarantine.holds(NOW)] == ["old", "new"]
    assert kept.heard == ["agent old", "agent over", "agent new"]


def test_of_operators_holds_alone_the_oldest_makes_room(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest order always applies (G-1, Y-2)."""
    monkeypatch.setattr("breakloop.engine.quarantine.HOLDS_MAX", 2)
    for agent in "abc":
        here.kill(agent, by="ann")
    assert [hold.agent for hold in here.quarantine.holds(NOW)] == ["b", "c"]


@pytest.mark.parametrize(
    "more", [{"binds": RUN, "run": "s"}, {"by": "ann"}, {"question": Question("q", NOW + 60, "deny")}]
)
def test_only_killed_agents_count_against_the_caller(here: Here, more: dict[str, Any]) -> None:
    """Not runs at a ceiling, orders of an operator or pauses, of this instance or of another one (G-1)."""
    for number, agent in enumerate("ab"):
        hold = replace(Hold(AGENT, "p", "caller", agent, NOW, math.inf, "it loops"), **more)
        hold = replace(hold, run=f"{hold.run}{number}" if hold.run else "")
        here.quarantine.adopt(hold, foreign=True)
        if hold.question is None:
            here.quarantine.hold(replace(hold, caller="another"))
            here.quarantine.hold(replace(hold, caller="another", agent=f"{agent}2", run=f"{hold.run}2"))
    here.kill("c")
    assert here.find("z") is None
    assert here.find("z", caller="another") is None


STEP = 3600.0


def test_a_hold_moves_with_the_clock(here: Here) -> None:
    """Its start, its end and the time for an answer; a hold without an end keeps the time of its order (S-2)."""
    here.kill("a", until=NOW + 60)
    here.kill("b", until=math.inf)
    here.quarantine.pause(paused())
    here.quarantine.step(STEP)
    a, b, run = here.quarantine.by_key.values()
    assert (a.since, a.until) == (NOW + STEP, NOW + STEP + 60)
    assert (b.since, b.until) == (NOW, math.inf)
    assert run.question is not None
    assert (run.since, run.until, run.question.due) == (NOW + STEP, DUE + STEP + KEPT_S, DUE + STEP)


@pytest.mark.parametrize("step_s", [STEP, -STEP])
@pytest.mark.parametrize(("seconds", "held_as_a_whole"), [(599.5, True), (600.0, False)])
def test_killed_agents_count_for_ten_minutes_whatever_the_clock_is_set_to(
    here: Here, step_s: float, seconds: float, held_as_a_whole: bool
) -> None:
    """Ten minutes that have passed, and not ten minutes of the time of day (S-2, G-1)."""
    here.kill("a")
    here.kill("b")
    here.quarantine.step(step_s)
    here.kill("c", at=NOW + step_s + seconds)
    assert (here.find("z", at=NOW + step_s + seconds) is not None) == held_as_a_whole


@pytest.mark.parametrize("step_s", [STEP, -STEP])
def test_a_loop_blocks_as_long_whatever_the_clock_is_set_to(here: Here, step_s: float) -> None:
    """A release returns the loops that are still blocked (S-2, G-1)."""
    for now, number in ((NOW + 59.5, 1), (NOW + 60, 0)):
        here.quarantine.blocked(("p", "caller", "a"), {"k": NOW + 60})
        here.quarantine.step(step_s)
        assert here.quarantine.unblock("p", agent="a", now=now + step_s) == number


@pytest.mark.parametrize(
    ("agent", "caller", "cleared"),
    [
        ("a", "", ["p|one|a", "p|two|a"]),
        ("a", "one", ["p|one|a"]),
        ("", "one", ["p|one|a", "p|one|b"]),
        ("one", "", []),
        ("", "a", []),
        ("p", "", []),
    ],
)
def test_loops_of_other_senders_stay_blocked(here: Here, agent: str, caller: str, cleared: list[str]) -> None:
    """Of other agents, callers and projects (G-1)."""
    dropped: list[Sequence[str]] = []
    here.quarantine.drop_with(dropped.append)
    for who in (("p", "one", "a"), ("p", "one", "b"), ("p", "two", "a"), ("q", "one", "a")):
        here.quarantine.blocked(who, {"|".join(who): NOW + 60})
    assert here.quarantine.unblock("p", agent=agent, caller=caller, now=NOW) == len(cleared)
    assert dropped == ([tuple(cleared)] if cleared else [])
    assert here.events == []


@pytest.mark.parametrize(
    ("key", "left"),
    [
        ((AGENT, "p", "one", "a"), 1),
        ((NAME, "p", "", "a"), 1),
        ((CALLER, "p", "one", ""), 0),
        ((RUN, "p", "one", "a"), 2),
    ],
)
def test_what_another_instance_released_is_not_blocked_here(here: Here, key: Key, left: int) -> None:
    """The loops of the agent or of the caller; the end of a run's hold clears the run only (G-1, K-3)."""
    for agent in "ab":
        here.quarantine.blocked(("p", "one", agent), {agent: NOW + 60})
    here.quarantine.forget(key, NOW)
    assert here.quarantine.unblock("p", caller="one", now=NOW) == left


def test_a_release_of_loops_is_published_only_if_there_were_any(here: Here) -> None:
    """Here, or in the history; the other instances get the order in any case (G-1, K-3)."""
    kept = Kept(here)
    assert here.quarantine.unblock("p", agent="a", now=NOW, by="ann") == 0
    assert (here.events, kept.heard) == ([], ["end of a by ann"])
    assert here.quarantine.unblock("p", agent="a", now=NOW, by="ann", seen=1) == 1
    [told] = here.events
    assert (told.name, told.data["binds"], told.data["expires_at"]) == ("agent.released", NAME, None)


@pytest.mark.parametrize(
    ("more", "stops"), [({}, 0), ({"by": "ann"}, 1), ({"by": "ann", "lands": True}, 0), ({"lands": True}, 0)]
)
def test_an_operators_kill_stops_calls_in_flight(here: Here, more: dict[str, Any], stops: int) -> None:
    """An automatic hold and a run that is asked to finish let them end (K-4)."""
    stopped: list[None] = []
    here.quarantine.on_stop = lambda: stopped.append(None)
    here.kill("a", **more)
    assert len(stopped) == stops


def test_a_run_that_is_asked_to_finish_has_two_requests(here: Here) -> None:
    """Two more after another order (G-6)."""
    order = Hold(RUN, "p", "caller", "a", NOW, math.inf, "INC-1", "s-1", by="ann", lands=True)
    for _ in range(2):
        here.quarantine.hold(order)
        assert [here.quarantine.lands(order) for _ in range(4)] == [True, True, False, False]


@pytest.mark.parametrize("end", ["released", "ended elsewhere", "makes room"])
def test_nothing_is_left_of_a_run_that_had_to_finish(here: Here, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However its hold ends (Y-2)."""
    order = Hold(RUN, "p", "caller", "a", NOW, math.inf, "INC-1", "s-1", by="ann", lands=True)
    here.quarantine.hold(order)
    here.quarantine.lands(order)
    if end == "released":
        here.quarantine.release("p", run="s-1", now=NOW)
    elif end == "ended elsewhere":
        here.quarantine.forget(order.key, NOW)
    else:
        monkeypatch.setattr("breakloop.engine.quarantine.HOLDS_MAX", 1)
        here.kill("another")
    assert order.key not in here.quarantine.by_key
    assert here.quarantine._landed == {}


def test_a_tree_that_was_stopped_holds_a_run_without_a_hold_of_its_own(here: Here) -> None:
    """Only if an operator stopped it: the ceiling of a run is its own (K-4)."""
    for by in ("", "ann"):
        here.quarantine.hold(Hold(RUN, "p", "caller", "a", NOW, math.inf, "the tree", "root", by=by))
        found = here.quarantine.find("p", "caller", "b", lambda: "s-2", NOW, lambda: ("root",))
        assert (found is not None) == bool(by)


def test_a_release_of_what_another_instance_held_is_published_here(here: Here) -> None:
    """If an operator ordered it here (K-3)."""
    for agent in "ab":
        here.quarantine.adopt(Hold(AGENT, "p", "caller", agent, NOW, math.inf, "it loops"), foreign=True)
    here.quarantine.release("p", agent="a", now=NOW)
    here.quarantine.release("p", agent="b", now=NOW, by="ann")
    assert [(event.data["agent"], event.data["by"]) for event in here.events] == [("b", "ann")]


@pytest.mark.parametrize(
    ("hold", "reason", "message"),
    [
        (
            Hold(RUN, "p", "c", "a", NOW, math.inf, "INC-1", "s", by="ann"),
            "agent_quarantined",
            "This agent was stopped with its tree: INC-1. A person has to release it.",
        ),
        (
            Hold(RUN, "p", "c", "a", NOW, NOW + 5, "INC-1", "s", by="ann", lands=True),
            "agent_quarantined",
            "This agent was asked to finish with its tree: INC-1. It ends in 5 s.",
        ),
        (
            Hold(RUN, "p", "c", "a", NOW, math.inf, "50 steps", "s"),
            "run_limit_exceeded",
            "This run has reached its ceiling: 50 steps. A person has to release it.",
        ),
        (
            Hold(NAME, "p", "", "a", NOW, NOW + 4.1, "INC-1", by="ann"),
            "agent_quarantined",
            'Agent "a" is quarantined: INC-1. It ends in 5 s.',
        ),
    ],
)
def test_why_a_run_or_a_name_is_held(hold: Hold, reason: str, message: str) -> None:
    """A ceiling that was reached, or the order of an operator (A-1, A-4)."""
    verdict = held(hold, NOW)
    assert (verdict.allowed, verdict.reason, verdict.status, verdict.never) == (False, reason, 429, True)
    assert verdict.message == message
    assert verdict.rule == f"quarantine/{hold.binds}"
    assert verdict.retry_after_s == (None if hold.until == math.inf else 5)
