"""Decisions with a store beyond a connection: the same as without one, in few round trips, and never without an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from breakloop.engine.engine import Engine
from breakloop.engine.procedure import TRIES
from breakloop.errors import StateError
from breakloop.model.call import Answer, Call, Usage
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import StoredWindow, WindowWrite
from tests.builders import Json, bucket, bundle, call, chat, exact, policy, tail, world
from tests.deadlines import DEADLINE_S
from tests.fake_remote import RemoteWorld, run
from tests.unit.engine.test_procedure import stuck

STEPS: Json = {"similarity": "steps"}
LIMITED = bundle(policy("p", bucket(rate=1, burst=2)))


def turn(count: int) -> Call:
    return chat(*stuck(count), headers={"authorization": "Bearer k"})


def session_key(there: RemoteWorld) -> str:
    return next(key for key in there.remote.windows._windows if key.startswith("win:default:s:"))


def outcome(verdict: Any) -> tuple[Any, ...]:
    loop = verdict.loop
    return (
        verdict.allowed,
        verdict.reason,
        verdict.warning,
        verdict.retry_after_s,
        None if loop is None else (loop.kind, loop.hit_count, loop.evidence),
        None if verdict.limit is None else verdict.limit.remaining,
    )


def test_the_same_verdicts_as_with_state_in_this_process() -> None:
    """In every door, with every store (E-7)."""

    def test() -> None:
        rules = bundle(policy("p", bucket(rate=1, burst=9), loop=[STEPS, tail(max_hits=3)]))
        there, here = RemoteWorld(rules), world(rules)
        for count in (0, 1, 1, 2, 3, 4, 5, 5, 6, 7, 7, 7, 8):
            assert outcome(there.decide(turn(count))) == outcome(here.engine.decide(turn(count)))
            there.here.clock.advance(2)
            here.clock.advance(2)
        assert there.here.engine.tally.denied == here.engine.tally.denied

    run(test)


def test_one_round_trip_when_the_window_is_known() -> None:
    """Two otherwise, and one more for each version conflict (S-2)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=STEPS)))
        there.decide(turn(0))
        first = dict(there.store.asked)
        there.decide(turn(1))
        assert first == {"read": 1, "commit": 1}
        assert there.store.asked == {"read": 1, "commit": 2}
        key = session_key(there)
        version, data = there.store.memory.read_window(key, there.here.clock.now())
        there.store.memory.commit((), there.here.clock.now(), [WindowWrite(key, version, data, 60.0)])
        there.decide(turn(2))
        assert there.store.asked == {"read": 1, "commit": 4}

    run(test)


def test_no_window_no_reading() -> None:
    """Limits alone take one round trip (S-2)."""

    def test() -> None:
        there = RemoteWorld(LIMITED)
        assert [there.decide(call()).allowed for _ in range(3)] == [True, True, False]
        assert there.store.asked == {"commit": 3}

    run(test)


def test_two_instances_see_one_loop() -> None:
    """Requests that alternate between them are stopped at the same one as with a single instance (S-2)."""

    def test() -> None:
        rules, shared = bundle(policy("p", loop=STEPS)), MemoryStore()
        alone, pair = world(rules), [RemoteWorld(rules, shared), RemoteWorld(rules, shared)]
        for count in range(8):
            expected = alone.engine.decide(turn(count))
            found = pair[count % 2].decide(turn(count))
            assert outcome(found) == outcome(expected)
            for one in (alone.clock, pair[0].here.clock, pair[1].here.clock):
                one.advance(3)
        assert sum(one.remote.degraded for one in pair) == 0

    run(test)


def test_requests_of_one_session_do_not_wait_for_each_other() -> None:
    """What is on its way is taken for written, so the second commit follows the first without a conflict (S-2)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=STEPS)))
        there.decide(turn(0))
        there.store.holds = True
        asked = [there.ask(turn(count)) for count in (1, 2, 3)]
        assert there.store.asked == {"read": 1, "commit": 4}
        there.store.deliver()
        assert [len(verdicts) for verdicts in asked] == [1, 1, 1]
        assert there.store.asked == {"read": 1, "commit": 4}
        assert asked[2][0].warning == "loop_detected"

    run(test)


def test_a_window_that_keeps_moving_is_given_up_after_some_tries() -> None:
    """A bounded number of round trips, then the decision is made without writing it (S-2)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=STEPS)))
        there.decide(turn(0))
        key, now, memory = session_key(there), there.here.clock.now(), there.store.memory
        before = memory.read_window(key, now).version

        def move_on() -> None:
            """Another instance writes in between."""
            version, data = memory.read_window(key, now)
            memory.commit((), now, [WindowWrite(key, version, data, 60.0)])

        there.store.holds = True
        there.store.before_commit = move_on
        asked = there.ask(turn(1))
        there.store.deliver()
        assert [verdict.allowed for verdict in asked] == [True]
        conflicts = 1 + TRIES
        assert there.store.asked == {"read": 1, "commit": 1 + conflicts + 1}  # the first request's; the last without
        assert there.here.engine.tally.conflicts == 1
        assert memory.read_window(key, now).version == before + conflicts + 1

    run(test)


def test_time_is_up() -> None:
    """Within its time budget the instance decides on its own state, and says so (S-3)."""

    async def test() -> None:
        there = RemoteWorld(LIMITED, budget_s=0.01)
        there.store.holds = True
        asked = there.ask(call())
        assert asked == []
        await asyncio.wait_for(until(lambda: asked), DEADLINE_S)
        assert (asked[0].allowed, asked[0].degraded) == (True, True)
        assert there.changes == [(False, "no response within 10 ms")]
        there.store.deliver()  # late: nobody looks at it
        assert len(asked) == 1
        assert [there.decide(call()).allowed for _ in range(2)] == [True, False]  # limits hold here, too
        assert there.store.asked["commit"] == 1
        there.remote.close()

    run(test)


async def until(condition: Any) -> None:
    """Let the loop go on until something has happened; whoever calls this sets the time limit."""
    while not condition():  # noqa: ASYNC110 - timers of the loop are what is waited for
        await asyncio.sleep(0)


def test_it_comes_back_by_itself() -> None:
    """Two good probes in a row; after a relapse it takes more (S-3)."""

    async def test() -> None:
        there = RemoteWorld(LIMITED)
        there.store.error = StateError("gone")
        assert there.decide(call()).degraded
        there.store.error = None
        await asyncio.wait_for(until(lambda: there.health.up), DEADLINE_S)
        assert there.store.asked["probe"] == 2
        assert [up for up, _ in there.changes] == [False, True]
        assert not there.decide(call()).degraded
        there.store.error = StateError("gone again")
        there.decide(call())
        there.store.error = None
        await asyncio.wait_for(until(lambda: there.health.up), DEADLINE_S)
        assert there.store.asked["probe"] == 6
        there.remote.close()

    run(test)


def test_a_policy_may_want_the_store() -> None:
    """`on_store_error: deny` (S-3)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", bucket(), on_store_error="deny")))
        there.store.error = StateError("gone")
        for _ in range(2):
            verdict = there.decide(call())
            assert (verdict.allowed, verdict.reason, verdict.degraded) == (False, "store_unavailable", True)
        there.remote.close()

    run(test)


def test_what_is_blocked_stays_blocked_without_the_store() -> None:
    """State is enforced locally: cooldowns that were seen, and what detectors remember (S-3)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=tail(max_hits=2)), policy("q", loop=exact(3))))
        assert [there.decide(chat()).allowed for _ in range(3)] == [True, True, False]
        there.store.error = StateError("gone")
        verdict = there.decide(chat())
        assert (verdict.allowed, verdict.degraded, verdict.reason) == (False, True, "loop_detected")
        steps = RemoteWorld(bundle(policy("p", loop=STEPS)))
        for count in range(4):
            steps.decide(turn(count))
        steps.store.error = StateError("gone")
        assert not steps.decide(turn(4)).allowed
        there.remote.close()
        steps.remote.close()

    run(test)


@pytest.mark.parametrize("step_s", [-3600.0, 86_400.0])
def test_local_state_does_not_follow_the_clock(step_s: float) -> None:
    """The clock of the shared store is set, then it is gone: what was blocked stays so for its cooldown (S-2, S-3)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=tail(max_hits=2, cooldown_seconds=30))))
        assert [there.decide(chat()).allowed for _ in range(3)] == [True, True, False]
        there.store.error = StateError("gone")
        assert there.decide(chat()).retry_after_s == 30
        there.here.clock.step(step_s)
        there.here.clock.advance(10.0)
        assert there.decide(chat()).retry_after_s == 20
        there.here.clock.advance(20.0)
        assert there.decide(chat()).allowed
        there.remote.close()

    run(test)


def test_a_call_is_settled_where_it_was_decided() -> None:
    """A charge is corrected in the store that has it (L-3, S-3)."""

    def test() -> None:
        rule = {
            "name": "r",
            "limit_keys": [],
            "algorithm": "token_bucket_llm",
            "algorithm_config": {"tokens_per_minute": 6000, "burst_tokens": 6000},
        }
        there = RemoteWorld(bundle(policy("p", rule, loop=exact(3))))
        asked = chat()
        asked.tracked = True
        there.decide(asked)
        there.settle(asked, Answer(200, usage=Usage(10, 10)))
        assert there.store.asked == {"commit": 1, "correct": 1, "settle": 1}
        there.store.error = StateError("gone")
        local = chat()
        local.tracked = True
        there.decide(local)
        there.store.error = None
        there.settle(local, Answer(200, usage=Usage(10, 10)))
        assert there.store.asked == {"commit": 2, "correct": 1, "settle": 1}
        there.remote.close()

    run(test)


def test_a_fault_of_ours_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's answer is read for others, too: nothing is raised into it."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Engine, "fold", broken)

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=STEPS)))
        assert there.decide(turn(0)).allowed
        assert [type(error) for error in there.faults] == [ZeroDivisionError]

    run(test)


def test_closing_decides_what_is_open() -> None:
    """Nobody waits for ever (S-6)."""

    def test() -> None:
        there = RemoteWorld(LIMITED)
        there.store.holds = True
        asked = there.ask(call())
        there.remote.close()
        assert asked[0].degraded

    run(test)


def test_dropping() -> None:
    """A release clears what was remembered, here and there (G-1)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=STEPS)))
        there.decide(turn(0))
        key = session_key(there)
        there.remote.drop([key])
        assert there.remote.windows.missing([key]) == [key]
        assert there.store.memory.read_window(key, there.here.clock.now()).version == 0

    run(test)


def test_a_release_without_the_store_clears_what_is_blocked_here() -> None:
    """What was blocked there is remembered here, and forgotten with it (G-1, S-3)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=tail(max_hits=2))))
        blocked = [there.decide(chat()) for _ in range(3)][-1]
        assert blocked.loop is not None
        there.store.error = StateError("gone")
        assert not there.decide(chat()).allowed
        [key] = [key for key in there.store.memory._repeats.cooldowns if key.endswith(blocked.loop.fingerprint)]
        there.remote.drop([key])
        assert there.decide(chat()).allowed
        there.remote.close()

    run(test)


def test_a_copy_that_led_to_nothing_has_to_be_the_newest_all_the_same() -> None:
    """What was read and not changed is checked with the commit, and read again where it has moved on (E-7)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=STEPS)))
        there.decide(turn(0))
        key, now = session_key(there), there.here.clock.now()
        newest = there.store.memory.read_window(key, now)
        there.store.memory.commit((), now, [WindowWrite(key, newest.version, newest.data, 60.0)])
        done = there.store.memory.commit((), now, [WindowWrite(key, newest.version, None, 60.0)])
        assert done.conflict == {key: StoredWindow(newest.version + 1, newest.data)}
        assert there.store.memory.commit((), now, [WindowWrite(key, newest.version + 1, None, 60.0)]).conflict is None
        assert there.store.memory.read_window(key, now).version == newest.version + 1

    run(test)


def test_two_answers_in_time_that_are_too_long_together() -> None:
    """The decision is made without the store, which is slow and not gone: it is not given up for others (S-3)."""

    async def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=STEPS)), budget_s=0.01)
        there.store.holds = True
        asked = there.ask(turn(0))
        there.store.deliver(1)  # the window; the commit does not come
        assert there.store.asked == {"read": 1, "commit": 1}
        await asyncio.wait_for(until(lambda: asked), DEADLINE_S)
        assert (asked[0].allowed, asked[0].degraded) == (True, True)
        assert (there.health.up, there.changes) == (True, [])
        again = there.ask(turn(1))
        assert there.store.asked == {"read": 1, "commit": 2}
        there.store.deliver()
        assert [verdict.degraded for verdict in again] == [False]
        there.remote.close()

    run(test)


class SlowTurns:
    """A loop whose turns take as long as the test says. Due timers run first, then the rest of the turn passes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> SlowTurns:
        return self.call_at(self.now + delay_s, callback)

    def call_at(self, when: float, callback: Callable[[], None]) -> SlowTurns:
        self.timers.append((when, callback))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def turn(self, takes_s: float) -> None:
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, callback in due:
            callback()
        self.now += takes_s


def slow_turns(there: RemoteWorld) -> SlowTurns:
    there.store.holds = True
    loop = SlowTurns()
    there.remote._loop = cast("asyncio.AbstractEventLoop", loop)
    return loop


def test_time_in_which_this_process_was_busy_is_not_the_stores() -> None:
    """Other work may take several turns of the loop in a row before the reply is read (S-3)."""

    def test() -> None:
        there = RemoteWorld(LIMITED)
        loop = slow_turns(there)
        asked = there.ask(call())
        for _ in range(5):
            loop.turn(0.5)
        there.store.deliver()
        assert ([verdict.degraded for verdict in asked], there.changes) == ([False], [])

    run(test)


def test_a_store_that_does_not_respond_is_given_up_by_a_busy_process_too() -> None:
    """After the time budget if the loop is free, and after a few turns whatever they take (S-3)."""

    def test() -> None:
        for takes_s, most_s in ((0.001, 0.06), (0.5, 6.0)):
            there = RemoteWorld(LIMITED)
            loop = slow_turns(there)
            asked = there.ask(call())
            while not asked:
                loop.turn(takes_s)
            assert 0.05 <= loop.now <= most_s
            assert (asked[0].degraded, there.changes) == (True, [(False, "no response within 50 ms")])

    run(test)


def test_a_busy_process_does_not_take_probes_for_failed() -> None:
    """Or the store would not be used again for as long as the load lasts (S-3)."""

    def test() -> None:
        there = RemoteWorld(LIMITED)
        loop = slow_turns(there)
        there.remote.failed("gone")
        for _ in range(12):
            loop.turn(0.3)
            loop.turn(0.3)
            there.store.deliver()
        assert [up for up, _ in there.changes] == [False, True]

    run(test)


def test_a_probe_that_stays_without_reply_fails() -> None:
    """A store that replies late is not used (S-3)."""

    def test() -> None:
        there = RemoteWorld(LIMITED)
        loop = slow_turns(there)
        there.remote.failed("gone")
        for probes in range(1, 11):
            while there.store.asked["probe"] < probes:
                loop.turn(0.001)
            for _ in range(80):  # later than the budget, before the next probe
                loop.turn(0.001)
            there.store.deliver()
        assert not there.health.up

    run(test)


def test_the_end_is_no_failure() -> None:
    """Answers that do not come because this process ends are not told as a failure of the store (S-6)."""

    def test() -> None:
        there = RemoteWorld(LIMITED)
        there.store.holds = True
        there.ask(call())
        there.remote.close()
        there.remote.failed("closed")
        assert there.changes == []

    run(test)
