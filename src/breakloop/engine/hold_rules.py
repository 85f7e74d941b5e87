"""Decides which denials lead to a hold: an agent is held when it is killed for looping, a run when it reaches one of
its limits. `quarantine` applies and releases the holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, assert_never

from breakloop.detect.run_steps import RunStepsLimit
from breakloop.engine.decision_state import state_of
from breakloop.engine.quarantine import AGENT, RUN, Hold, Quarantine
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.rules import RunRule
from breakloop.store.keys import escape, window_key
from breakloop.store.limit_ops import ChargeBudget
from breakloop.store.ops import (
    ENFORCED,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    LimitOp,
    Observation,
    Op,
)

_RELEASE: Final = " A person has to release it."


class HoldRules:
    """Evaluates denials."""

    __slots__ = ("_quarantine", "_who")

    def __init__(self, quarantine: Quarantine, descriptors: Descriptors) -> None:
        self._quarantine = quarantine
        self._who = descriptors

    def denied(self, call: Call, ops: Sequence[Op], done: CommitResult, verdict: Verdict, now: float) -> None:
        """Hold the sender of a denied call if the denial requires it."""
        op = ops[done.denied_at]
        match op:
            case Deny():
                if isinstance(op.owner, RunStepsLimit):
                    self._hold_run(call, op.owner.owner(call), op.owner.why, (), now)
            case ChargeBudget():
                reached = op.rule.reached(ops, done) if isinstance(op.rule, RunRule) else None
                if reached is not None and isinstance(op.rule, RunRule):
                    self._hold_run(call, op.rule.owner(call), *reached, now)
                    verdict.message += _RELEASE
            case CountFingerprint():
                if verdict.loop is not None and verdict.loop.action == "kill":
                    self._hold_agent(call, op, verdict, now)
            case LimitOp() | Observation():
                pass
            case _:
                assert_never(op)

    def blocked(self, call: Call, ops: Sequence[Op], done: CommitResult, windows: Sequence[str]) -> None:
        """Record the keys in which a call that was denied for a loop was counted. Releasing the sender clears them all,
        so that another detector that also counted the loop does not deny the next request. `windows` are the windows
        that the call was evaluated with.
        """
        keys = dict.fromkeys(windows, 0.0)
        for op, result in zip(ops, done.results, strict=True):
            if isinstance(op, CountFingerprint) and op.group == ENFORCED:
                keys[op.key] = (
                    done.at + result.wait_s if isinstance(result, FingerprintCount) and result.tripped else 0.0
                )
        self._quarantine.blocked((call.identity.project, self._who.caller(call), self._who.agent(call)), keys)

    def _hold_run(self, call: Call, owner: str, why: str, accounts: tuple[str, ...], now: float) -> None:
        """Hold a run. Releasing it clears its window, so that a new run begins whichever limit was reached."""
        clears = (window_key(f"{call.identity.shard or escape(call.identity.project)}:{owner}"), *accounts)
        caller, agent, run = self._who.caller(call), self._who.agent(call), self._who.window(call)
        self._quarantine.hold(Hold(RUN, call.identity.project, caller, agent, now, math.inf, why, run, clears))

    def _hold_agent(self, call: Call, op: CountFingerprint, verdict: Verdict, now: float) -> None:
        loop, seconds = verdict.loop, op.owner.config.quarantine_s
        why = f"{loop.kind} loop ({loop.evidence})" if loop is not None else ""
        until = now + seconds if seconds else math.inf
        clears = (op.key, *op.owner.window_keys, *[key for key, _ in state_of(call).windows or ()])
        caller, agent = self._who.caller(call), self._who.agent(call)
        self._quarantine.hold(Hold(AGENT, call.identity.project, caller, agent, now, until, why, clears=clears))
