"""Results of a commit to a verdict, without a store: the judge is given what one would have answered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from breakloop.detect.counting import CountingDetector, DetectorConfig, TailDetector
from breakloop.detect.stateful import Detection, Evaluation
from breakloop.dialects.clients import AUTO
from breakloop.engine.decision_state import grant
from breakloop.engine.fold import ResultFolder, absent, killed
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.call import Call
from breakloop.model.events import LIMIT_EXCEEDED, LOOP_DETECTED, SHADOW_WOULD_REJECT, Event
from breakloop.model.verdict import LimitState, Verdict
from breakloop.policy.compiled import CompiledKillSwitch, NotNow
from breakloop.policy.rules import CompiledRule
from breakloop.store.limit_ops import TakeTokens
from breakloop.store.ops import (
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Observation,
    Op,
    Result,
)
from tests.builders import call
from tests.unit.detect.reading import Reader

WHO = Reader(caller_id="me", agent_id="bot")


def rule(name: str = "r", burst: float = 10, policy: str = "p") -> CompiledRule:
    limiter = TokenBucket(1, burst)
    missing = (("header:x", lambda call: call.header("x")),)
    return CompiledRule(name, policy, match=(), limit_keys=missing, limiter=limiter, rejects_missing=True, status=418)


def charge(owner: CompiledRule, group: int = 0, cost: float = 1.0) -> TakeTokens:
    assert isinstance(owner.limiter, TokenBucket)
    return TakeTokens(owner.limiter.spec, "tb:k", cost, owner.limiter, owner, group)


def repeat(action: str, group: int = 0, policy: str = "p") -> CountFingerprint:
    denies = action in {"reject", "kill"}
    terms = DetectorConfig("exact", policy, 0, (action, action, action), 429)
    spec = FingerprintSpec(60.0, 2, denies=denies)
    return CountFingerprint(spec, "ld:" + "f" * 32, CountingDetector(terms, spec, lambda _: None, WHO), group)


def tail(action: str, group: int = 0) -> CountFingerprint:
    terms = DetectorConfig("tail", "p", 0, (action, action, action), 429)
    spec = FingerprintSpec(60.0, 2, sliding=True, denies=action in {"reject", "kill"})
    owner = TailDetector(terms, spec, lambda _: None, WHO)
    return CountFingerprint(spec, "cnt:" + "f" * 32, owner, group).within("mix:s", opening=True)


def judge(*pairs: tuple[Op, Result], denied_at: int = -1) -> tuple[Verdict, list[Event]]:
    events: list[Event] = []
    ops: Sequence[Op] = [op for op, _ in pairs]
    done = CommitResult([result for _, result in pairs], denied_at)
    return ResultFolder(events.append, lambda *_: None).verdict(call(request_id="r1"), ops, done, 5.0), events


TRIPPED = FingerprintCount(3, True, True, 60.0)
AGAIN = FingerprintCount(9, True, False, 60.0)


def test_nothing_happened() -> None:
    """Passed limits and counts below their limit leave only the limit's state (A-5)."""
    verdict, events = judge((repeat("reject"), FingerprintCount(1)), (charge(rule()), 9.0))
    assert verdict.allowed
    assert (verdict.policy, verdict.rule, verdict.limit) == ("p", "r", LimitState("p", 10, 10, 9, 1))
    assert events == []


def test_the_tightest_enforced_limit_is_shown() -> None:
    """By the share that is left; shadow limits are never shown (A-5)."""
    verdict, _ = judge(
        (charge(rule("wide", 100)), 50.0), (charge(rule("tight", 10)), 4.0), (charge(rule("s", 10), group=3), 1.0)
    )
    assert verdict.rule == "tight"
    verdict, _ = judge((charge(rule("s", 10), group=3), 1.0))
    assert (verdict.limit, verdict.policy) == (None, "")


def test_a_limit_denial() -> None:
    """Status, wait, jitter, state and one event; the reset is when the request would pass (A-1, G-2)."""
    verdict, events = judge((charge(rule("a")), 3.0), (charge(rule("b"), cost=4.0), -2.5), denied_at=1)
    assert (verdict.allowed, verdict.status, verdict.reason, verdict.rule) == (False, 418, "token_bucket_exceeded", "b")
    assert (verdict.retry_after_s, verdict.retry_jitter, verdict.never) == (3, True, False)
    assert verdict.limit == LimitState("p", 10, 10, 1, 3)
    (event,) = events
    assert (event.name, event.at, event.request_id) == (LIMIT_EXCEEDED, 5.0, "r1")
    assert event.data == {"policy": "p", "rule": "b", "reason": "token_bucket_exceeded"}


def test_a_loop_denial_forgets_warnings() -> None:
    """What an earlier detector only warned of is not told beside a denial (E-4)."""
    verdict, events = judge((repeat("throttle"), AGAIN), (repeat("reject", policy="q"), TRIPPED), denied_at=1)
    assert (verdict.allowed, verdict.reason, verdict.policy, verdict.never) == (False, "loop_detected", "q", True)
    assert (verdict.delay_ms, verdict.warning, verdict.note) == (0, "", "")
    assert verdict.loop is not None
    assert verdict.loop.hit_count == 3
    assert [event.name for event in events] == [LOOP_DETECTED]


def test_an_opening_in_mixed_traffic_is_warned_of() -> None:
    """The request passes without a delay or a note, whatever the action; the first one is an event (LD-2, LD-5)."""
    for action in ("reject", "kill", "throttle", "steer"):
        op = tail(action)
        verdict, events = judge((op, FingerprintCount(3, True, True, mixed=True)))
        assert (verdict.allowed, verdict.warning, verdict.delay_ms, verdict.note) == (True, "loop_detected", 0, "")
        assert verdict.loop is not None
        assert (verdict.loop.action, verdict.loop.hit_count) == ("warn", 3)
        assert [event.data["action"] for event in events] == ["warn"]
        verdict, events = judge((op, FingerprintCount(4, True, False, mixed=True)))
        assert (verdict.warning, events) == ("loop_detected", [])
        shadow, _ = judge((tail(action, group=2), FingerprintCount(3, True, True, mixed=True)))
        assert [found.action for found in shadow.shadow] == ["warn"]


def test_an_agent_that_may_not_run_now() -> None:
    """When it may, if ever; what is told is of the agents' rules, as no policy denies it (B-1)."""
    later = absent(NotNow("outside_hours", "From 8 to 9.", 90))
    assert (later.allowed, later.status, later.reason, later.message) == (False, 429, "outside_hours", "From 8 to 9.")
    assert (later.policy, later.rule, later.retry_after_s, later.never) == ("agents", "outside_hours", 90, False)
    never = absent(NotNow("agent_inactive", "It is switched off.", None))
    assert (never.retry_after_s, never.never) == (None, True)


def test_a_missing_descriptor_is_named() -> None:
    """With the rule's status, and no way to wait it out (E-3)."""
    verdict, events = judge((Deny(rule()), None), denied_at=0)
    assert (verdict.reason, verdict.status, verdict.rule, verdict.never) == ("missing_descriptor", 418, "r", True)
    assert verdict.message == "The request lacks header:x, which this limit counts by."
    assert events == []


def test_warnings_are_gathered() -> None:
    """The highest count, the longest delay, the note; only fresh detections are events (E-2, E-6)."""
    verdict, events = judge(
        (repeat("throttle"), AGAIN),
        (repeat("steer"), TRIPPED),
        (repeat("warn"), TRIPPED),
        (repeat("throttle"), TRIPPED),
    )
    assert verdict.allowed
    assert (verdict.delay_ms, verdict.warning) == (900, "loop_detected")
    assert verdict.note.startswith("You have sent the same request 3 times")
    assert verdict.loop is not None
    assert verdict.loop.hit_count == 9
    assert [event.data["action"] for event in events] == ["steer", "warn", "throttle"]


def test_a_loop_that_is_only_observed() -> None:
    """It is told once, and marks the request unless it is of a shadow policy (E-1, E-2)."""
    terms = DetectorConfig("steps", "p", 0, ("warn", "warn", "reject"), 429)
    for group, fresh in ((0, True), (0, False), (1, True)):
        found = Evaluation(b"", 1, "repeat", "the same call 3 times", "f" * 16, fresh, 3.0)
        verdict, events = judge((Observation(Detection(terms, "warn", found, WHO, "p:s", ""), group), None))
        assert verdict.allowed
        assert verdict.warning == ("" if group else "loop_detected")
        assert [event.data["shadow"] for event in events] == ([bool(group)] if fresh else [])


def test_of_loops_that_were_repeated_as_often_the_first_is_shown() -> None:
    """That of the policy that comes first (E-2)."""
    first, second = repeat("warn"), repeat("steer", policy="q")
    verdict, _ = judge((first, TRIPPED), (second, TRIPPED))
    assert verdict.loop is not None
    assert verdict.loop.action == "warn"


def test_shadow_is_set_aside() -> None:
    """Found, told as events, and nothing of it in what the client gets (E-1)."""
    verdict, events = judge(
        (repeat("throttle", group=1), TRIPPED),
        (repeat("reject", group=2, policy="q"), AGAIN),
        (charge(rule(policy="s"), group=3), -1.0),
        (Deny(rule(policy="t"), 4), None),
        (charge(rule(policy="u"), group=4), None),
        (charge(rule()), 9.0),
    )
    assert verdict.allowed
    assert (verdict.delay_ms, verdict.warning, verdict.note, verdict.loop) == (0, "", "", None)
    found = [(one.policy, one.reason, one.action) for one in verdict.shadow]
    assert found == [
        ("p", "loop_detected", "throttle"),
        ("q", "loop_detected", "deny"),
        ("s", "token_bucket_exceeded", "deny"),
        ("t", "missing_descriptor", "deny"),
    ]
    assert verdict.policy == "p"
    assert [event.data.get("shadow") for event in events if event.name == LOOP_DETECTED] == [True]
    assert [event.data["policy"] for event in events if event.name == SHADOW_WOULD_REJECT] == ["q", "s", "t"]


def test_loop_events_carry_counts_and_hashes() -> None:
    """Fingerprint, count, cooldown, kind, action and whose it was (G-4)."""
    _, events = judge((repeat("warn"), TRIPPED))
    assert events[0].data == {
        "caller": "me",
        "agent": "bot",
        "model": "",
        "fingerprint": "f" * 32,
        "hit_count": 3,
        "cooldown_seconds": 60,
        "kind": "exact",
        "evidence": "identical request sent 3 times, never more than 60 seconds apart",
        "action": "warn",
        "policy": "p",
        "shadow": False,
    }


def step(kind: str = "steps", group: int = 0) -> CountFingerprint:
    """The count of a loop whose status depends on the client."""
    terms = DetectorConfig(kind, "p", 0, ("reject", "reject", "reject"), AUTO)
    spec = FingerprintSpec(60.0, 2)
    return CountFingerprint(spec, "cnt:" + "f" * 32, CountingDetector(terms, spec, lambda _: None, WHO), group)


@pytest.mark.parametrize(
    ("before", "result", "status"),
    [
        (step(), AGAIN, 400),
        (step(), TRIPPED, 429),  # denied for the first time
        (step(), FingerprintCount(1), 429),
        (step("tail"), AGAIN, 429),  # a person may have repeated it
        (step(group=1), AGAIN, 429),  # shadow changes nothing for the client
    ],
    ids=["again", "first", "below", "message", "shadow"],
)
def test_a_step_that_was_denied_before_ends_the_run(
    before: CountFingerprint, result: FingerprintCount, status: int
) -> None:
    """Only then does a framework above the SDK retry, whatever else was counted before it (A-7)."""
    ops: list[Op] = [charge(rule()), before, step("tail")]
    done = CommitResult([9.0, result, TRIPPED], 2)
    folder = ResultFolder(lambda _: None, lambda *_: None)
    assert folder.verdict(call(headers={"user-agent": "OpenAI/Python 2.54.0"}), ops, done, 5.0).status == status


def test_a_kill_switch_says_why() -> None:
    """As far as a header field has room for it, and when it ends, if it does within the hour (K-2)."""
    verdict = killed(CompiledKillSwitch(2, "agent:id", "a", reason="x" * 300, expires=65.0), 5.0)
    assert (verdict.allowed, verdict.status, verdict.reason, verdict.never) == (False, 429, "kill_switch", True)
    assert (verdict.rule, verdict.retry_after_s) == ("kill_switches[2]", 60)
    assert verdict.message == f"Stopped by an operator's kill switch: {'x' * 256}"
    silent = killed(CompiledKillSwitch(0, "agent:id", "a"), 5.0)
    assert (silent.message, silent.retry_after_s) == ("Stopped by an operator's kill switch", 3600)


def test_a_warning_hides_no_limit_and_no_shadow_finding() -> None:
    """A loop that is only warned of is not the tightest limit (A-5, E-1)."""
    verdict, _ = judge((repeat("throttle"), TRIPPED), (charge(rule(policy="s"), group=3), -1.0), (charge(rule()), 9.0))
    assert (verdict.allowed, verdict.warning) == (True, "loop_detected")
    assert verdict.limit == LimitState("p", 10, 10, 9, 1)
    assert [found.policy for found in verdict.shadow] == ["s"]


def test_the_last_of_a_limit_is_no_denial() -> None:
    """With nothing left, an enforced limit is shown, and one of a shadow policy has found nothing (A-5, E-1)."""
    verdict, events = judge((charge(rule(policy="s"), group=3), 0.0), (charge(rule()), 0.0))
    assert verdict.limit is not None
    assert (verdict.limit.remaining, verdict.shadow, events) == (0, (), [])


def ceiling(action: str, group: int = 0) -> Observation:
    """A run that has nearly reached its number of steps."""
    terms = DetectorConfig("steps", "agents", 0, ("warn", "warn", "reject"), 429)
    found = Evaluation(b"", 1, "steps", "", "", False, 3.0)
    return Observation(
        Detection(terms, action, found, WHO, "p:s", ""), group, "80 % of the steps of this run are used."
    )


def test_a_ceiling_lands_the_run() -> None:
    """Unless it is in shadow; what landed the request before it stays the reason (LD-10, E-1)."""
    verdict, events = judge((ceiling("land"), None))
    assert (verdict.allowed, verdict.landed, verdict.warning, events) == (True, True, "run_land", [])
    assert "80 % of the steps" in verdict.note
    verdict, _ = judge((ceiling("land", group=-2), None))
    assert (verdict.allowed, verdict.landed, verdict.warning, verdict.note) == (True, False, "", "")
    verdict, _ = judge((repeat("land"), FingerprintCount(3, True, True, landed=1)), (ceiling("land"), None))
    assert (verdict.landed, verdict.warning) == (True, "loop_detected")
    assert "steps of this run" not in verdict.note


def test_a_ceiling_pauses_the_run() -> None:
    """Unless it is in shadow, or a person let the run go on; an earlier warning stays (K-6, E-1)."""
    paused: list[str] = []
    folder = ResultFolder(lambda _: None, lambda _call, why, _now: paused.append(why))

    def warning(*pairs: tuple[Op, Result], asked: Call | None = None) -> str:
        done = CommitResult([result for _, result in pairs], -1)
        return folder.verdict(asked or call(), [op for op, _ in pairs], done, 5.0).warning

    granted = call()
    grant(granted, ("run", "default", "me", "s"), "q1")
    assert warning((ceiling("pause", group=-2), None)) == ""
    assert warning((ceiling("pause"), None), asked=granted) == ""
    assert warning((ceiling("pause", group=-2), None), asked=granted) == ""
    assert paused == []
    assert warning((ceiling("pause"), None)) == "run_pause"
    assert warning((repeat("warn"), TRIPPED), (ceiling("pause"), None)) == "loop_detected"
    assert paused == ["80 % of the steps of this run are used."] * 2
