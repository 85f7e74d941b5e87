"""Schema to compiled bundle: default loop protection, projects, secrets in keys, what is worked out early."""

from __future__ import annotations

import math

import pytest

from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from tests.builders import (
    SECRET,
    Json,
    SpyStore,
    World,
    at,
    bucket,
    bundle,
    call,
    chat,
    compiled,
    exact,
    policy,
    tail,
    user,
    world,
)


def descriptors() -> Descriptors:
    return Descriptors(ContextSettings(secret=SECRET), FakeClock())


def blocked_at(here: World, most: int = 40) -> int:
    """Which identical LLM call is blocked first; 0 for none."""
    for number in range(1, most + 1):
        if not here.decide(chat()).allowed:
            return number
    return 0


def own(**spec: object) -> Json:
    return policy("p", **spec)  # type: ignore[arg-type]


OFF = {"enabled": False}
SHADOW_UNTIL = {"enabled": True, "reason": "drill", "expires_at": at(1000)}


@pytest.mark.parametrize(
    ("data", "blocked"),
    [
        pytest.param(None, 6, id="no policy at all"),
        pytest.param({"bundle_version": 1, "policies": []}, 6, id="no defaults said"),
        pytest.param(bundle(own(), defaults={}), 6, id="a policy without loop detection does not cover"),
        pytest.param(bundle(own(loop=exact(3)), defaults={}), 3, id="a policy's own block covers"),
        pytest.param(bundle(own(loop=tail(max_hits=9)), defaults={}), 10, id="a laxer block of its own covers"),
        pytest.param(bundle(own(loop=exact(3), mode="shadow"), defaults={}), 6, id="a shadow policy does not cover"),
        pytest.param(bundle(own(loop=exact(3), prefix="/other/"), defaults={}), 6, id="another route does not cover"),
        pytest.param(bundle(own(loop=OFF), defaults={}), 0, id="a disabled block opts out"),
        pytest.param(bundle(own(loop=OFF, mode="shadow"), defaults={}), 6, id="a shadow policy cannot opt out"),
        pytest.param(bundle(defaults={"loop_detection": "off"}), 0, id="off"),
        pytest.param(bundle(defaults={"loop_detection": tail(max_hits=2)}), 3, id="a default of one's own"),
        pytest.param(bundle(defaults={"loop_detection": [exact(4)]}), 4, id="an exact default"),
        pytest.param(bundle(defaults={}, global_shadow=SHADOW_UNTIL), 0, id="global shadow shadows it"),
        pytest.param(bundle(defaults={}, projects={"default": {"loop_guard": {"max_hits": 2}}}), 3, id="project"),
        pytest.param(bundle(defaults={}, projects={"default": {"loop_guard": {"max_hits": 0}}}), 0, id="project off"),
        pytest.param(bundle(defaults={}, projects={"other": {"loop_guard": {"max_hits": 2}}}), 6, id="other project"),
        pytest.param(bundle(defaults={}, projects={"default": {}}), 6, id="a project without a guard"),
    ],
)
def test_default_loop_protection(data: Json | None, blocked: int) -> None:
    """On for every LLM call that no policy's own enforced block covers, unless it is switched off (B-6)."""
    assert blocked_at(world(data)) == blocked


def test_default_protection_judges_llm_calls_only() -> None:
    """Other calls are not its business, with an `exact` default neither (B-6)."""
    for data in (None, bundle(defaults={"loop_detection": exact(3)})):
        here = world(data)
        assert here.decide(call("/health"), 50).allowed
        assert here.decide(call("/v1/embeddings", "POST", body=b'{"input":"x"}'), 50).allowed


def test_default_protection_gives_its_reason() -> None:
    """A denial of the built-in block is a loop denial, with no policy matched (B-6, R-2)."""
    here = world()
    assert here.decide(chat()).reason == "no_matching_policy"
    verdict = here.decide(chat(), 5)
    assert (verdict.reason, verdict.policy, verdict.status) == ("loop_detected", "builtin", 429)


def test_global_shadow_shows_what_would_be_enforced() -> None:
    """A policy that opted out is not judged by the default in shadow either; one that did not is (K-1, B-6)."""
    for loop, seen in ((OFF, False), (None, True)):
        here = world(bundle(own(loop=loop), defaults={}, global_shadow=SHADOW_UNTIL))
        assert bool(here.decide(chat(), 6).shadow) is seen


def test_the_three_numbers_of_the_loop_guard() -> None:
    """LOOP_GUARD_WINDOW_SECONDS, _MAX_HITS and _COOLDOWN_SECONDS set the built-in block (LD-2)."""
    here = world(guard=BuiltinLoopGuard(window_seconds=10, max_hits=2, cooldown_seconds=5))
    assert blocked_at(here) == 3
    assert here.decide(chat()).retry_after_s == 5
    here.clock.advance(5)
    assert here.decide(chat()).allowed
    here.clock.advance(10)
    assert here.decide(chat(), 2).allowed
    assert here.decide(chat()).retry_after_s == 10


def test_a_loop_guard_of_0_hits_switches_the_built_in_block_off() -> None:
    """For everybody who does not say otherwise (LD-2)."""
    off = BuiltinLoopGuard(max_hits=0)
    assert blocked_at(world(guard=off)) == 0
    on = bundle(defaults={}, projects={"default": {"loop_guard": {"max_hits": 4}}})
    assert blocked_at(world(on, guard=off)) == 5


def test_a_long_cooldown_of_the_loop_guard_is_not_cut() -> None:
    """A cooldown over the usual maximum of 900 s is what was asked for (LD-2)."""
    here = world(guard=BuiltinLoopGuard(cooldown_seconds=2000))
    assert here.decide(chat(), 6).retry_after_s == 2000


def test_project_loop_guard_is_of_the_calls_project() -> None:
    """Projects are told apart by the descriptor that the settings name, and so are their counters (B-1, B-6)."""
    data = bundle(defaults={}, projects={"eval": {"loop_guard": {"max_hits": 0}}})
    settings = ContextSettings(secret=SECRET, project_descriptor="header:x-project")
    here = world(data, settings=settings)
    assert here.decide(chat(headers={"x-project": "eval"}), 50).allowed
    assert not here.decide(chat(headers={"x-project": "live"}), 6).allowed
    assert here.decide(chat(headers={"x-project": "more"}), 5).allowed


def test_tokens_and_keys_do_not_reach_state() -> None:
    """A limit by API key or token counts by a keyed digest; the same value, the same bucket (Y-1)."""
    secrets = {"authorization": "Bearer sk-canary", "x-api-key": "canary-key", "cookie": "canary=1", "x-user": "ann"}
    keys = ["header:authorization", "header:x-api-key", "header:cookie", "query:key", "header:x-user"]
    store = SpyStore()
    here = world(bundle(policy("p", bucket(rate=1, burst=2, keys=keys), loop=exact(9))), store=store)
    asked = call(headers=secrets, query="key=canary-query")
    assert here.decide(asked, 2).allowed
    assert not here.decide(asked).allowed
    assert here.decide(call(headers={**secrets, "x-api-key": "another"}, query="key=canary-query")).allowed
    assert store.keys()
    assert "canary" not in " ".join(store.keys())
    assert any("ann" in key for key in store.keys())  # noqa: SIM118 - an operator still sees what is no secret


def test_prompts_do_not_reach_state() -> None:
    """State keys hold digests of what was said (Y-1)."""
    store = SpyStore()
    here = world(bundle(policy("p", bucket(), loop=[exact(), tail()])), store=store)
    here.decide(chat(user("canary prompt")), 9)
    assert "canary" not in " ".join(store.keys())


def test_without_a_bundle_version_0() -> None:
    """ "no policy configured" is told apart from a bundle (D-5)."""
    assert compile_bundle(None, "", descriptors(), SECRET, BuiltinLoopGuard()).version == 0
    assert compiled(bundle(bundle_version=7), descriptors()).version == 7


def test_times_of_the_bundle() -> None:
    """What has no end never expires, what is disabled was never on (B-5, K-1)."""
    plain = compiled(bundle(), descriptors())
    assert (plain.expires, plain.shadow_until, plain.kill_override_until) == (math.inf, 0.0, 0.0)
    dated = compiled(bundle(expires_at=at(5), kill_switch_override=SHADOW_UNTIL), descriptors())
    assert (dated.expires, dated.kill_override_until) == (1_800_000_005.0, 1_800_001_000.0)


def test_a_bundle_that_needs_more_messages_gets_them() -> None:
    """A bundle states how many last messages its detectors look at (LD-2)."""
    made = compiled(bundle(policy("p", loop=tail(tail_messages=12))), descriptors())
    assert made.tail_messages == 13  # and the call that the first of them may be the result of
    assert compiled(None, descriptors()).tail_messages == 4
    assert compiled(None, descriptors(), BuiltinLoopGuard(max_hits=0)).tail_messages == 3


def test_blocks_of_later_versions_are_left_out() -> None:
    """What this version does not enforce yet does no harm (LD-3, LD-4)."""
    steps = {"similarity": "steps"}
    here = world(bundle(policy("p", loop=[steps, exact(3)])))
    verdict = here.decide(chat(), 3)
    assert not verdict.allowed
    assert verdict.rule == "loop_detection[1]"
