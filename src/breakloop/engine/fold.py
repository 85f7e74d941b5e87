"""Results of a commit -> `Verdict` (SPEC E-1 to E-6): the first enforced denial decides; warnings, throttles and the
tightest limit are gathered; what shadow policies found is set aside and never reaches the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from breakloop.detect.counting import DELAY_MAX_MS, CountingDetector
from breakloop.detect.stateful import Detection
from breakloop.limits.base import BudgetStage
from breakloop.model.call import Call, Chat
from breakloop.model.events import (
    BREAKER_CLOSED,
    BREAKER_OPENED,
    BUDGET_THRESHOLD,
    LIMIT_EXCEEDED,
    LOOP_DETECTED,
    SHADOW_WOULD_REJECT,
    Event,
    Publish,
)
from breakloop.model.verdict import REASONS, LoopFinding, ShadowFinding, Verdict
from breakloop.policy.cache import TwoGenerationCache
from breakloop.policy.compiled import NotNow
from breakloop.policy.matching import CompiledKillSwitch
from breakloop.policy.rules import CompiledRule
from breakloop.store.ops import (
    ENFORCED,
    BreakerResult,
    ChargeBudget,
    CheckBreaker,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    Observation,
    Op,
    Result,
    TakeTokens,
)

_LIMITS: Final = frozenset((TakeTokens, ChargeBudget, CheckBreaker))
_UNTOLD: Final = 2.0
_TOLD_MAX: Final = 20_000
_REASON_SHOWN = 256  # of a kill switch's reason: nginx gets it in a header field, whose room is limited


class ResultFolder:
    """Turns results into a verdict and events."""

    __slots__ = ("_publish", "_told")

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        # The highest stage that was told, by account, which is of one period: a budget that refunds have taken below a
        # stage is not told of again when it comes back to it.
        self._told: TwoGenerationCache[str, int] = TwoGenerationCache(_TOLD_MAX)

    def verdict(self, call: Call, ops: Sequence[Op], done: CommitResult, now: float) -> Verdict:
        """Return the verdict on a call whose operations were committed."""
        verdict = Verdict()
        tightest = _UNTOLD
        limiting: tuple[Any, Any] | None = None
        shadow: list[ShadowFinding] | None = None
        staged: list[tuple[Any, int, BudgetStage]] = []
        op: Any
        result: Any
        for op, result in zip(ops, done.results, strict=True):
            kind = type(op)
            if kind is TakeTokens or kind is ChargeBudget:
                if result is None:
                    continue  # not looked at: its group was denied before
                share = result / op.spec.burst if kind is TakeTokens else _left(op, result, staged)
                if share >= 0.0:
                    if op.group == ENFORCED and share < tightest:
                        tightest = share
                        limiting = (op, result)
                    continue
            elif not self._saw(call, op, result, verdict, now):
                continue
            if op.group != ENFORCED:
                shadow = shadow or []
                shadow.append(_shadowed(op))
        if done.denied_at >= 0:
            self._deny(call, ops[done.denied_at], done, verdict, now)
        elif limiting is not None:
            charge, left = limiting
            rule: CompiledRule = charge.owner
            verdict.policy, verdict.rule = rule.policy, rule.name
            verdict.limit = rule.limiter.limit(rule.policy, charge, left, now)
        if shadow is not None:
            verdict.shadow = tuple(shadow)
            self._tell_shadow(call, verdict, now)
        if staged and verdict.allowed:  # else nothing was charged
            self._staged(call, staged, verdict, now)
        return verdict

    def _staged(self, call: Call, staged: list[tuple[Any, int, BudgetStage]], verdict: Verdict, now: float) -> None:
        """Budgets are nearly used up: warn, or slow down (SPEC L-2), and tell of each stage once a period."""
        uncharged = {found.policy for found in verdict.shadow if found.action == "deny"}
        for op, used, stage in staged:
            if op.group != ENFORCED and op.owner.policy in uncharged:
                continue
            told = self._told.get(op.key) or 0
            if stage.units > told:
                self._told.put(op.key, stage.units)
                for crossed in op.owner.limiter.crossings(op, used, told):
                    data = {**crossed, "shadow": op.group != ENFORCED}
                    self._publish(Event(BUDGET_THRESHOLD, now, data, call.project, call.request_id))
            if op.group == ENFORCED:
                verdict.warning = verdict.warning or stage.warning
                verdict.delay_ms = min(max(verdict.delay_ms, stage.delay_ms), DELAY_MAX_MS)

    def _saw(self, call: Call, op: Op, result: Result, verdict: Verdict, now: float) -> bool:
        """Take in what a detector found; tell whether it found anything."""
        if type(op) is CountFingerprint:
            if type(result) is not FingerprintCount or not result.tripped:
                return False
            self._tripped(call, op, result, verdict, now)
        elif type(op) is CheckBreaker:
            return self._broke(call, op, result, now)
        elif type(op) is Observation:
            self._noted(call, op, verdict, now)
        return True

    def _broke(self, call: Call, op: CheckBreaker, result: Result, now: float) -> bool:
        """Tell of a breaker that opens or closes (SPEC CB-2); return whether it is open."""
        if type(result) is not BreakerResult:
            return False
        if result.changed:
            name = BREAKER_OPENED if result.changed == "opened" else BREAKER_CLOSED
            data = {**op.owner.limiter.event_data(op, result), "shadow": op.group != ENFORCED}
            self._publish(Event(name, now, data, call.project, call.request_id))
        return result.open

    def _tripped(
        self, call: Call, op: CountFingerprint, result: FingerprintCount, verdict: Verdict, now: float
    ) -> None:
        """A loop was seen. Warn, steer and throttle leave their mark and go on; a denial is `_deny`'s."""
        detector: CountingDetector | Detection = op.owner
        loop = detector.found(op, result)
        if result.fresh:
            data = _loop_data(call, detector, loop, shadow=op.group != ENFORCED)
            self._publish(Event(LOOP_DETECTED, now, data, call.project, call.request_id))
        if op.group != ENFORCED or op.spec.denies:
            return
        self._mark(detector, loop, verdict, result.hits)

    def _mark(self, detector: CountingDetector | Detection, loop: LoopFinding, verdict: Verdict, hits: int) -> None:
        """Warn, and steer or slow down where that is the action."""
        if verdict.loop is None or loop.hit_count > verdict.loop.hit_count:
            verdict.loop = loop
        verdict.warning = "loop_detected"
        if loop.action == "throttle":
            verdict.delay_ms = min(max(verdict.delay_ms, detector.delay_ms(hits)), DELAY_MAX_MS)
        elif loop.action == "steer":
            verdict.note = detector.note(loop)

    def _noted(self, call: Call, op: Observation, verdict: Verdict, now: float) -> None:
        """A loop was seen that is not to be stopped."""
        seen: Detection = op.owner
        loop = seen.found(op, FingerprintCount(seen.hits))
        if loop.fresh:
            data = _loop_data(call, seen, loop, shadow=op.group != ENFORCED)
            self._publish(Event(LOOP_DETECTED, now, data, call.project, call.request_id))
        if op.group == ENFORCED:
            self._mark(seen, loop, verdict, loop.hit_count)

    def _deny(self, call: Call, op: Op, done: CommitResult, verdict: Verdict, now: float) -> None:
        verdict.allowed = False
        verdict.delay_ms, verdict.warning, verdict.note, verdict.loop = 0, "", "", None
        result = done.results[done.denied_at]
        if type(op) is CountFingerprint and type(result) is FingerprintCount:
            _deny_loop(op, result, verdict)
        elif type(op) in _LIMITS:
            rule = op.owner
            rule.limiter.denied(op, result, now, verdict)
            verdict.status, verdict.policy, verdict.rule = rule.status, rule.policy, rule.name
            data = {"policy": verdict.policy, "rule": verdict.rule, "reason": verdict.reason}
            self._publish(Event(LIMIT_EXCEEDED, now, data, call.project, call.request_id))
        else:
            _deny_refused(call, op, verdict)

    def _tell_shadow(self, call: Call, verdict: Verdict, now: float) -> None:
        for found in verdict.shadow:
            if found.action == "deny":
                data = {"policy": found.policy, "rule": found.rule, "reason": found.reason}
                self._publish(Event(SHADOW_WOULD_REJECT, now, data, call.project, call.request_id))


def _left(op: ChargeBudget, used: int, staged: list[tuple[Any, int, BudgetStage]]) -> float:
    """Return which share of a budget is left after the charge; less than nothing where it is denied, more than any
    where it is not for the client to be told. A stage that it has reached is added to `staged`."""
    budget, limiter = op.spec.budget, op.owner.limiter
    if used > budget:
        return -1.0
    stage = limiter.staged(op, used)
    if stage is not None:
        staged.append((op, used, stage))
    return (budget - used) / budget if limiter.renews else _UNTOLD


def _deny_loop(op: CountFingerprint, result: FingerprintCount, verdict: Verdict) -> None:
    detector: CountingDetector | Detection = op.owner
    loop = detector.found(op, result)
    verdict.reason = "loop_detected"
    verdict.status = detector.terms.status
    verdict.policy, verdict.rule = detector.terms.policy, detector.terms.rule
    verdict.loop = loop
    verdict.message = loop.message
    verdict.retry_after_s = loop.cooldown_s
    verdict.never = True  # an SDK that retries by itself only feeds the loop


def _deny_refused(call: Call, op: Op, verdict: Verdict) -> None:
    """What was known to be wrong before any limit was looked at: its owner knows the words."""
    verdict.reason = op.owner.refusal
    verdict.never = True
    op.owner.refused(call, verdict)


def _shadowed(op: Op) -> ShadowFinding:
    if type(op) is Observation:
        seen: Detection = op.owner
        return ShadowFinding(seen.terms.policy, seen.terms.rule, "loop_detected", seen.action)
    if type(op) is CountFingerprint:
        detector: CountingDetector | Detection = op.owner
        terms = detector.terms
        action = "deny" if op.spec.denies else terms.action
        return ShadowFinding(terms.policy, terms.rule, "loop_detected", action)
    if type(op) is Deny:
        policy, name = op.owner.refusal_at
        return ShadowFinding(policy, name, op.owner.refusal, "deny")
    rule: CompiledRule = op.owner
    return ShadowFinding(rule.policy, rule.name, rule.limiter.reason_for(op), "deny")


def _loop_data(
    call: Call, detector: CountingDetector | Detection, loop: LoopFinding, *, shadow: bool
) -> dict[str, object]:
    chat = call.chat_cache
    caller, agent = detector.sender(call)
    return {
        "caller": caller,
        "agent": agent,
        "model": chat.model if isinstance(chat, Chat) else "",
        "fingerprint": loop.fingerprint,
        "hit_count": loop.hit_count,
        "cooldown_seconds": loop.cooldown_s,
        "kind": loop.kind,
        "evidence": loop.evidence,
        "action": loop.action,
        "policy": detector.terms.policy,
        "shadow": shadow,
    }


def denial(reason: str, status: int, message: str) -> Verdict:
    """Return a denial; the reason has to be in the closed list."""
    if reason not in REASONS:
        raise KeyError(reason)
    return Verdict(allowed=False, reason=reason, status=status, message=message)


def no_bundle() -> Verdict:
    """SPEC E-0: a configured source has given nothing yet."""
    verdict = denial("no_bundle_loaded", 503, "No valid policy bundle has been loaded yet.")
    verdict.retry_after_s = 1
    return verdict


def killed(switch: CompiledKillSwitch, now: float) -> Verdict:
    """SPEC K-2: an operator's switch matches."""
    why = f": {switch.reason[:_REASON_SHOWN]}" if switch.reason else ""
    verdict = denial("kill_switch", 429, f"Stopped by an operator's kill switch{why}")
    verdict.rule = switch.name
    verdict.retry_after_s = switch.retry_after_s(now)
    verdict.never = True
    return verdict


def absent(absence: NotNow) -> Verdict:
    """SPEC B-1: the agent is switched off, or it is not its hour."""
    verdict = denial(absence.reason, 429, absence.message)
    verdict.policy, verdict.rule = "agents", absence.reason
    verdict.retry_after_s = absence.wait_s
    verdict.never = absence.wait_s is None
    return verdict
