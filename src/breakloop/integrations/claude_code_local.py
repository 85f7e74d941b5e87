"""Judges the steps that a hook tells, where no gateway does (`hook_gateway`): by the steps detector itself, with the
thresholds and cooldowns of the built-in protection, because loading a whole engine takes longer than a hook may. What
is remembered between two calls is `hook_session`'s."""

from __future__ import annotations

import math
from typing import Final, Protocol

from breakloop.detect.fingerprint import Fingerprinter
from breakloop.detect.steps.detector import StepsDetector
from breakloop.detect.steps.kinds import BLOCK, STOP, StepsSettings, ToolOptions
from breakloop.dialects.steps import bounded
from breakloop.integrations.claude_code import HookEvent, HookSession
from breakloop.model.call import Result, Step, ToolCall
from breakloop.model.verdict import LOOP, Decision
from breakloop.store.ops import blocked_at_once

COOLDOWN: Final = blocked_at_once()  # as the built-in block has it
_STATUS: Final = 429
# Claude Code's own tools that are made to be asked again and again.
_POLLED: Final = ("BashOutput", "TaskOutput", "TaskGet", "TaskList", "Monitor", "ScheduleWakeup")


class HookJudge(Protocol):
    """Who decides."""

    def step(self, session: HookSession, event: HookEvent, arguments: str, now: float) -> Decision:
        """Judge a call that was made."""
        ...

    def prompt(self, session: HookSession, event: HookEvent, now: float) -> Decision:
        """Judge what a person said."""
        ...


class LocalHookJudge:
    """The detector in this process; `secret` is the key of its fingerprints."""

    def __init__(self, secret: bytes, sensitivity: str = "normal") -> None:
        settings = StepsSettings.preset(sensitivity, tools=dict.fromkeys(_POLLED, ToolOptions(poll=True)))
        self._detector = StepsDetector(settings, Fingerprinter(secret).short)

    def step(self, session: HookSession, event: HookEvent, arguments: str, now: float) -> Decision:
        """Judge a call with what it returned."""
        calls = (ToolCall(event.tool, bounded(arguments)),)
        results = (Result(bounded(event.result), event.failed, event.call_id),)
        size = len(arguments) + len(event.result)
        return self._judged(session, Step("", calls, (event.call_id,), results, (), (), 2, size), now)

    def prompt(self, session: HookSession, event: HookEvent, now: float) -> Decision:
        """What a person says is new, or it is not."""
        step = Step("", (), (), (), (bounded(event.prompt),), (), 1, len(event.prompt))
        return self._judged(session, step, now)

    def _judged(self, session: HookSession, step: Step, now: float) -> Decision:
        session.steps += 1
        session.size += step.size
        grown = step._replace(messages=session.steps * 2, size=session.size)
        judged = self._detector.judge(session.window, grown, now)
        session.window = judged.window
        if not judged.level:
            return Decision()
        wait_s = math.ceil(session.cooldown(judged.identity, COOLDOWN, now)) if judged.level in {BLOCK, STOP} else 0
        hits = max(1, int(judged.hits))
        if not wait_s:
            return Decision(
                warning=LOOP,
                kind=judged.kind,
                hit_count=hits,
                fingerprint=judged.identity,
                evidence=judged.evidence,
            )
        return Decision(
            allowed=False,
            reason=LOOP,
            status=_STATUS,
            message=(
                f"Blocked: {judged.evidence}. Do something else, or finish with what you have. "
                f"The same again stays blocked for {wait_s} seconds; a different step passes at once."
            ),
            retry_after=wait_s,
            kind=judged.kind,
            hit_count=hits,
            cooldown_seconds=wait_s,
            fingerprint=judged.identity,
            evidence=judged.evidence,
        )
