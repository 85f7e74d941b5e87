"""Blocks to detectors: the built-in protection, and whose counters are whose."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard, CountingDetector
from breakloop.detect.steps.window import SessionWindow
from breakloop.policy import compile as module
from breakloop.policy.compile import builtin_blocks, empty_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.schema import bundle as schema
from breakloop.policy.schema.loops import StepsLoop, TailLoop
from tests.builders import SECRET, Json, bundle, chat, compiled, exact, policy, tail, user, world


def detectors(block: Json) -> tuple[CountingDetector, ...]:
    descriptors = Descriptors(ContextSettings(secret=SECRET), FakeClock())
    found = compiled(bundle(policy("p", loop=block)), descriptors).policies[0].loops
    return tuple(one for one in found if isinstance(one, CountingDetector))


def test_the_builtin_block_in_words() -> None:
    """5 in 60 s, then 30 s, doubling up to 900 s (B-6, LD-2)."""
    block, steps = builtin_blocks(BuiltinLoopGuard())
    assert isinstance(block, TailLoop)
    assert (block.max_hits, block.window_seconds, block.cooldown_seconds) == (5, 60, 30)
    assert (block.cooldown_growth, block.cooldown_max_seconds, block.tail_messages) == (2.0, 900, 3)
    assert block.action_for("block") == "reject"
    assert isinstance(steps, StepsLoop)
    assert [steps.action_for(level) for level in ("notice", "block", "stop")] == ["warn", "reject", "reject"]
    assert (steps.sensitivity, steps.stream_guard, steps.thresholds) == ("normal", True, {})
    assert (steps.cooldown_seconds, steps.cooldown_growth, steps.cooldown_max_seconds) == (30, 2.0, 900)


def test_more_hits_lift_storm() -> None:
    """`LOOP_GUARD_MAX_HITS` N also lifts `storm` to at least N / 2N (LD-2)."""
    for hits, lifted in ((1, {}), (5, {}), (6, {"storm": (6, 12, 24)}), (50, {"storm": (50, 100, 200)})):
        _, steps = builtin_blocks(BuiltinLoopGuard(max_hits=hits))
        assert isinstance(steps, StepsLoop)
        assert steps.thresholds == lifted


def test_a_cooldown_longer_than_the_longest_lengthens_that() -> None:
    """`LOOP_GUARD_COOLDOWN_SECONDS` means what it says (LD-2)."""
    for block in builtin_blocks(BuiltinLoopGuard(cooldown_seconds=3600)):
        assert isinstance(block, TailLoop | StepsLoop)
        assert (block.cooldown_seconds, block.cooldown_max_seconds) == (3600, 3600)


def test_the_builtin_blocks_are_valid() -> None:
    """They are not validated when they are made, and yet are what the schema accepts (LD-2)."""
    for guard in (BuiltinLoopGuard(), BuiltinLoopGuard(1, 50, 3600, 400)):
        for block in builtin_blocks(guard):
            again = type(block).model_validate(block.model_dump(exclude_unset=True))
            assert (again, again.model_fields_set) == (block, block.model_fields_set)


def test_without_a_policy_the_defaults_of_a_bundle_apply() -> None:
    """The same holds for the bundle that stands for none (B-6)."""
    assert empty_bundle() == schema.Bundle(bundle_version=1, policies=[])


def test_no_hits_no_blocks() -> None:
    """`LOOP_GUARD_MAX_HITS=0` switches it off (LD-2)."""
    assert builtin_blocks(BuiltinLoopGuard(max_hits=0)) == ()


def test_a_policy_of_that_name_has_its_own_counters() -> None:
    """A policy called `builtin` does not share the built-in block's counts, even of the same requests (B-6)."""
    covered = policy("builtin", selector={"hosts": ["a"]}, loop=tail(max_hits=5))
    here = world(bundle(covered, defaults={}))
    for _ in range(5):
        assert here.decide(chat(host="a")).allowed
        assert here.decide(chat(host="b")).allowed
    assert not here.decide(chat(host="a")).allowed
    assert not here.decide(chat(host="b")).allowed


def test_only_what_denies_cools_down() -> None:
    """A warning blocks nothing, so there is no cooldown to wait for (LD-2, LD-5)."""
    made: list[CountingDetector] = []
    for action in ("warn", "steer", "throttle", "reject", "kill"):
        of_all_names, named = detectors({**tail(), "action": action})
        assert (named.spec.limit, of_all_names.spec) == (5, replace(named.spec, limit=50))
        made.append(named)
    assert [detector.spec.denies for detector in made] == [False, False, False, True, True]
    assert [detector.spec.cooldown_s for detector in made] == [0, 0, 0, 30, 30]


def test_the_threshold_counts_the_request_that_trips() -> None:
    """The Nth trips, so N - 1 pass (LD-1)."""
    (detector,) = detectors(exact(4))
    assert detector.spec.limit == 3


def test_what_is_free_comes_from_the_block() -> None:
    """16 and 10 unless the block says otherwise (LD-6)."""
    blocks = [exact(4), tail(), exact(4, concurrent_free=0, retry_free=3), tail(concurrent_free=2, retry_free=0)]
    specs = [detectors(block)[0].spec for block in blocks]
    assert [(spec.concurrent_free, spec.retry_free) for spec in specs] == [(16, 10), (16, 10), (0, 3), (2, 0)]


@pytest.mark.parametrize(("policies", "kept"), [(0, 24), (2, 24), (10, 44)])
def test_blocks_share_the_bound_of_unpacked_windows(policies: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the sessions of each policy: blocks share a bound, and have four windows at least."""
    monkeypatch.setattr(module, "_UNPACKED_MAX", 24)
    steps = [policy(f"p{one}", loop={"similarity": "steps"}, mode="shadow") for one in range(policies)]
    here = world(bundle(*steps, defaults={}))
    gc.collect()
    before = sum(isinstance(one, SessionWindow) for one in gc.get_objects())
    for session in range(30):
        here.decide(chat(user(f"task {session}"), headers={"x-agent-session": f"s{session}"}))
    assert sum(isinstance(one, SessionWindow) for one in gc.get_objects()) - before == kept
