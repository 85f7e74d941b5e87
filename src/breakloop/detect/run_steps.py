"""`max_steps_per_run`: how many LLM calls one run of an agent may make. Only ten idle minutes or another session start
a new run. A run that has reached its limit is held until an operator releases it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from struct import Struct
from typing import Final

from breakloop.detect.counting import CallReader, DetectorConfig
from breakloop.detect.stateful import RUN_IDLE_S, Detection, Evaluation, StatefulDetector, session_owner
from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Verdict
from breakloop.store.ops import Deny, Observation, Op

REASON: Final = "run_limit_exceeded"
_SECTION: Final = Struct("<BId")
_VERSION: Final = 1


class Ceiling(Detection):
    """A run that has nearly reached its limit, as the owner of an `Observation`. It is no loop."""

    __slots__ = ("steps",)

    def __init__(self, config: DetectorConfig, read: CallReader, max_steps: int, percent: float, action: str) -> None:
        words = f"{percent:g} % of the steps of this run are used."
        super().__init__(config, action, Evaluation(b"", evidence=words), read, "", "")
        self.steps = math.ceil(max_steps * percent / 100)  # from this one on, which is one that the limit allows


class RunStepsLimit(StatefulDetector):
    """The limit of one agent, or of all agents that match a pattern."""

    __slots__ = ("_ceilings", "_first", "max_steps")

    denial_reason: Final = REASON

    def __init__(
        self, config: DetectorConfig, read: CallReader, max_steps: int, stages: Iterable[tuple[float, str, int]] = ()
    ) -> None:
        super().__init__(config, read, "run:")
        self.max_steps = max_steps
        made = [Ceiling(config, read, max_steps, percent, action) for percent, action, _ in sorted(stages)]
        self._ceilings = made[::-1]
        self._first = made[0].steps if made else math.inf

    def owner(self, call: Call) -> str:
        return session_owner(self._read, call)

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        if self._read.step(call) is None:
            return None
        steps, last = _unpack(window)
        steps = 1 if now - last >= RUN_IDLE_S and steps <= self.max_steps else steps + 1
        return Evaluation(_SECTION.pack(_VERSION, min(steps, 0xFFFFFFFF), now), hits=steps)

    def awaits_answer(self, _call: Call, _evaluation: Evaluation) -> bool:
        return True

    def answered(self, window: bytes, answer: Answer) -> bytes:
        steps, last = _unpack(window)
        return _SECTION.pack(_VERSION, steps - 1, last) if answer.failed and steps else window

    def operation(self, _call: Call, evaluation: Evaluation, _project: str, group: int) -> Op | None:
        """Deny a call beyond the limit; land one that is nearly there, or pause the run."""
        if evaluation.hits > self.max_steps:
            return Deny(self, group)
        if evaluation.hits >= self._first:
            reached = next(one for one in self._ceilings if evaluation.hits >= one.steps)
            return Observation(reached, group, reached.evidence)
        return None

    @property
    def denied_by(self) -> tuple[str, str]:
        """Policy and rule of a denial, for records."""
        return self.config.policy, self.config.rule

    def describe_denial(self, _call: Call, verdict: Verdict) -> None:
        verdict.policy, verdict.rule = self.denied_by
        verdict.status = self.config.status
        verdict.message = f"This run has reached its ceiling: {self.why}. A person has to release it."

    @property
    def why(self) -> str:
        return f"{self.max_steps} steps ({self.config.rule})"


def _unpack(window: bytes) -> tuple[int, float]:
    if len(window) != _SECTION.size or window[0] != _VERSION:
        return 0, 0.0
    _, steps, last = _SECTION.unpack(window)
    return steps, last
