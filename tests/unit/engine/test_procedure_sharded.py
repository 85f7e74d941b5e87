"""Windows that several agents share, where each agent has a place of its own: judged first, in a commit of their own."""

from __future__ import annotations

from typing import Any

from breakloop.engine.plan import Plan
from breakloop.engine.procedure import TRIES, find_windows
from breakloop.errors import StateError
from breakloop.model.call import Call
from breakloop.policy.descriptors import ContextSettings
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import StoredWindow, WindowWrite
from tests.builders import SECRET, Json, bucket, bundle, call, chat, exact, policy, user, world
from tests.fake_remote import RemoteWorld, run

BY_AGENT = ContextSettings(secret=SECRET, shard_by_agent=True)
SPAWN: Json = {"similarity": "steps", "thresholds": {"spawn": [2, 3, "never"]}}
TASK = "The nightly build fails. Find out why, and mend it."


def helper(number: int, agent: str = "") -> Call:
    """The first request of a helper that the one before has begun, each by an agent of its own."""
    parent = f"helper-{number - 1}" if number else "lead"
    who = {"authorization": "Bearer k", "x-agent-id": agent or f"agent-{number}"}
    return chat(user(TASK), headers={**who, "x-agent-session": f"helper-{number}", "x-agent-parent": parent})


def rules(**more: Any) -> Json:
    return bundle(policy("p", bucket(rate=1, burst=9), loop=SPAWN, **more))


def outcome(verdict: Any) -> tuple[Any, ...]:
    loop = verdict.loop
    return (verdict.allowed, verdict.reason, verdict.warning, loop and (loop.kind, loop.hit_count, loop.evidence))


def places(there: RemoteWorld) -> list[list[str]]:
    """Where the windows of each commit were."""
    return [[key.split(":")[1] for key in keys] for _, keys in there.store.committed]


def test_they_are_judged_before_the_agents_own() -> None:
    """No commit has windows of two places; agents that hand a task on are found as in one process (E-5, S-2)."""

    def test() -> None:
        there, here = RemoteWorld(rules(), settings=BY_AGENT), world(rules())
        verdicts = [there.decide(helper(number)) for number in range(4)]
        assert [outcome(one) for one in verdicts] == [outcome(here.engine.decide(helper(n))) for n in range(4)]
        assert [one.allowed for one in verdicts] == [True, True, False, False]
        assert places(there)[:4] == [["default"], ["default|agent-0"], ["default"], ["default|agent-1"]]
        assert verdicts[2].loop is not None
        assert verdicts[2].loop.kind == "spawn"
        assert there.here.engine.tally.denied == here.engine.tally.denied

    run(test)


def test_round_trips() -> None:
    """Two more where a conversation begins that another has begun, one where that window is known; else none (S-2)."""

    def test() -> None:
        there = RemoteWorld(rules(), settings=BY_AGENT)
        there.decide(helper(0))
        assert there.store.asked == {"read": 2, "commit": 2}
        there.decide(helper(1))
        assert there.store.asked == {"read": 3, "commit": 4}  # its own window is new, the caller's is known
        there.decide(chat(user("hello"), headers={"authorization": "Bearer k", "x-agent-id": "agent-1"}))
        assert there.store.asked == {"read": 4, "commit": 5}

    run(test)


def test_what_a_shadow_policy_finds_there_denies_nobody() -> None:
    """It is told aside (E-1)."""

    def test() -> None:
        there = RemoteWorld(rules(mode="shadow"), settings=BY_AGENT)
        verdicts = [there.decide(helper(number)) for number in range(4)]
        assert [(one.allowed, len(one.shadow)) for one in verdicts] == [(True, 0), (True, 1), (True, 1), (True, 1)]

    run(test)


def test_one_that_moves_on_is_judged_again_and_counted_once() -> None:
    """At most three times; the agent's own window is looked at once (E-5, S-2)."""

    def test() -> None:
        memory = MemoryStore()
        there, other = (RemoteWorld(rules(), memory, settings=BY_AGENT) for _ in range(2))
        notes: dict[str, str] = {}
        there.share_names(notes)
        other.share_names(notes)
        assert there.decide(helper(0)).allowed
        assert other.decide(helper(1)).warning
        verdict = there.decide(helper(2))  # its copy of the tree's window is old
        assert (verdict.allowed, verdict.reason) == (False, "loop_detected")
        assert there.here.engine.tally.conflicts == 0
        assert places(there) == [["default"], ["default|agent-0"]] + [["default"]] * 2 + [["default|agent-2"]]
        assert there.store.asked == {"read": 3, "commit": 5, "recall": 2, "note": 2}

    run(test)


def test_one_that_keeps_moving_is_given_up() -> None:
    """Decided without writing it, and counted (E-5)."""

    def test() -> None:
        there = RemoteWorld(rules(), settings=BY_AGENT)
        key = "win:default:c:" + there.here.descriptors.caller(helper(0)).replace(":", "%3A") + "|lead:"

        def moved() -> None:
            now = there.here.clock.now()
            window = there.store.memory.read_window(key, now)
            there.store.memory.commit((), now, [WindowWrite(key, window.version, window.data, 60.0, 7)])

        there.store.before_commit = moved
        assert there.decide(helper(0)).allowed
        assert there.here.engine.tally.conflicts == 1
        assert [keys for _, keys in there.store.committed][TRIES + 1 : TRIES + 2] == [[]]

    run(test)


def test_an_answer_that_comes_too_late_leads_nowhere() -> None:
    """It was decided without the store; what would follow is not asked any more (S-3)."""

    def test() -> None:
        for answered in (0, 1):
            there = RemoteWorld(rules(), settings=BY_AGENT)
            there.store.holds = True
            verdicts = there.ask(helper(0))
            there.store.deliver(answered)
            there.remote.close()
            assert [one.degraded for one in verdicts] == [True]
            there.store.deliver()
            assert there.store.asked == ({"read": 1, "commit": 1} if answered else {"read": 1})

    run(test)


def test_errors_are_told() -> None:
    """And the copy is not relied on any more (S-3)."""

    def test() -> None:
        there = RemoteWorld(rules(), settings=BY_AGENT)
        there.store.error = StateError("gone")
        assert there.decide(helper(0)).degraded
        assert not there.health.up
        later = RemoteWorld(rules(), settings=BY_AGENT)
        later.decide(helper(0))
        later.store.error = StateError("gone")
        assert later.decide(helper(1)).degraded
        caller = next(key for key in later.remote.windows._windows if key.startswith("win:default:c:"))
        assert later.remote.windows.missing([caller]) == [caller]

    run(test)


def test_a_fault_of_ours_allows() -> None:
    """Also where the answer of a store is read (Y-3)."""

    def test() -> None:
        there = RemoteWorld(rules(), settings=BY_AGENT)
        there.remote.windows = _Broken()  # type: ignore[assignment]
        assert there.decide(helper(0)).allowed
        assert [type(one) for one in there.faults] == [RuntimeError]

    run(test)


class _Broken:
    """A cache that is."""

    def missing(self, keys: list[str]) -> list[str]:
        return keys

    def put(self, _key: str, _window: StoredWindow) -> None:
        pass

    def get(self, _key: str, _now: float = 0.0) -> StoredWindow:
        raise RuntimeError("broken")


def test_which_are_far() -> None:
    """Those of a caller; a session's, an agent's and a count are not (E-5)."""
    here = world(bundle(policy("p", loop=[SPAWN, exact()])), settings=BY_AGENT)
    asked = helper(1)
    plan = here.engine.plan(asked)
    assert isinstance(plan, Plan)
    assert [target.of_caller for target in find_windows(asked, plan)] == [True, False]
    assert len(plan.slots) == 2
    plain = call("/x")
    again = here.engine.plan(plain)
    assert isinstance(again, Plan)
    assert not any(target.of_caller for target in find_windows(plain, again))
