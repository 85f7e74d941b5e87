"""Decides about Claude Code's events in the hook process: the steps detector alone, with the thresholds and cooldowns
of the built-in protection. Loading the whole engine would take longer than an agent may wait for a hook.

Internal: used by `breakloop hook`. Apart from `claude_code`, because a gateway needs nothing that is loaded here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from breakloop.detect.advice import TREE, advice_for
from breakloop.detect.fingerprint import Fingerprinter
from breakloop.detect.stateful import BLOCK, RUN_IDLE_S, STOP, Evaluation
from breakloop.detect.steps.detector import StepEvaluator
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import StepsSettings
from breakloop.dialects.steps import bounded
from breakloop.integrations.claude_code import COMPACT, PROMPT, HookEvent, HookSession
from breakloop.model.call import Result, Step, ToolCall, Tree
from breakloop.model.decision import LOOP, Decision
from breakloop.store.ops import blocked_at_once

if TYPE_CHECKING:
    from breakloop.detect.trees import TreeEvaluator

COOLDOWN: Final = blocked_at_once()  # as in the built-in protection
_STATUS: Final = 429
_OTHER: Final = "a different step passes at once."
# Tools of Claude Code that poll.
_POLLED: Final = ("BashOutput", "TaskOutput", "TaskGet", "TaskList", "Monitor", "ScheduleWakeup")


class LocalHookBackend:
    """The steps detector in this process. `secret` is the key of its fingerprints."""

    def __init__(self, secret: bytes, sensitivity: str = "normal") -> None:
        settings = StepsSettings.preset(sensitivity, tools=dict.fromkeys(_POLLED, ToolOptions(poll=True)))
        self._evaluator = StepEvaluator(settings, Fingerprinter(secret).short)
        self._secret = secret

    @cached_property
    def _trees(self) -> TreeEvaluator:
        from breakloop.detect.trees import TreeEvaluator  # noqa: PLC0415 - only sub-agents need it

        return TreeEvaluator(Fingerprinter(self._secret).short)

    def decide(self, session: HookSession, event: HookEvent, now: float) -> Decision:
        step = _step(event)
        if event.kind == COMPACT:
            session.steps = session.size = 0
        session.steps += 1
        session.size += step.size
        grown = step._replace(messages=session.steps * 2, size=session.size)
        found = self._evaluator.evaluate(session.window, grown, now)
        session.window = found.window
        if not found.level:
            return Decision()
        wait_s = math.ceil(session.cooldown(found.identity, COOLDOWN, now)) if found.level in {BLOCK, STOP} else 0
        return _decision(found, wait_s, "Blocked", f"The same again stays blocked for {wait_s} seconds; {_OTHER}")

    def started(self, tree: HookSession, event: HookEvent, now: float) -> Decision:
        from breakloop.detect.trees import RunStart  # noqa: PLC0415

        start = RunStart(event.owner, event.session, event.agent_type, "", "", Tree(event.session, event.session, 2))
        found = self._trees.evaluate_start(tree.window, start._replace(name=event.agent_type), now)
        tree.window = found.window
        # One more could not be prevented when it starts, so it is looked at now.
        after = self._trees.evaluate_start(tree.window, start._replace(session=f"{event.owner}:next"), now)
        full = after if after.level == BLOCK else found
        return _decision(full, int(RUN_IDLE_S) if full.level == BLOCK else 0, "Not started")

    def stopped(self, tree: HookSession, event: HookEvent, now: float) -> None:  # noqa: ARG002
        tree.window = self._trees.ended(tree.window, event.owner)


def _decision(found: Evaluation, wait_s: int, what: str, remark: str = "") -> Decision:
    """Return what was found as a decision: a denial if there is a time to wait."""
    if not found.level:
        return Decision()
    warned = Decision(
        warning=LOOP,
        kind=found.kind,
        hit_count=max(1, int(found.hits)),
        fingerprint=found.identity,
        evidence=found.evidence,
        note="" if found.kind != TREE else f"{found.evidence}. {advice_for(TREE, {}).instead}",
    )
    if not wait_s:
        return warned
    return replace(
        warned,
        allowed=False,
        reason=LOOP,
        status=_STATUS,
        warning="",
        note="",
        message=f"{what}: {found.evidence}. {advice_for(found.kind, {}).instead} {remark}".rstrip(),
        retry_after=wait_s,
        cooldown_seconds=wait_s,
    )


def _step(event: HookEvent) -> Step:
    if event.kind in (PROMPT, COMPACT):
        return Step("", (), (), (), (bounded(event.prompt),), (), 1, len(event.prompt))
    arguments = event.arguments_text
    calls = (ToolCall(event.tool, bounded(arguments)),)
    results = (Result(bounded(event.result), event.failed, event.call_id),)
    return Step("", calls, (event.call_id,), results, (), (), 2, len(arguments) + len(event.result))
