"""Which denials hold somebody. What a hold does is in test_quarantine.py, the whole of it in the engine's tests."""

from __future__ import annotations

from breakloop.engine.quarantine import HoldRules
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import ContextSettings
from breakloop.store.limit_ops import BucketSpec, BudgetSpec, ChargeBudget, TakeTokens
from breakloop.store.ops import CommitResult, Deny, Op
from tests.builders import SECRET, bucket, bundle, chat, policy, tail, world
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
