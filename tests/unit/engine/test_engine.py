"""The engine: order of evaluation, composition of policies, overrides, kill switches, failing stores."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.engine.fold import denial
from breakloop.errors import StateError
from breakloop.model.call import Call
from breakloop.model.events import DESCRIPTOR_MISSING, SHADOW_WOULD_REJECT, STORE_DEGRADED
from breakloop.model.verdict import REASONS, Verdict
from breakloop.store.limit_ops import TakeTokens
from breakloop.store.ops import CountFingerprint
from tests.builders import (
    FailingStore,
    Json,
    SpyStore,
    World,
    at,
    bucket,
    bundle,
    call,
    chat,
    exact,
    fresh,
    policy,
    tail,
    world,
)
from tests.stores import NO_LIMITER, NO_RULE


def passes(here: World, asked: Call, most: int = 200) -> int:
    """How many of these calls pass at this time before one is denied."""
    for count in range(most):
        if not here.engine.decide(fresh(asked)).allowed:
            return count
    return most


def test_no_bundle_is_503() -> None:
    """Every request is refused until a valid bundle is loaded (E-0)."""
    here = world(load=False)
    verdict = here.decide(call())
    assert (verdict.allowed, verdict.status, verdict.reason) == (False, 503, "no_bundle_loaded")
    assert verdict.retry_after_s == 1
    made = here.use(bundle())
    assert here.engine.bundle is made
    assert here.decide(call()).allowed


def test_no_policy_configured_allows() -> None:
    """No policy matches, so the request passes, and the reason says so (R-2)."""
    here = world(bundle(policy("other", bucket(), prefix="/other")))
    verdict = here.decide(call("/x"))
    assert (verdict.allowed, verdict.status, verdict.reason) == (True, 200, "no_matching_policy")
    assert here.decide(call("/other")).reason == "all_rules_passed"


def test_a_policy_without_rules_still_matches() -> None:
    """`no_matching_policy` is only said when none matches (R-2)."""
    here = world(bundle(policy("empty")))
    assert here.decide(call()).reason == "all_rules_passed"


def test_swapping_a_bundle_keeps_counters_and_applies_at_once() -> None:
    """A request sees one bundle; the next one sees the new one, and limits of the same name go on (B-3)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=2))))
    assert passes(here, call()) == 2
    here.use(bundle(policy("p", bucket(rate=1, burst=2)), policy("q", bucket(rate=1, burst=1))))
    assert here.decide(call()).policy == "p"
    here.clock.advance(2)
    assert passes(here, call()) == 1  # q's bucket is empty now, and p was not charged for that denial
    assert here.decide(call()).policy == "q"


# -- shadow --------------------------------------------------------------------------------------------------------


def test_shadow_counts_in_its_own_name_space() -> None:
    """What a shadow policy counts stands under `shadow:`, and the same policy enforced starts from nothing (E-1)."""
    store = SpyStore()
    loops = exact(threshold=3)
    here = world(bundle(policy("p", bucket(rate=1, burst=2), loop=loops, mode="shadow")), store=store)
    for _ in range(5):
        assert here.decide(call()).allowed
    assert store.keys()
    assert all(key.startswith("shadow:") for key in store.keys())  # noqa: SIM118 - keys() is the spy's
    here.use(bundle(policy("p", bucket(rate=1, burst=2), loop=loops)))
    assert passes(here, call()) == 2
    enforced = [key for key in store.keys() if not key.startswith("shadow:")]  # noqa: SIM118
    assert sorted(key.split(":")[0] for key in enforced) == ["ld", "tb"]


def test_shadow_verdicts_are_recorded_and_counted() -> None:
    """Would-be verdicts are counted and published, and the verdict carries them for the log (E-1)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1), mode="shadow")))
    assert here.decide(call()).shadow == ()
    verdict = here.decide(call())
    (found,) = verdict.shadow
    assert (found.policy, found.rule, found.reason, found.action) == ("p", "r", "token_bucket_exceeded", "deny")
    assert here.engine.tally.shadowed == 1
    assert here.named(SHADOW_WOULD_REJECT) == [{"policy": "p", "rule": "r", "reason": "token_bucket_exceeded"}]


def test_a_shadow_denial_charges_none_of_its_own_limits() -> None:
    """Within a shadow policy limits are all or none, so that its numbers are what enforcing would give (E-1, E-4)."""
    rules = (bucket("wide", rate=1, burst=5), bucket("narrow", rate=1, burst=1))
    store = SpyStore()
    here = world(bundle(policy("p", *rules, mode="shadow")), store=store)
    here.decide(call(), 10)
    op = next(op for op in store.commits[0] if isinstance(op, TakeTokens))
    left = store.commit([TakeTokens(op.spec, op.key, 4.0, NO_LIMITER, NO_RULE)], here.clock.now()).results[0]
    assert left == 0.0  # 5 - 1: the nine that would have been denied charged nothing


@pytest.mark.parametrize(
    ("first", "action"),
    [
        (policy("s", bucket(rate=1, burst=1), mode="shadow"), "deny"),
        (policy("s", bucket(keys=["header:x-none"], on_missing="reject"), mode="shadow"), "deny"),
        (policy("s", loop=exact(threshold=2), mode="shadow"), "deny"),
        (policy("s", loop=exact(threshold=2, action="warn"), mode="shadow"), "warn"),
        (policy("s", loop=exact(threshold=2, action="throttle"), mode="shadow"), "throttle"),
    ],
)
def test_a_shadow_verdict_never_ends_evaluation(first: Json, action: str) -> None:
    """The enforced policy behind it is evaluated as if the shadow one were not there (E-2)."""
    here = world(bundle(first, policy("e", bucket(rate=1, burst=3))))
    verdicts = [here.decide(call()) for _ in range(4)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, True, False]
    assert (verdicts[3].policy, verdicts[3].reason) == ("e", "token_bucket_exceeded")
    assert verdicts[3].shadow[0].action == action
    assert verdicts[2].delay_ms == 0
    assert verdicts[2].warning == ""


@pytest.mark.parametrize("action", ["warn", "throttle", "steer"])
def test_a_warning_or_throttle_never_ends_evaluation(action: str) -> None:
    """Later policies and limits are still evaluated, and charged (E-2)."""
    here = world(
        bundle(
            policy("w", bucket("own", rate=1, burst=9), loop=exact(threshold=2, action=action)),
            policy("e", bucket(rate=1, burst=3)),
        )
    )
    verdicts = [here.decide(call()) for _ in range(4)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, True, False]
    assert verdicts[2].warning == "loop_detected"
    assert verdicts[3].policy == "e"
    assert (verdicts[3].warning, verdicts[3].delay_ms, verdicts[3].note, verdicts[3].loop) == ("", 0, "", None)


# -- rules ---------------------------------------------------------------------------------------------------------


def test_the_first_denial_in_definition_order_is_told() -> None:
    """Rules are looked at in their order, whatever their names (E-3, E-4)."""
    here = world(bundle(policy("p", bucket("z", rate=1, burst=1), bucket("a", rate=1, burst=1))))
    here.decide(call())
    assert here.decide(call()).rule == "z"


def test_every_matching_rule_applies() -> None:
    """A rule that matched does not keep the next one from limiting (E-3)."""
    here = world(bundle(policy("p", bucket("wide", burst=10), bucket("narrow", rate=1, burst=2))))
    assert passes(here, call()) == 2
    assert here.decide(call()).rule == "narrow"


@pytest.mark.parametrize(
    ("descriptor", "value", "matching", "other"),
    [
        ("header:x-tier", "free", call(headers={"X_Tier": "free"}), call(headers={"x-tier": "paid"})),
        ("query:tier", "free", call(query="tier=free"), call(query="tier=paid")),
        ("ip:address", "192.0.2.7", call(peer="192.0.2.7"), call(peer="192.0.2.8")),
        ("agent:id", "crawler", call(path_agent="crawler"), call(path_agent="writer")),
        ("llm:model", "gpt-x", chat(), chat(model="other")),
        ("upstream:name", "openai", call(upstream="openai"), call(upstream="gemini")),
    ],
)
def test_match_looks_at_any_descriptor(descriptor: str, value: str, matching: Call, other: Call) -> None:
    """`match` is equality on any descriptor, also one that is no limit key (E-3)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1, match={descriptor: value}))))
    assert passes(here, matching, 3) == 1
    assert passes(here, other, 3) == 3
    assert passes(here, call("/y", peer="192.0.2.9"), 3) == 3  # without the descriptor


def test_every_descriptor_of_a_match_has_to_be_equal() -> None:
    """Two entries are an and (E-3)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1, match={"header:a": "1", "header:b": "2"}))))
    assert passes(here, call(headers={"a": "1"}), 3) == 3
    assert passes(here, call(headers={"a": "1", "b": "2"}), 3) == 1


def test_fallback_applies_only_when_no_rule_matches() -> None:
    """`fallback_limit` is for whoever no rule is for (E-3)."""
    rule = bucket("paid", rate=5, burst=5, match={"header:x-tier": "paid"})
    fallback = bucket("rest", rate=1, burst=1)
    here = world(bundle(policy("p", rule, fallback_limit=fallback)))
    assert passes(here, call()) == 1
    denied = here.decide(call())
    assert denied.policy == "p"
    assert "rest" in denied.rule
    assert passes(here, call(headers={"x-tier": "paid"})) == 5


def test_a_rule_that_matched_but_was_skipped_keeps_the_fallback_away() -> None:
    """The fallback is for requests that no rule *matches*; a missing key only skips its rule (E-3)."""
    rule = bucket("paid", keys=["header:x-user"], match={"header:x-tier": "paid"})
    here = world(bundle(policy("p", rule, fallback_limit=bucket("rest", rate=1, burst=1))))
    assert passes(here, call(headers={"x-tier": "paid"}), 3) == 3


def test_a_rule_of_another_algorithm_keeps_the_fallback_away() -> None:
    """A matching rule that this version does not enforce yet is still a rule that matches (E-3)."""
    config = {"budget": 5, "period": "1d", "staged_actions": [{"threshold_percent": 100, "action": "reject"}]}
    rule = {"name": "b", "limit_keys": [], "algorithm": "cost_based", "algorithm_config": config}
    rule["match"] = {"header:x-tier": "paid"}
    here = world(bundle(policy("p", rule, fallback_limit=bucket("rest", rate=1, burst=1))))
    assert passes(here, call(headers={"x-tier": "paid"}), 3) == 3
    assert passes(here, call(), 3) == 1


def test_a_rule_named_like_a_fallback_has_its_own_bucket() -> None:
    """Whatever a rule is called, it does not share the fallback's counter (E-3)."""
    rule = bucket("fallback:rest", rate=1, burst=1, match={"header:x-tier": "paid"})
    here = world(bundle(policy("p", rule, fallback_limit=bucket("rest", rate=1, burst=1))))
    assert passes(here, call()) == 1
    assert passes(here, call(headers={"x-tier": "paid"})) == 1


def test_missing_keys_skip_the_rule_and_are_counted() -> None:
    """A rule whose limit key is missing is skipped, with a count and an event for the log (E-3)."""
    rules = (bucket("user", rate=1, burst=1, keys=["header:x-user"]), bucket("all", rate=3, burst=3))
    here = world(bundle(policy("p", *rules)))
    assert passes(here, call()) == 3
    assert here.engine.tally.missing == {"header:x-user": 4}
    assert here.named(DESCRIPTOR_MISSING)[0] == {"policy": "p", "rule": "user", "descriptor": "header:x-user"}
    assert here.decide(call(headers={"x-user": ""})).rule == "all"  # empty is missing
    here.clock.advance(10)
    assert passes(here, call(headers={"x-user": "u"})) == 1


def test_on_missing_reject_closes_the_hole() -> None:
    """`on_missing: reject` refuses what cannot be counted, in its place in the order, and charges nothing (E-3)."""
    rules = (bucket("all", rate=3, burst=3), bucket("user", keys=["header:x-user"], on_missing="reject"))
    here = world(bundle(policy("p", *rules, deny_status=403)))
    verdict = here.decide(call())
    assert (verdict.allowed, verdict.reason, verdict.status, verdict.rule) == (False, "missing_descriptor", 403, "user")
    assert "header:x-user" in verdict.message
    assert verdict.never
    assert verdict.retry_after_s is None
    assert passes(here, call(headers={"x-user": "u"})) == 3


def test_denied_requests_charge_nothing_over_several_policies() -> None:
    """Limits of all policies are charged all or none, so the denied ones cost the others nothing (E-4)."""
    one = policy("one", bucket("a", rate=5, burst=5))
    two = policy("two", bucket("b", rate=2, burst=2))
    three = policy("three", bucket("c", rate=5, burst=5))
    here = world(bundle(one, two, three))
    assert passes(here, call()) == 2
    for _ in range(20):
        assert here.decide(call()).policy == "two"
    here.use(bundle(one, three))
    assert passes(here, call()) == 3


def test_loop_counters_count_denied_requests() -> None:
    """A request that a limit denies is still a repeat (E-4)."""
    here = world(
        bundle(policy("limit", bucket(rate=1, burst=1)), policy("loop", loop=exact(threshold=5, action="warn")))
    )
    here.decide(call(), 4)
    here.clock.advance(1)
    verdict = here.decide(call())
    assert verdict.allowed
    assert verdict.loop is not None
    assert verdict.loop.hit_count == 5


def test_a_loop_denial_charges_nothing() -> None:
    """A request that loop detection denies takes no tokens (E-4)."""
    here = world(bundle(policy("p", bucket(rate=5, burst=5), loop=exact(threshold=3))))
    assert passes(here, call()) == 2
    here.decide(call(), 30)
    assert passes(here, call("/other")) == 2  # 5 - 2 = 3 tokens are left, and the third trips the loop


def test_loop_detection_comes_before_the_rules_of_its_policy() -> None:
    """Where both would deny, the loop is what the client is told (E-4)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1), loop=exact(threshold=2))))
    here.decide(call())
    assert here.decide(call()).reason == "loop_detected"


def test_policies_are_evaluated_in_the_order_of_the_bundle() -> None:
    """The first policy of the bundle that denies is the one that is told, however specific the others (E-4, R-1)."""
    first = policy("first", bucket(rate=1, burst=1), prefix="/")
    second = policy("second", bucket(rate=1, burst=1), prefix="/v1/x/")
    for order, told in (((first, second), "first"), ((second, first), "second")):
        here = world(bundle(*order))
        here.decide(call("/v1/x/y"))
        assert here.decide(call("/v1/x/y")).policy == told


def test_one_commit_a_decision() -> None:
    """Counters and limits of every policy change in one commit (E-5)."""
    store = SpyStore()
    policies = [
        policy(f"p{n}", bucket(), loop=[exact(), tail()], mode=mode) for n, mode in enumerate(("enforce", "shadow"))
    ]
    here = world(bundle(*policies, defaults={}), store=store)
    here.decide(chat())
    assert len(store.commits) == 1
    assert [type(op) for op in store.commits[0]] == [CountFingerprint, CountFingerprint, TakeTokens] * 2
    here.decide(chat(), 9)  # denied and allowed ones alike
    assert len(store.commits) == 10
    assert len({op.key for op in store.commits[0] if isinstance(op, CountFingerprint | TakeTokens)}) == 6


def test_several_throttles_delay_once_by_the_longest() -> None:
    """The longest delay applies, not the sum (E-6)."""
    loops = [exact(threshold=2, action="throttle"), exact(threshold=2, window=5, action="throttle")]
    here = world(bundle(policy("p", loop=loops), policy("q", loop=exact(threshold=3, action="throttle"))))
    here.decide(call(), 3)
    here.clock.advance(10)  # the second detector forgets: it counts 1, the others 4
    verdict = here.decide(call())
    assert verdict.allowed
    assert verdict.delay_ms == 400
    assert verdict.loop is not None
    assert verdict.loop.hit_count == 4


def test_a_delay_is_at_most_30_seconds() -> None:
    """However often it was repeated (E-6)."""
    here = world(bundle(policy("p", loop=exact(threshold=2, action="throttle"))))
    assert here.decide(call(), 299).delay_ms == 29_900
    assert here.decide(call(), 2).delay_ms == 30_000
    assert here.decide(call(), 500).delay_ms == 30_000


# -- overrides -----------------------------------------------------------------------------------------------------


def override(until: float, *, enabled: bool = True) -> Json:
    return {"enabled": enabled, "reason": "drill", "expires_at": at(until)}


def test_global_shadow_shadows_everything_until_it_expires() -> None:
    """While active every policy behaves as shadow; expired it is inactive, exactly at its time (K-1, B-5)."""
    limit = policy("p", bucket(rate=1, burst=1), loop=exact(threshold=3))
    here = world(bundle(limit, global_shadow=override(100)))
    assert passes(here, call(), 20) == 20
    assert here.decide(call()).shadow
    here.clock.advance(99.9)
    assert passes(here, call(), 3) == 3
    here.clock.advance(0.1)
    assert passes(here, call(), 3) == 1


def test_a_disabled_override_does_nothing() -> None:
    """`enabled: false` is off, whatever its time (K-1)."""
    switch = {"scope_key": "header:x-agent", "scope_value": "a"}
    off = override(100, enabled=False)
    limit = policy("p", bucket(rate=1, burst=1))
    here = world(bundle(limit, global_shadow=off, kill_switch_override=off, kill_switches=[switch]))
    assert passes(here, call(), 3) == 1
    assert here.decide(call("/free", headers={"x-agent": "a"})).reason == "kill_switch"


def test_kill_switch_override_skips_kill_switches_until_it_expires() -> None:
    """While active kill switches are skipped, and nothing else is (K-1, B-5)."""
    switch = {"scope_key": "header:x-agent", "scope_value": "a"}
    limit = policy("p", bucket(rate=1, burst=2))
    here = world(bundle(limit, kill_switch_override=override(100), kill_switches=[switch]))
    bad = call(headers={"x-agent": "a"})
    assert passes(here, bad, 5) == 2
    here.clock.advance(100)
    assert here.decide(bad).reason == "kill_switch"


def test_kill_switches_hold_under_global_shadow() -> None:
    """An operator's kill is not suspended by shadow, whichever kind (K-1)."""
    switch = {"scope_key": "header:x-agent", "scope_value": "a"}
    here = world(bundle(policy("p", mode="shadow"), global_shadow=override(100), kill_switches=[switch]))
    assert here.decide(call(headers={"x-agent": "a"})).reason == "kill_switch"


def test_the_reason_of_a_kill_switch_is_cut() -> None:
    """A denial shows 256 characters of it, because gateways pass it on in a header field of limited size (K-2)."""
    switch = {"scope_key": "header:x-team", "scope_value": "red"}
    for length, shown in ((256, 256), (257, 256), (5000, 256)):
        here = world(bundle(kill_switches=[{**switch, "reason": "x" * length}]))
        message = here.engine.decide(call(headers={"x-team": "red"})).message
        assert message == f"Stopped by an operator's kill switch: {'x' * shown}"


def test_kill_switches_come_before_routing_and_state() -> None:
    """No policy needs to match, and no state is touched (K-2)."""
    store = SpyStore()
    switch = {"scope_key": "header:x-agent", "scope_value": "a", "reason": "on fire"}
    here = world(bundle(policy("p", bucket()), kill_switches=[switch]), store=store)
    verdict = here.decide(call("/nowhere", headers={"x-agent": "a"}))
    assert (verdict.allowed, verdict.status, verdict.reason) == (False, 429, "kill_switch")
    assert (verdict.retry_after_s, verdict.never, verdict.retry_jitter) == (3600, True, False)
    assert "on fire" in verdict.message
    assert verdict.rule == "kill_switches[0]"
    assert store.commits == []
    assert here.decide(call(headers={"x-agent": "b"})).allowed


def test_an_expired_bundle_keeps_enforcing() -> None:
    """An expired bundle is not an outage, and not a free pass (B-5)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1)), expires_at=at(10)))
    here.clock.advance(1000)
    assert passes(here, call(), 3) == 1


# -- store failure ---------------------------------------------------------------------------------------------------


def failing(**spec: Any) -> World:
    return world(bundle(policy("p", bucket(rate=1, burst=1), loop=exact(threshold=2), **spec)), store=FailingStore())


def test_a_failing_store_allows_counts_and_tells() -> None:
    """Not detected, allowed, counted, and an event for the log (LD-7, S-4)."""
    here = failing()
    for _ in range(5):
        verdict = here.decide(call(request_id="r1"))
        assert verdict.allowed
        assert verdict.degraded
    assert here.engine.tally.store_errors == 5
    degraded = [event for event in here.events if event.name == STORE_DEGRADED]
    assert len(degraded) == 5
    assert degraded[0].request_id == "r1"
    assert degraded[0].data["error"] == "the store is gone"


def test_a_failing_store_says_when_no_policy_matched() -> None:
    """With only the built-in protection the reason stays what it is with a working store (R-2, LD-7)."""
    here = world(store=FailingStore())
    assert here.decide(chat()).reason == "no_matching_policy"


def test_on_store_error_deny() -> None:
    """A policy may prefer refusing; with its own status, and worth a retry (S-3)."""
    verdict = failing(on_store_error="deny", deny_status=503).decide(call())
    assert (verdict.allowed, verdict.reason, verdict.status) == (False, "store_unavailable", 503)
    assert (verdict.policy, verdict.degraded, verdict.retry_after_s) == ("p", True, 1)
    assert not verdict.never


def test_on_store_error_deny_of_a_shadow_policy_denies_nobody() -> None:
    """A policy in shadow mode, or under global shadow, denies nobody when the store fails either (E-1)."""
    assert failing(on_store_error="deny", mode="shadow").decide(call()).allowed
    limit = policy("p", bucket(), on_store_error="deny")
    here = world(bundle(limit, global_shadow=override(100)), store=FailingStore())
    assert here.decide(call()).allowed
    here.clock.advance(100)
    assert not here.decide(call()).allowed


def test_only_store_errors_are_swallowed() -> None:
    """A programming error is not a store failure, and is not hidden as one (LD-7)."""

    class Broken(FailingStore):
        def commit(self, *_: object, **__: object) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world(bundle(policy("p", bucket())), store=Broken()).decide(call())
    assert issubclass(StateError, Exception)


def test_decisions_are_tallied_by_action_and_reason() -> None:
    """Counts for `/readyz`, logs and metrics (E-3)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=2))))
    here.decide(call(), 5)
    assert here.engine.tally.allowed == {"all_rules_passed": 2}
    assert here.engine.tally.denied == {"token_bucket_exceeded": 3}


def test_a_denial_needs_a_reason_of_the_closed_list() -> None:
    """The engine cannot say what is not documented (A-4)."""
    with pytest.raises(KeyError):
        denial("because", 429, "")
    made = denial("kill_switch", 429, "why")
    assert type(made) is Verdict
    assert made.reason in REASONS


@pytest.mark.parametrize("authorization", ["", "Bearer ", "bearer   "])
def test_callers_who_differ_only_by_key_in_the_query(authorization: str) -> None:
    """An Authorization field with nothing in it does not make one caller of two API keys (LD-6, C-7)."""
    here = world(bundle(policy("p", bucket(rate=1, burst=1, keys=["caller:key"]), loop=exact(2))))
    for number in range(3):
        assert here.decide(call(headers={"authorization": authorization}, query=f"key=sk-{number}")).allowed
