"""The detector of one `similarity: steps` block: evaluates the newest step of a call against its session's window."""

from __future__ import annotations

from typing import Final

from breakloop.detect.counting import CallReader, DetectorConfig, announced
from breakloop.detect.stateful import BLOCK, NOTICE, DetectorSlot, Evaluation, StatefulDetector, session_owner
from breakloop.detect.steps.evaluator import RequestContext, StepEvaluator
from breakloop.detect.steps.window import awaits_answer
from breakloop.model.call import Answer, Call
from breakloop.store.ops import Op

OVERLAP: Final = "only noted, because unnamed conversations of this caller overlap (send X-Agent-Session)"
AMBIGUOUS: Final = "only noted, because two unnamed conversations go by one name (send X-Agent-Session)"
CUT_STREAM, REPORT_STREAM = 1, 2  # `CallDecision.guards_stream`


class StepsDetector(StatefulDetector):
    """Evaluates steps, and has streamed answers checked for repetition (`stream_guard`)."""

    __slots__ = ("_evaluator", "guards_stream")

    def __init__(
        self, config: DetectorConfig, read: CallReader, evaluator: StepEvaluator, *, guards_stream: bool = False
    ) -> None:
        super().__init__(config, read)
        self._evaluator = evaluator
        self.guards_stream = guards_stream

    def plan(self, call: Call, _project: str, group: int, now: float) -> DetectorSlot:
        """Return the slot for this call, and set `call.decision.guards_stream`."""
        if self.guards_stream and (self.config.allow is None or not self._is_allowed(call, now)):
            call.decision.guards_stream = call.decision.guards_stream or REPORT_STREAM if group else CUT_STREAM
        return DetectorSlot(self, group) if group else self._slot

    def owner(self, call: Call) -> str:
        return session_owner(self._read, call)

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        read = self._read
        step = call.parsed.step or read.step(call)
        if step is None or (self.config.allow is not None and self._is_allowed(call, now)):
            return None
        unnamed = read.derived(call)
        context = RequestContext(call.tracked, unnamed, call.body if unnamed else b"", lambda: read.lane(call))
        return self._evaluator.evaluate(window, step, now, context)

    def awaits_answer(self, call: Call, evaluation: Evaluation) -> bool:
        """An unnamed conversation repeats the answer in its next request, so few of its answers matter."""
        return not self._read.derived(call) or awaits_answer(evaluation.window)

    def answered(self, window: bytes, answer: Answer) -> bytes:
        return self._evaluator.answered(window, answer)

    def operation(self, call: Call, evaluation: Evaluation, project: str, group: int) -> Op | None:
        """Return the operation for an evaluation, if any.

        A block is downgraded to a notice if the counts may belong to two unnamed conversations: ids of calls have
        shown it, or there are no ids and unnamed conversations overlap. A stop is not, because a loop that goes on for
        so long is no mistake (C-7).
        """
        level = evaluation.level
        if not level or evaluation.hits <= announced(call, self.config, self._read):
            return None
        if evaluation.ambiguous and level == BLOCK:
            return self._act(call, evaluation, NOTICE, project, group, AMBIGUOUS)
        if call.decision.crowded and level == BLOCK and not self._has_ids(call):
            return self._act(call, evaluation, NOTICE, project, group, OVERLAP)
        return self._act(call, evaluation, level, project, group)

    def _has_ids(self, call: Call) -> bool:
        step = self._read.step(call)
        return step is not None and bool(step.call_ids)
