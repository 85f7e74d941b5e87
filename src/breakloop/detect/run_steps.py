"""`max_steps_per_run` (SPEC G-1): how many LLM calls one run of an agent may make, whatever they say. Nothing resets
the count but ten idle minutes or another session; a run that is at its ceiling is held until an operator lets it go."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import DetectorSlot, section_tags
from breakloop.detect.steps.detector import RUN_IDLE_S
from breakloop.model.call import Answer, Call, Step
from breakloop.model.verdict import Verdict
from breakloop.store.ops import Deny, Op

REASON: Final = "run_limit_exceeded"
_SECTION: Final = Struct("<BId")
_VERSION: Final = 1


class RunStepsEvaluation(NamedTuple):
    """How many calls the run has made, this one included."""

    window: bytes
    steps: int


class RunStepsLimit:
    """The ceiling of one agent, or of all that a pattern names."""

    __slots__ = ("_owner", "_step", "config", "max_steps", "tags")

    denial_reason: Final = REASON

    def __init__(
        self,
        config: DetectorConfig,
        max_steps: int,
        *,
        step: Callable[[Call], Step | None],
        owner: Callable[[Call], str],
    ) -> None:
        self.config = config
        self.max_steps = max_steps
        self._step = step
        self._owner = owner
        self.tags = section_tags(config, "run:")

    def plan(self, _call: Call, _project: str, group: int, _now: float) -> DetectorSlot:
        """Return what stands in the place of a refusal until the window is read."""
        return DetectorSlot(self, group)

    def owner(self, call: Call) -> str:
        """Return the session, which is the run."""
        return self._owner(call)

    def evaluate(self, call: Call, window: bytes, now: float) -> RunStepsEvaluation | None:
        """Count the call; None for what is no LLM request."""
        if self._step(call) is None:
            return None
        steps, last = _read(window)
        steps = 1 if now - last >= RUN_IDLE_S and steps <= self.max_steps else steps + 1
        return RunStepsEvaluation(_SECTION.pack(_VERSION, min(steps, 0xFFFFFFFF), now), steps)

    def awaits_answer(self, _call: Call, _looked: RunStepsEvaluation) -> bool:
        """Whether it failed is of interest each time."""
        return True

    def answered(self, window: bytes, answer: Answer) -> bytes:
        """Return the count after an answer: one that failed made no step."""
        steps, last = _read(window)
        return _SECTION.pack(_VERSION, steps - 1, last) if answer.failed and steps else window

    def operation(self, _call: Call, looked: RunStepsEvaluation, _project: str, group: int) -> Op | None:
        """Refuse what goes beyond the ceiling."""
        return Deny(self, group) if looked.steps > self.max_steps else None

    @property
    def denied_by(self) -> tuple[str, str]:
        """Where a refusal comes from, for records: policy and rule."""
        return self.config.policy, self.config.rule

    def describe_denial(self, _call: Call, verdict: Verdict) -> None:
        """Say why."""
        verdict.policy, verdict.rule = self.denied_by
        verdict.status = self.config.status
        verdict.message = f"This run has reached its ceiling: {self.why}. A person has to release it."

    @property
    def why(self) -> str:
        """The ceiling in words."""
        return f"{self.max_steps} steps ({self.config.rule})"


def _read(window: bytes) -> tuple[int, float]:
    if len(window) != _SECTION.size or window[0] != _VERSION:
        return 0, 0.0
    _, steps, last = _SECTION.unpack(window)
    return steps, last
