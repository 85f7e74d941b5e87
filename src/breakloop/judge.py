"""Results of a commit -> `Verdict` (SPEC E-1 to E-6): the first enforced denial decides; warnings, throttles and the
tightest limit are gathered; what shadow policies found is set aside and never reaches the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from breakloop.detect.loop import DELAY_MAX_MS, LoopDetector
from breakloop.detect.seen import Seen
from breakloop.model.call import Call, Chat
from breakloop.model.events import LIMIT_EXCEEDED, LOOP_DETECTED, SHADOW_WOULD_REJECT, Event, Publish
from breakloop.model.reason import REASONS
from breakloop.model.verdict import Loop, Shadowed, Verdict
from breakloop.policy.compiled import Rule
from breakloop.policy.kill_switch import KillSwitch
from breakloop.state.ops import ENFORCED, Bucket, Committed, Noted, Op, Refuse, Repeat, Repeated, Result

_REASON_SHOWN = 256  # of a kill switch's reason: nginx gets it in a header field, whose room is limited


class Judge:
    """Turns results into a verdict and events."""

    __slots__ = ("_publish",)

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def verdict(self, call: Call, ops: Sequence[Op], done: Committed, now: float) -> Verdict:
        """Return the verdict on a call whose operations were committed."""
        verdict = Verdict()
        tightest = 2.0
        limiting: tuple[Bucket, float] | None = None
        shadow: list[Shadowed] | None = None
        for op, result in zip(ops, done.results, strict=True):
            if type(op) is Bucket:
                if type(result) is not float:
                    continue  # not looked at: its group was denied before
                if result >= 0.0:
                    if op.group == ENFORCED and (share := result / op.spec.burst) < tightest:
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
            bucket, left = limiting
            rule: Rule = bucket.owner
            verdict.policy, verdict.rule = rule.policy, rule.name
            verdict.limit = rule.limiter.limit(rule.policy, bucket, left)
        if shadow is not None:
            verdict.shadow = tuple(shadow)
            self._tell_shadow(call, verdict, now)
        return verdict

    def _saw(self, call: Call, op: Op, result: Result, verdict: Verdict, now: float) -> bool:
        """Take in what a detector found; tell whether it found anything."""
        if type(op) is Repeat:
            if type(result) is not Repeated or not result.tripped:
                return False
            self._tripped(call, op, result, verdict, now)
        elif type(op) is Noted:
            self._noted(call, op, verdict, now)
        return True

    def _tripped(self, call: Call, op: Repeat, result: Repeated, verdict: Verdict, now: float) -> None:
        """A loop was seen. Warn, steer and throttle leave their mark and go on; a denial is `_deny`'s."""
        detector: LoopDetector | Seen = op.owner
        loop = detector.found(op, result)
        if result.fresh:
            data = _loop_data(call, detector, loop, shadow=op.group != ENFORCED)
            self._publish(Event(LOOP_DETECTED, now, data, call.project, call.request_id))
        if op.group != ENFORCED or op.spec.denies:
            return
        self._mark(detector, loop, verdict, result.hits)

    def _mark(self, detector: LoopDetector | Seen, loop: Loop, verdict: Verdict, hits: int) -> None:
        """Warn, and steer or slow down where that is the action."""
        if verdict.loop is None or loop.hit_count > verdict.loop.hit_count:
            verdict.loop = loop
        verdict.warning = "loop_detected"
        if loop.action == "throttle":
            verdict.delay_ms = min(max(verdict.delay_ms, detector.delay_ms(hits)), DELAY_MAX_MS)
        elif loop.action == "steer":
            verdict.note = detector.note(loop)

    def _noted(self, call: Call, op: Noted, verdict: Verdict, now: float) -> None:
        """A loop was seen that is not to be stopped."""
        seen: Seen = op.owner
        loop = seen.found(op, Repeated(seen.hits))
        if loop.fresh:
            data = _loop_data(call, seen, loop, shadow=op.group != ENFORCED)
            self._publish(Event(LOOP_DETECTED, now, data, call.project, call.request_id))
        if op.group == ENFORCED:
            self._mark(seen, loop, verdict, loop.hit_count)

    def _deny(self, call: Call, op: Op, done: Committed, verdict: Verdict, now: float) -> None:
        verdict.allowed = False
        verdict.delay_ms, verdict.warning, verdict.note, verdict.loop = 0, "", "", None
        result = done.results[done.denied_at]
        if type(op) is Repeat and type(result) is Repeated:
            _deny_loop(op, result, verdict)
        elif type(op) is Bucket and type(result) is float:
            _deny_bucket(op, result, verdict)
            data = {"policy": verdict.policy, "rule": verdict.rule, "reason": verdict.reason}
            self._publish(Event(LIMIT_EXCEEDED, now, data, call.project, call.request_id))
        else:
            _deny_refused(call, op, verdict)

    def _tell_shadow(self, call: Call, verdict: Verdict, now: float) -> None:
        for found in verdict.shadow:
            if found.action == "deny":
                data = {"policy": found.policy, "rule": found.rule, "reason": found.reason}
                self._publish(Event(SHADOW_WOULD_REJECT, now, data, call.project, call.request_id))


def _deny_loop(op: Repeat, result: Repeated, verdict: Verdict) -> None:
    detector: LoopDetector | Seen = op.owner
    loop = detector.found(op, result)
    verdict.reason = "loop_detected"
    verdict.status = detector.terms.status
    verdict.policy, verdict.rule = detector.terms.policy, detector.terms.rule
    verdict.loop = loop
    verdict.message = loop.message
    verdict.retry_after_s = loop.cooldown_s
    verdict.never = True  # an SDK that retries by itself only feeds the loop


def _deny_bucket(op: Bucket, left: float, verdict: Verdict) -> None:
    rule: Rule = op.owner
    verdict.reason = rule.limiter.reason
    verdict.status = rule.status
    verdict.policy, verdict.rule = rule.policy, rule.name
    verdict.retry_after_s = rule.limiter.retry_after_s(op, left)
    verdict.retry_jitter = True
    limit = rule.limiter.limit(rule.policy, op, left)
    # For whoever is denied, the time that matters is when his own request would pass.
    verdict.limit = limit if verdict.retry_after_s is None else replace(limit, reset_s=verdict.retry_after_s)
    if verdict.retry_after_s is None:
        verdict.never = True
        verdict.message = f"This request costs {op.cost:g}, more than the bucket holds ({op.spec.burst:g})."
    else:
        verdict.message = f"Rate limit exceeded: {op.spec.rate:g} a second, burst {op.spec.burst:g}."


def _deny_refused(call: Call, op: Op, verdict: Verdict) -> None:
    """What was known to be wrong before any limit was looked at: its owner knows the words."""
    verdict.reason = op.owner.refusal
    verdict.never = True
    op.owner.refused(call, verdict)


def _shadowed(op: Op) -> Shadowed:
    if type(op) is Noted:
        seen: Seen = op.owner
        return Shadowed(seen.terms.policy, seen.terms.rule, "loop_detected", seen.action)
    if type(op) is Repeat:
        detector: LoopDetector | Seen = op.owner
        terms = detector.terms
        action = "deny" if op.spec.denies else terms.action
        return Shadowed(terms.policy, terms.rule, "loop_detected", action)
    if type(op) is Refuse:
        policy, name = op.owner.refusal_at
        return Shadowed(policy, name, op.owner.refusal, "deny")
    rule: Rule = op.owner
    return Shadowed(rule.policy, rule.name, rule.limiter.reason, "deny")


def _loop_data(call: Call, detector: LoopDetector | Seen, loop: Loop, *, shadow: bool) -> dict[str, object]:
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


def killed(switch: KillSwitch, now: float) -> Verdict:
    """SPEC K-2: an operator's switch matches."""
    why = f": {switch.reason[:_REASON_SHOWN]}" if switch.reason else ""
    verdict = denial("kill_switch", 429, f"Stopped by an operator's kill switch{why}")
    verdict.rule = f"kill_switches[{switch.index}]"
    verdict.retry_after_s = switch.retry_after_s(now)
    verdict.never = True
    return verdict
