"""Turns the results of a commit into a `Verdict` and events.

The first enforced denial decides. Warnings, throttling and the tightest limit are collected. Findings of shadow
policies are kept separate and never reach the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, assert_never

from breakloop.detect.advice import GENERAL, landing_note
from breakloop.detect.counting import DELAY_MAX_MS
from breakloop.dialects.clients import AUTO, final_status, waiting_helps
from breakloop.limits.tree_budget import TreeBudget
from breakloop.model.call import Call, Chat
from breakloop.model.decision import LOOP
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
from breakloop.policy.compiled import CompiledKillSwitch, NotNow
from breakloop.store.limit_ops import BudgetStage, ChargeBudget, CheckBreaker, TakeTokens
from breakloop.store.ops import (
    ENFORCED,
    BreakerResult,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FoundLoop,
    LimitOp,
    Observation,
    Op,
    Result,
    denies,
    expect,
)

_NOT_SHOWN: Final = 2.0  # greater than any share: this limit is not shown to the client
_PUBLISHED_MAX: Final = 20_000
_NEARLY: Final = "Take only the steps that you need, and finish soon."
OPERATOR_LANDED: Final = "operator_land"  # the warning of a run that an operator asks to finish
_RUN_LANDED: Final = "run_land"  # the warning of a run that has nearly reached its number of steps
_RUN_PAUSED: Final = "run_pause"  # the same, if its next call is held
_REASON_SHOWN = 256  # characters of a kill switch's reason: nginx receives it in a header field of limited size


Pause = Callable[[Call, str, float], None]  # why, and the time: holds the run of a call that still passes


class ResultFolder:
    """Turns results into a verdict and publishes events."""

    __slots__ = ("_pause", "_publish", "_published")

    def __init__(self, publish: Publish, pause: Pause) -> None:
        self._publish = publish
        self._pause = pause
        # The highest stage published for each budget account (an account covers one period). If refunds take a budget
        # below a stage, reaching that stage again is not published again.
        self._published: TwoGenerationCache[str, int] = TwoGenerationCache(_PUBLISHED_MAX)

    def verdict(self, call: Call, ops: Sequence[Op], done: CommitResult, now: float) -> Verdict:
        """Return the verdict for a call whose operations were committed."""
        verdict = Verdict()
        tightest = _NOT_SHOWN
        limiting: Op | None = None  # the operation with the tightest limit
        remaining: Result = None
        shadow: list[ShadowFinding] | None = None
        stages: list[_Stage] = []
        for op, result in zip(ops, done.results):  # noqa: B905 - as many; a keyword takes time
            if type(op) is TakeTokens and type(result) is float:
                share = result / op.spec.burst
            elif type(op) is ChargeBudget and type(result) is int:
                share = _share_left(op, result, stages, verdict)
            elif type(op) is CountFingerprint and not (type(result) is FingerprintCount and result[1]):
                continue  # not tripped, the most common case
            elif self._detected(call, op, result, verdict, now):
                share = -1.0
            else:
                continue
            if share < tightest:
                if op.group == ENFORCED and share >= 0.0:
                    tightest = share
                    limiting, remaining = op, result
                elif op.group != ENFORCED and share < 0.0:
                    shadow = shadow or []
                    shadow.append(_shadow_finding(op, result))
        if done.denied_at >= 0:
            self._deny(call, ops, done, verdict, now)
        else:
            _show_limit(limiting, remaining, verdict, now)
        if shadow is not None:
            verdict.shadow = tuple(shadow)
            self._publish_shadow(call, verdict, now)
        if stages and verdict.allowed:  # a denied call has charged nothing
            self._apply_stages(call, stages, verdict, now)
        return verdict

    def _apply_stages(self, call: Call, stages: list[_Stage], verdict: Verdict, now: float) -> None:
        """Warn, tell the model, delay, land or pause when a budget is nearly used up; publish each stage once per
        period.
        """
        uncharged = {found.policy for found in verdict.shadow if found.action == "deny"}
        for op, used, stage in stages:
            if op.group != ENFORCED and op.rule.policy in uncharged:
                continue
            published = self._published.get(op.key) or 0
            if stage.units > published:
                self._published.put(op.key, stage.units)
                for crossed in op.limiter.crossings(op, used, published):
                    data = {**crossed, "shadow": op.group != ENFORCED}
                    self._publish(Event(BUDGET_THRESHOLD, now, data, call.identity.project, call.request_id))
            if op.group == ENFORCED:
                verdict.delay_ms = min(max(verdict.delay_ms, stage.delay_ms), DELAY_MAX_MS)
                if stage.action == "land" and not verdict.landed:
                    land(verdict, stage.warning, stage.used)
                verdict.warning = verdict.warning or stage.warning
                if stage.action == "steer" and not verdict.note:
                    verdict.note = f"{stage.used} {_NEARLY}"
                elif stage.action == "pause" and not call.decision.granted:
                    self._pause(call, f"{stage.used} ({op.rule.policy}/{op.rule.name})", now)

    def _detected(self, call: Call, op: Op, result: Result, verdict: Verdict, now: float) -> bool:
        """Fold a result that is neither of a charge nor a count below its limit. Returns whether it found anything."""
        match op:
            case CountFingerprint():
                self._fold_tripped(call, op, expect(FingerprintCount, result), verdict, now)
                return True
            case CheckBreaker():
                return isinstance(result, BreakerResult) and self._fold_breaker(call, op, result, now)
            case Observation():
                self._fold_observation(call, op, verdict, now)
                return True
            case Deny():
                return True
            case LimitOp():
                return op.denies(result)
            case _:
                assert_never(op)

    def _fold_breaker(self, call: Call, op: CheckBreaker, result: BreakerResult, now: float) -> bool:
        """Publish that a breaker opened or closed. Returns whether it is open."""
        if result.changed:
            name = BREAKER_OPENED if result.changed == "opened" else BREAKER_CLOSED
            data = {**op.limiter.event_data(op, result), "shadow": op.group != ENFORCED}
            self._publish(Event(name, now, data, call.identity.project, call.request_id))
        return result.open

    def _fold_tripped(
        self, call: Call, op: CountFingerprint, result: FingerprintCount, verdict: Verdict, now: float
    ) -> None:
        """Publish a loop, and warn, steer, throttle or land. Denials are handled in `_deny`."""
        marks = op.group == ENFORCED and not denies(op, result)
        if not (result.fresh or marks):
            return
        loop = op.owner.finding(op, result)
        if result.fresh:
            data = _loop_data(call, op.owner, loop, shadow=op.group != ENFORCED)
            self._publish(Event(LOOP_DETECTED, now, data, call.identity.project, call.request_id))
        if marks:
            self._mark(op.owner, loop, verdict, result.hits)

    def _mark(self, source: FoundLoop, loop: LoopFinding, verdict: Verdict, hits: int) -> None:
        """Warn, and steer, throttle or land if that is the action."""
        if verdict.loop is None or loop.hit_count > verdict.loop.hit_count:
            verdict.loop = loop
        if not verdict.landed or loop.action == "land":  # the warning of a landing says why it is one
            verdict.warning = LOOP
        if loop.action == "throttle":
            verdict.delay_ms = min(max(verdict.delay_ms, source.delay_ms(hits)), DELAY_MAX_MS)
        elif loop.action == "land":
            verdict.landed, verdict.note = True, source.note(loop)
        elif loop.action == "steer" and not verdict.landed:
            verdict.note = source.note(loop)

    def _fold_observation(self, call: Call, op: Observation, verdict: Verdict, now: float) -> None:
        """Publish a loop that is not blocked, and warn, steer or throttle."""
        if op.ceiling and op.owner.action == "pause":
            if op.group == ENFORCED and not call.decision.granted:
                self._pause(call, op.ceiling, now)
                verdict.warning = verdict.warning or _RUN_PAUSED
            return
        if op.ceiling:
            if op.group == ENFORCED and not verdict.landed:
                land(verdict, _RUN_LANDED, op.ceiling)
            return
        loop = op.owner.finding(op, FingerprintCount(op.owner.hits))
        if loop.fresh:
            data = _loop_data(call, op.owner, loop, shadow=op.group != ENFORCED)
            self._publish(Event(LOOP_DETECTED, now, data, call.identity.project, call.request_id))
        if op.group == ENFORCED:
            self._mark(op.owner, loop, verdict, loop.hit_count)

    def _deny(self, call: Call, ops: Sequence[Op], done: CommitResult, verdict: Verdict, now: float) -> None:
        results, op, result = done.results, ops[done.denied_at], done.results[done.denied_at]
        verdict.allowed = False
        verdict.delay_ms, verdict.warning, verdict.note, verdict.loop, verdict.landed = 0, "", "", None, False
        verdict.tree = None  # nothing was charged
        match op:
            case CountFingerprint():
                _deny_loop(call, op, expect(FingerprintCount, result), verdict, repeated=_is_retry(ops, results))
                return
            case Deny():
                verdict.reason = op.owner.denial_reason
                verdict.never = True
                op.owner.describe_denial(call, verdict)
                return
            case Observation():
                raise TypeError("an observation denies nothing")
            case LimitOp():
                op.describe_denial(result, now, verdict)
            case _:
                assert_never(op)
        verdict.status, verdict.policy, verdict.rule = op.rule.status, op.rule.policy, op.rule.name
        data = {"policy": verdict.policy, "rule": verdict.rule, "reason": verdict.reason}
        self._publish(Event(LIMIT_EXCEEDED, now, data, call.identity.project, call.request_id))

    def _publish_shadow(self, call: Call, verdict: Verdict, now: float) -> None:
        for found in verdict.shadow:
            if found.action == "deny":
                data = {"policy": found.policy, "rule": found.rule, "reason": found.reason}
                self._publish(Event(SHADOW_WOULD_REJECT, now, data, call.identity.project, call.request_id))


def only_limited(ops: Sequence[Op], done: CommitResult, now: float) -> Verdict:
    """Return the verdict for a call that passes, with nothing to tell but the tightest limit."""
    verdict = Verdict()
    _show_limit(ops[done.tightest], done.results[done.tightest], verdict, now)
    return verdict


_Stage = tuple[ChargeBudget, int, BudgetStage]  # the charge, the amount used after it, and the stage reached


def land(verdict: Verdict, warning: str, why: str) -> None:
    """Let the request pass with tools switched off. The warning says what for, whatever else there is to warn of."""
    verdict.landed, verdict.warning, verdict.note = True, warning, landing_note(why, GENERAL)


def _share_left(op: ChargeBudget, used: int, stages: list[_Stage], verdict: Verdict) -> float:
    """Return the share of a budget that is left after the charge: negative if the charge is denied, `_NOT_SHOWN` if it
    is not a limit that renews. A stage that was reached is appended to `stages`.
    """
    budget, limiter = op.spec.budget, op.limiter
    if used > budget:
        return -1.0
    stage = limiter.stage_reached(op, used)
    if stage is not None:
        stages.append((op, used, stage))
    if limiter.renews:
        return (budget - used) / budget
    if op.group == ENFORCED and type(limiter) is TreeBudget:
        limiter.show(op, used, verdict)
    return _NOT_SHOWN


def _show_limit(op: Op | None, result: Result, verdict: Verdict, now: float) -> None:
    """Put the tightest limit into the verdict."""
    if type(op) is TakeTokens and type(result) is float:  # noqa: SIM114 - mypy needs one branch for each kind
        limit = op.limiter.describe_limit(op.rule.policy, op, result, now)
    elif type(op) is ChargeBudget and type(result) is int:  # a charge comes with the result of its kind
        limit = op.limiter.describe_limit(op.rule.policy, op, result, now)
    else:
        return
    verdict.limit, verdict.policy, verdict.rule = limit, op.rule.policy, op.rule.name


def _is_retry(ops: Sequence[Op], results: Sequence[Result]) -> bool:
    """Return whether this step of an agent was denied before, and comes again while it is blocked. A person may repeat
    a message, which detectors without a window count; the result of a tool is repeated by a program.
    """
    for op, result in zip(ops, results, strict=True):
        if type(op) is not CountFingerprint or type(result) is not FingerprintCount or op.group != ENFORCED:
            continue
        if result.tripped and not result.fresh and op.owner.config.kind == "steps":
            return True
    return False


def _deny_loop(call: Call, op: CountFingerprint, result: FingerprintCount, verdict: Verdict, *, repeated: bool) -> None:
    loop, config = op.owner.finding(op, result), op.owner.config
    verdict.reason = LOOP
    verdict.status = final_status(call, repeated=repeated) if config.status == AUTO else config.status
    verdict.policy, verdict.rule = config.policy, config.rule
    verdict.loop = loop
    verdict.message = loop.message
    # A loop does not end by waiting: the time is for clients that need one with this status.
    verdict.retry_after_s = loop.cooldown_s if waiting_helps(verdict.status) else None
    verdict.never = True  # a client that retries automatically would continue the loop


def _shadow_finding(op: Op, result: Result) -> ShadowFinding:
    match op:
        case Observation():
            config = op.owner.config
            return ShadowFinding(config.policy, config.rule, LOOP, op.owner.action)
        case CountFingerprint():
            config = op.owner.config
            action = "deny" if denies(op, result) else op.owner.finding(op, expect(FingerprintCount, result)).action
            return ShadowFinding(config.policy, config.rule, LOOP, action)
        case Deny():
            policy, name = op.owner.denied_by
            return ShadowFinding(policy, name, op.owner.denial_reason, "deny")
        case LimitOp():
            return ShadowFinding(op.rule.policy, op.rule.name, op.reason(), "deny")
        case _:
            assert_never(op)


def _loop_data(call: Call, source: FoundLoop, loop: LoopFinding, *, shadow: bool) -> dict[str, object]:
    chat = call.parsed.chat
    caller, agent = source.sender(call)
    tree = call.identity.tree
    return {
        **({"tree": tree.root} if tree is not None and tree.root else {}),
        "caller": caller,
        "agent": agent,
        "model": chat.model if isinstance(chat, Chat) else "",
        "fingerprint": loop.fingerprint,
        "hit_count": loop.hit_count,
        "cooldown_seconds": loop.cooldown_s,
        "kind": loop.kind,
        "evidence": loop.evidence,
        "action": loop.action,
        "policy": source.config.policy,
        "shadow": shadow,
    }


def denial(reason: str, status: int, message: str) -> Verdict:
    """Return a denial. The reason has to be one of `REASONS`."""
    if reason not in REASONS:
        raise KeyError(reason)
    return Verdict(allowed=False, reason=reason, status=status, message=message)


def no_bundle() -> Verdict:
    """Return the denial for a bundle source that has not delivered a valid bundle yet."""
    verdict = denial("no_bundle_loaded", 503, "No valid policy bundle has been loaded yet.")
    verdict.retry_after_s = 1
    return verdict


def killed(switch: CompiledKillSwitch, now: float) -> Verdict:
    """Return the denial for a call that matches a kill switch."""
    why = f": {switch.reason[:_REASON_SHOWN]}" if switch.reason else ""
    verdict = denial("kill_switch", 429, f"Stopped by an operator's kill switch{why}")
    verdict.rule = switch.name
    verdict.retry_after_s = switch.retry_after_s(now)
    verdict.never = True
    return verdict


def too_complex() -> Verdict:
    """Return the denial for a body that is not decoded because it would take too long (`on_large_body`)."""
    message = (
        "The body holds more JSON values than are inspected, or a longer text, and the policy rejects what cannot be "
        "inspected."
    )
    verdict = denial("body_too_complex", 413, message)
    verdict.never = True
    return verdict


def absent(absence: NotNow) -> Verdict:
    """Return the denial for an agent that is switched off or outside its hours."""
    verdict = denial(absence.reason, 429, absence.message)
    verdict.policy, verdict.rule = "agents", absence.reason
    verdict.retry_after_s = absence.wait_s
    verdict.never = absence.wait_s is None
    return verdict
