"""What one call needs from the store, before anything is asked of it. What it comes to is in the engine's tests."""

from __future__ import annotations

import math

from breakloop.detect.watch import Watch
from breakloop.model.verdict import Verdict
from breakloop.planning import Plan
from breakloop.quarantine import AGENT, Hold
from breakloop.state.ops import Bucket, Repeat
from tests.builders import bucket, bundle, chat, policy, tail, world


def test_operations_stand_in_the_order_of_evaluation() -> None:
    """6: agents, then each policy's detectors and rules, in the order of the bundle."""
    first = policy("a", bucket(), loop=[tail(), {"similarity": "simhash"}])
    here = world(bundle(first, policy("b", bucket()), agents={"*": {"max_steps_per_run": 5}}))
    plan = here.engine.plan(chat())
    assert isinstance(plan, Plan)
    assert [type(op) for op in plan.ops] == [Watch, Repeat, Watch, Bucket, Bucket]
    assert [one.id for one in plan.policies] == ["a", "b"]
    assert (plan.counted, plan.watched) == (True, True)


def test_where_nothing_is_remembered_nothing_is_watched() -> None:
    here = world(bundle(policy("a", bucket(), loop=tail())))
    plan = here.engine.plan(chat())
    assert isinstance(plan, Plan)
    assert (plan.counted, plan.watched) == (True, False)
    plain = world(bundle(policy("a", bucket()))).engine.plan(chat())
    assert isinstance(plain, Plan)
    assert not plain.counted


def test_whoever_is_held_is_denied_before_anything_is_planned() -> None:
    """6: quarantined agents come before routing."""
    here = world(bundle(policy("a", bucket())))
    asked = chat()
    caller = here.descriptors.caller(asked)
    here.engine.quarantine.kill(Hold(AGENT, "default", caller, caller, here.clock.now(), math.inf, "it loops"))
    planned = here.engine.plan(asked)
    assert isinstance(planned, Verdict)
    assert planned.reason == "agent_quarantined"
