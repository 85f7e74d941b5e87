"""Which denials hold somebody. What a hold does is in test_quarantine.py, the whole of it in the engine's tests."""

from __future__ import annotations

import re

import pytest

from breakloop.engine.pauses import KEPT_S
from breakloop.engine.quarantine import AGENT, RUN, HoldRules
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import PauseTerms
from breakloop.policy.descriptors import ContextSettings
from breakloop.store.limit_ops import BucketSpec, BudgetSpec, ChargeBudget, TakeTokens
from breakloop.store.ops import CommitResult, Deny, Op
from tests.builders import SECRET, bucket, bundle, call, chat, exact, policy, tail, world
from tests.stores import NO_LIMITER


def test_a_limit_holds_nobody() -> None:
    """Only kills and ceilings do; a bucket, a budget or a missing descriptor passes with time or by itself (G-1)."""
    here = world(bundle(policy("p", bucket())))
    [rule] = here.use(bundle(policy("p", bucket()))).policies[0].rules
    holder = HoldRules(here.engine.quarantine, here.descriptors)
    ops: list[Op] = [
        TakeTokens(BucketSpec(1, 1), "tb:k", 1.0, NO_LIMITER, rule),
        ChargeBudget(BudgetSpec(1), "cb:k", 2, 9.0, NO_LIMITER, rule),
        Deny(rule),
    ]
    for number in range(3):
        holder.denied(chat(), ops, CommitResult([-1.0, 2, None], number), Verdict(allowed=False), 5.0)
    assert not here.engine.quarantine


def test_a_kill_holds_the_agent_and_remembers_what_to_clear() -> None:
    """Until its time is over (LD-5)."""
    block = tail(action="kill", max_hits=1, quarantine_seconds=60)
    here = world(bundle(policy("p", loop=block)))
    here.decide(chat(), 2)
    [hold] = here.engine.quarantine.holds(here.clock.now())
    assert (hold.binds, hold.until - hold.since) == ("agent", 60.0)
    assert hold.why.startswith("tail loop (")
    assert hold.clears


def test_a_ceiling_holds_the_run_and_clears_its_window() -> None:
    """A ceiling holds the run and clears its window (G-1)."""
    here = world(bundle(agents={"*": {"max_steps_per_run": 1}}))
    here.decide(chat(), 2)
    [hold] = here.engine.quarantine.holds(here.clock.now())
    assert (hold.binds, hold.why) == ("run", "1 steps (max_steps_per_run)")
    assert hold.clears[0].startswith("win:default:s:")


def test_what_is_cleared_is_in_the_agents_place() -> None:
    """`shard_by: agent`: the window of its session, and the count of its loop (G-1, E-5)."""
    settings = ContextSettings(secret=SECRET, shard_by_agent=True)
    run = world(bundle(agents={"*": {"max_steps_per_run": 1}}), settings=settings)
    run.decide(chat(headers={"x-agent-id": "bot"}), 2)
    [hold] = run.engine.quarantine.holds(run.clock.now())
    assert hold.clears[0].startswith("win:default|bot:s:")
    loop = world(bundle(policy("p", loop=tail(action="kill", max_hits=1))), settings=settings)
    loop.decide(chat(headers={"x-agent-id": "bot"}), 2)
    [hold] = loop.engine.quarantine.holds(loop.clock.now())
    assert hold.clears[0].startswith("cnt:default|bot:p:")


@pytest.mark.parametrize("session", ["", "s-1"])
def test_a_pause_holds_the_run_or_an_agent_without_a_session(session: str) -> None:
    """For a day after its default at the most. Its id has 12 digits: it is in commands and links (K-6)."""
    here = world(bundle())
    asked = call(
        headers={"authorization": "Bearer k", "x-agent-id": "bot"} | ({"x-agent-session": session} if session else {})
    )
    caller = here.descriptors.caller(asked)
    terms = PauseTerms(120.0, "land", 30.0)
    hold = HoldRules(here.engine.quarantine, here.descriptors).pause(asked, "it loops", ("k",), terms, 1000.0)
    run = f"{caller}|s-1" if session else ""
    assert (hold.binds, hold.caller, hold.agent, hold.run) == (RUN if run else AGENT, caller, "bot", run)
    assert (hold.since, hold.until, hold.why, hold.clears) == (1000.0, 1120.0 + KEPT_S, "it loops", ("k",))
    assert hold.question is not None
    assert (hold.question.due, hold.question.then, hold.question.hold_open_s) == (1120.0, "land", 30.0)
    assert re.fullmatch("[0-9a-f]{12}", hold.question.id)


def test_what_only_shadow_has_counted_is_not_cleared() -> None:
    """A release clears what blocks the agent; a policy in shadow goes on counting (G-1)."""
    here = world(bundle(policy("p", loop=exact(2)), policy("s", loop=exact(9), mode="shadow")))
    dropped: list[str] = []
    here.engine.quarantine.drop_with(dropped.extend)
    here.decide(chat(), 3)
    now = here.clock.now()
    assert here.engine.quarantine.unblock("default", agent=here.descriptors.agent(chat()), now=now) == 1
    assert [key.split(":")[2] for key in dropped] == ["p"]


def test_a_loop_that_was_only_counted_does_not_block() -> None:
    """A release clears its count, too, and reports one blocked loop, also if the clock is a moment behind (G-1)."""
    here = world(bundle(policy("p", loop=[exact(2), tail(max_hits=9)])))
    dropped: list[str] = []
    here.engine.quarantine.drop_with(dropped.extend)
    here.decide(chat(), 3)
    now = here.clock.now() - 0.5
    assert here.engine.quarantine.unblock("default", agent=here.descriptors.agent(chat()), now=now) == 1
    assert len(dropped) == 2
