"""The recording engine decides as the engine does, and remembers how."""

from __future__ import annotations

import json

from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.engine.engine import Engine
from breakloop.model.call import Answer, Call
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.replay.explain import RecordingEngine
from breakloop.store.limit_ops import TakeTokens
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import CountFingerprint, FingerprintCount

POLICY = {
    "bundle_version": 1,
    "policies": [
        {
            "id": "p",
            "spec": {
                "selector": {"pathPrefix": "/a/"},
                "loop_detection": {"enabled": True, "window_seconds": 60, "threshold_identical_requests": 3},
                "rules": [
                    {
                        "name": "r",
                        "limit_keys": [],
                        "algorithm": "token_bucket",
                        "algorithm_config": {"tokens_per_second": 1, "burst": 9},
                    }
                ],
            },
        }
    ],
    "kill_switches": [{"scope_key": "header:x-team", "scope_value": "red"}],
}


def engines() -> tuple[RecordingEngine, Engine]:
    clock = FakeClock()
    descriptors = Descriptors(ContextSettings(), clock)
    bundle = load_text(json.dumps(POLICY).encode(), "p.json").bundle
    compiled = compile_bundle(bundle, "d", descriptors, b"s", BuiltinLoopGuard())
    recording = RecordingEngine(MemoryStore(), clock, descriptors)
    plain = Engine(MemoryStore(), clock, descriptors)
    recording.set_bundle(compiled)
    plain.set_bundle(compiled)
    return recording, plain


def test_it_decides_like_the_engine() -> None:
    """Recording changes no verdict and no count (E-7)."""
    recording, plain = engines()
    for _ in range(4):
        ours, theirs = recording.decide(Call("GET", "/a/b")), plain.decide(Call("GET", "/a/b"))
        assert (ours.allowed, ours.reason, ours.limit) == (theirs.allowed, theirs.reason, theirs.limit)
    assert recording.tally == plain.tally


def test_it_remembers_what_the_store_said() -> None:
    """The last decision, with each operation beside its result."""
    recording, _ = engines()
    for _ in range(3):
        recording.decide(Call("GET", "/a/b"))
    record = recording.record
    assert record is not None
    assert record.plan is not None
    assert [policy.id for policy in record.plan.policies] == ["p"]
    (loop, repeated), (bucket, filled) = record.done
    assert isinstance(loop, CountFingerprint)
    assert isinstance(repeated, FingerprintCount)
    assert (repeated.hits, repeated.tripped) == (3, True)
    assert isinstance(bucket, TakeTokens)
    assert filled is None  # the loop had ended evaluation
    assert record.verdict.reason == "loop_detected"
    assert record.at == FakeClock().now()


def test_nothing_of_the_decision_before_stays() -> None:
    """A kill switch plans nothing, so there is nothing to show."""
    recording, _ = engines()
    recording.decide(Call("GET", "/a/b"))
    recording.decide(Call("GET", "/a/b", headers={"x-team": b"red"}))
    record = recording.record
    assert record is not None
    assert (record.plan, record.done, record.verdict.reason) == (None, (), "kill_switch")


def test_it_settles_like_the_engine() -> None:
    """An answer goes through to the real store (E-7, LD-6)."""
    recording, plain = engines()
    for engine in (recording, plain):
        for _ in range(5):
            asked = Call("GET", "/a/b")
            asked.tracked = True
            assert engine.decide(asked).allowed
            engine.settle(asked, Answer(503))
    assert recording.tally == plain.tally
    assert recording.tally.forgiven == 5
