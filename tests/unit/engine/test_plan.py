"""What one call needs from the store, before anything is asked of it. What it comes to is in the engine's tests."""

from __future__ import annotations

import math
from dataclasses import replace

from breakloop.engine.pauses import Question
from breakloop.engine.plan import Plan
from breakloop.engine.quarantine import AGENT, NAME, Hold, hold_key
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import CompiledKillSwitch
from breakloop.policy.descriptors import ContextSettings
from breakloop.policy.orders import Orders
from breakloop.store.keys import fingerprint_of
from breakloop.store.limit_ops import Charge, TakeTokens
from breakloop.store.ops import CountFingerprint, Keyed
from tests.builders import SECRET, START, World, at, bucket, bundle, call, chat, exact, policy, tail, user, world


def test_operations_stand_in_the_order_of_evaluation() -> None:
    """6: agents, then each policy's detectors and rules, in the order of the bundle."""
    first = policy("a", bucket(), loop=[tail(), {"similarity": "simhash"}])
    here = world(bundle(first, policy("b", bucket()), agents={"*": {"max_steps_per_run": 5}}))
    plan = here.engine.plan(chat())
    assert isinstance(plan, Plan)
    assert [type(op) for op in plan.ops] == [CountFingerprint, TakeTokens, TakeTokens]
    assert [position for position, _ in plan.slots] == [0, 1]  # before the count, and before the first charge
    assert [one.id for one in plan.policies] == ["a", "b"]
    assert (plan.counted, len(plan.slots)) == (3, 2)


def test_where_nothing_is_remembered_nothing_is_watched() -> None:
    here = world(bundle(policy("a", bucket(), loop=tail())))
    plan = here.engine.plan(chat())
    assert isinstance(plan, Plan)
    assert (plan.counted, plan.slots) == (1, [])
    plain = world(bundle(policy("a", bucket()))).engine.plan(chat())
    assert isinstance(plain, Plan)
    assert not plain.counted
    assert not plain.metered


def test_under_global_shadow_nothing_denies_for_another() -> None:
    """The terms of the agent, each policy and the default loop protection are groups of their own (K-1)."""
    shadow = {"enabled": True, "reason": "drill", "expires_at": at(600)}
    agent = {"budget_usd_per_day": 5}
    policies = (policy(name, bucket()) for name in "abc")
    default = {"loop_detection": tail()}
    here = world(bundle(*policies, agents={"*": agent}, defaults=default, global_shadow=shadow))
    plan = here.engine.plan(chat())
    assert isinstance(plan, Plan)
    groups = [op.group for op in plan.ops if isinstance(op, Charge | CountFingerprint)]
    assert (len(groups), len({0, *groups})) == (5, 6)


def test_buckets_of_a_known_sender_are_prepared() -> None:
    """What they take is the same for each request; not in shadow, nor if a cost is read from the request."""
    here = world(bundle(policy("p", bucket("r", keys=["agent:id"]), bucket("s"), loop=exact(9))))
    for _ in range(2):
        plan = here.engine.plan(call())
        assert isinstance(plan, Plan)
        charges = plan.ops[1:]
        assert plan.rows is not None
        assert [*plan.rows.keys] == [op.key for op in charges if isinstance(op, TakeTokens)]
        assert (len(plan.rows.keys), plan.rows_at, plan.counted) == (2, 1, 1)
    for shadow in (policy("p", bucket(), mode="shadow"), policy("p", bucket(cost_source="query:c"))):
        plan = world(bundle(shadow)).engine.plan(call())
        assert isinstance(plan, Plan)
        assert (len(plan.ops), plan.rows) == (1, None)


def test_a_snoozed_loop_does_not_hide_others() -> None:
    """What a later detector counts is counted (LD-6)."""
    here = world(bundle(policy("p", loop=[tail(max_hits=2), exact(3)])))
    first = here.engine.plan(chat())
    assert isinstance(first, Plan)
    counts = [op for op in first.ops if isinstance(op, CountFingerprint)]
    assert len(counts) == 2
    here.engine.apply_orders(Orders(snoozed=((fingerprint_of(counts[0].key), here.clock.now() + 600),)))
    again = here.engine.plan(chat())
    assert isinstance(again, Plan)
    assert [op.key for op in again.ops if isinstance(op, CountFingerprint)] == [counts[1].key]


def test_a_detector_that_does_not_concern_a_call_hides_no_others() -> None:
    """`tail` needs a conversation; `exact` counts any request (LD-1)."""
    here = world(bundle(policy("p", loop=[tail(), exact(3)])))
    plan = here.engine.plan(call("/v1/search", "POST", {"authorization": "Bearer k"}, body=b"hi"))
    assert isinstance(plan, Plan)
    assert [type(op) for op in plan.ops] == [CountFingerprint]


def test_whoever_is_held_is_denied_before_anything_is_planned() -> None:
    """6: quarantined agents come before routing."""
    here = world(bundle(policy("a", bucket())))
    asked = chat()
    caller = here.descriptors.caller(asked)
    here.engine.quarantine.hold(Hold(AGENT, "default", caller, caller, here.clock.now(), math.inf, "it loops"))
    planned = here.engine.plan(asked)
    assert isinstance(planned, Verdict)
    assert planned.reason == "agent_quarantined"


STAGES = [{"threshold_percent": 100, "action": "reject"}]
BUDGET = {
    "name": "b",
    "limit_keys": [],
    "algorithm": "cost_based",
    "algorithm_config": {"budget": 100, "period": "5m", "fixed_cost": 1, "staged_actions": STAGES},
}
TOKENS = {
    "name": "t",
    "limit_keys": ["header:x-team"],
    "algorithm": "token_bucket_llm",
    "algorithm_config": {"tokens_per_minute": 9000},
}


def ops_of(here: World, text: str = "hi", **more: str) -> list[tuple[str, float]]:
    plan = here.engine.plan(chat(user(text), headers={"authorization": "Bearer k", "x-team": "red", **more}))
    assert isinstance(plan, Plan)
    return [(op.key.rpartition("p:")[2], op.cost) for op in plan.ops if isinstance(op, Charge)]


def test_what_is_remembered_of_a_sender_is_charged_as_it_is_now() -> None:
    """Keys are the sender's; the tokens are the call's, and a budget's period the clock's (L-2, L-3)."""
    here = world(bundle(policy("p", bucket("a"), BUDGET, TOKENS)))
    period = int(here.clock.now()) // 300 * 300
    first = [("a:", 1.0), (f"b::{period}", 1000), ("t:red", 1001.0)]
    assert ops_of(here) == first
    assert ops_of(here, "hello there") == [*first[:2], ("t:red", 1003.0)]
    assert ops_of(here, **{"x-team": "blue"})[2] == ("t:blue", 1001.0)
    here.clock.advance(300)
    assert ops_of(here) == [first[0], (f"b::{period + 300}", 1000), first[2]]
    here.clock.advance(-300)
    assert ops_of(here) == first


def test_charges_of_a_sender_are_made_once_a_period() -> None:
    """What is the same for every request of a sender costs nothing at the next one."""
    here = world(bundle(policy("p", bucket("a"), BUDGET)))

    def charges() -> list[Charge]:
        plan = here.engine.plan(chat(user("hi"), headers={"authorization": "Bearer k"}))
        assert isinstance(plan, Plan)
        return [op for op in plan.ops if isinstance(op, Charge)]

    first = charges()
    here.clock.advance(299 - here.clock.now() % 300)
    assert [one is other for one, other in zip(first, charges(), strict=True)] == [True, True]
    here.clock.advance(1)
    assert [one is other for one, other in zip(first, charges(), strict=True)] == [False, False]


def test_a_missing_descriptor_is_told_each_time() -> None:
    """Nothing is remembered of a sender who lacks one (E-3)."""
    here = world(bundle(policy("p", bucket("a", keys=["header:x-tool"]), TOKENS)))
    for _ in range(3):
        assert ops_of(here) == [("t:red", 1001.0)]
    assert here.engine.tally.missing == {"header:x-tool": 3}


def test_what_belongs_to_an_agent_is_kept_in_its_own_place() -> None:
    """`shard_by: agent`: loops, its limits and those that count by agent; what several agents share is not (E-5)."""
    breaker = {"enabled": True, "spend_rate_threshold_per_minute": 1000, "auto_reset_after_minutes": 5}
    own = policy("own", bucket(keys=["agent:id", "header:x-team"]), loop=tail(), circuit_breaker=breaker)
    shared = policy("all", bucket(keys=["agent:session"]), TOKENS, circuit_breaker=breaker)
    rules = bundle(own, shared, agents={"*": {"rate_limit": {"requests_per_minute": 60}}})
    headers = {"x-agent-id": "a:b", "x-team": "t", "x-agent-session": "s"}

    def places(settings: ContextSettings | None = None) -> list[str]:
        plan = world(rules, settings=settings).engine.plan(chat(headers=headers))
        assert isinstance(plan, Plan)
        return [":".join(op.key.split(":")[:3]) for op in plan.ops if isinstance(op, Keyed)]

    agents, project = "default|a%3Ab", "default"
    assert places(ContextSettings(secret=SECRET, shard_by_agent=True)) == [
        f"tb:{agents}:agents",
        f"cnt:{agents}:own",
        f"brk:{agents}:own",
        f"tb:{agents}:own",
        f"brk:{project}:all",
        f"tb:{project}:all",
        f"tpm:{project}:all",
    ]
    assert {key.split(":")[1] for key in places()} == {project}


SWITCH = CompiledKillSwitch(0, "header:x-team", "red", reason="INC-8", id="a1")


def in_flight(here: World, team: str = "red") -> Call:
    """A call of an agent that was allowed and waits for its response."""
    asked = chat(headers={"authorization": "Bearer k", "x-agent-id": "worker", "x-team": team})
    assert isinstance(here.engine.plan(asked), Plan)
    return asked


def test_a_kill_switch_stops_what_it_matches_in_flight() -> None:
    """With the id of the switch, by which stopped calls are counted (K-4)."""
    here = world(bundle())
    red, blue = in_flight(here), in_flight(here, "blue")
    assert here.engine.stopped(red) is None
    here.engine.apply_orders(Orders((SWITCH,)))
    found = here.engine.stopped(red)
    assert found is not None
    verdict, order = found
    assert (verdict.allowed, verdict.reason, verdict.status, verdict.never) == (False, "kill_switch", 429, True)
    assert order == "a1"
    assert here.engine.stopped(blue) is None


def test_the_override_of_kill_switches_applies_to_calls_in_flight() -> None:
    """Until it ends, as for new requests (K-1, K-4)."""
    here = world(bundle())
    asked = in_flight(here)
    here.engine.apply_orders(Orders((SWITCH,), kill_override_until=START + 60))
    here.clock.advance(59)
    assert here.engine.stopped(asked) is None
    here.clock.advance(1)
    assert here.engine.stopped(asked) is not None


def test_an_operators_hold_stops_calls_in_flight() -> None:
    """Not the hold of a detector, not that of another agent, and not one that asks the run to finish or to wait (K-4)."""
    here = world(bundle())
    asked, now, quarantine = in_flight(here), here.clock.now(), here.engine.quarantine
    ordered = Hold(NAME, "default", "", "worker", now, math.inf, "enough", by="ann")
    quarantine.hold(replace(ordered, agent="other"))
    assert here.engine.stopped(asked) is None
    waiting = replace(ordered, question=Question("q1", now + 60, "deny"))
    for hold in (replace(ordered, by=""), replace(ordered, lands=True), waiting):
        quarantine.adopt(hold, foreign=False)
        assert here.engine.stopped(asked) is None
    quarantine.hold(ordered)
    found = here.engine.stopped(asked)
    assert found is not None
    assert (found[0].allowed, found[0].reason, found[1]) == (False, "agent_quarantined", hold_key(ordered))


def test_a_hold_ends_the_run_in_its_client_and_a_pause_does_not() -> None:
    """Where waiting helps, the client may send the same again, whatever it is (A-7, K-6)."""
    here = world(bundle())
    now, quarantine = here.clock.now(), here.engine.quarantine
    hold = Hold(NAME, "default", "", "worker", now, math.inf, "enough", by="ann")
    headers = {"authorization": "Bearer k", "x-agent-id": "worker", "user-agent": "ai/7.0.170"}  # retries 429
    for question, expected in (
        (None, ("agent_quarantined", 400, None)),
        (Question("q1", now + 60, "deny"), ("run_paused", 429, 60)),
    ):
        quarantine.adopt(replace(hold, question=question), foreign=False)
        planned = here.engine.plan(chat(headers=headers))
        assert isinstance(planned, Verdict)
        assert (planned.reason, planned.status, planned.retry_after_s) == expected


def test_charges_that_depend_on_the_call_hide_no_others() -> None:
    """A sender has several limits, in any order (L-2, L-3)."""
    here = world(bundle(policy("p", TOKENS, bucket("a"))))
    for _ in range(2):
        assert ops_of(here) == [("t:red", 1001.0), ("a:", 1.0)]
