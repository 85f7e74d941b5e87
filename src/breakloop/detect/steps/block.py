"""One compiled `similarity: steps` block: looks at a call's newest step with what its session remembers. How steps are
judged is `detect.steps`' matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.detect.counting import DetectorConfig, announced
from breakloop.detect.stateful import BLOCK, NOTICE, CallReaders, DetectorSlot, SeverityActions, StatefulDetector
from breakloop.detect.steps import RequestContext, StepEvaluation, StepsDetector
from breakloop.detect.steps.window import listens
from breakloop.model.call import Answer, Call
from breakloop.store.ops import Op

CROWDED: Final = "only noted, because unnamed conversations of this caller overlap (send X-Agent-Session)"
MIXED: Final = "only noted, because two unnamed conversations go by one name (send X-Agent-Session)"
CUTS, ONLY_TELLS = 1, 2  # `Call.guards_stream`


class StepsBlock(StatefulDetector):
    """The block."""

    __slots__ = ("_detector", "_unnamed", "_voice", "guards_stream")

    def __init__(
        self,
        config: DetectorConfig,
        ladder: SeverityActions,
        reads: CallReaders,
        detector: StepsDetector,
        *,
        unnamed: Callable[[Call], bool],  # whether the client gave the session no name
        voice: Callable[[Call], str],  # model and system prompt
        guards_stream: bool = False,
    ) -> None:
        super().__init__(config, ladder, reads)
        self._unnamed = unnamed
        self._voice = voice
        self.guards_stream = guards_stream
        self._detector = detector

    def plan(self, call: Call, _project: str, group: int, now: float) -> DetectorSlot:
        """Return what stands in the place of a finding, and see to it that the answer is watched too."""
        if self.guards_stream and (self.config.allow is None or not self._is_allowed(call, now)):
            call.decision.guards_stream = call.decision.guards_stream or ONLY_TELLS if group else CUTS
        return DetectorSlot(self, group) if group else self._watch

    def evaluate(self, call: Call, window: bytes, now: float) -> StepEvaluation | None:
        """Judge the call's newest step."""
        step = call.parsed.step or self._reads.step(call)
        if step is None or (self.config.allow is not None and self._is_allowed(call, now)):
            return None
        unnamed = self._unnamed(call)
        view = RequestContext(call.tracked, unnamed, call.body if unnamed else b"", lambda: self._voice(call))
        return self._detector.judge(window, step, now, view)

    def _shows_ids(self, call: Call) -> bool:
        step = self._reads.step(call)
        return step is not None and bool(step.call_ids)

    def awaits_answer(self, call: Call, looked: StepEvaluation) -> bool:
        """Tell whether the answer matters: of a conversation by itself it comes back as the model's own words."""
        return not self._unnamed(call) or listens(looked.window)

    def answered(self, window: bytes, answer: Answer) -> bytes:
        """Return the window after an answer of the model."""
        return self._detector.answered(window, answer)

    def operation(self, call: Call, looked: StepEvaluation, project: str, group: int) -> Op | None:  # type: ignore[override]
        """Return what is to be done about it.

        Where two unnamed conversations were taken for one, a block is only noted. Ids of calls show that. Without them,
        in a crowd of unnamed ones, it may be so, and a block is only noted, too (DETECTION). But a loop that goes on
        until it would be stopped is no mistake, and must not burn money all night.
        """
        if not looked.level or looked.hits <= announced(call, self.config, self._reads.who):
            return None
        if looked.mixed and looked.level == BLOCK:
            return self.follow(call, looked, NOTICE, project, group, MIXED)
        if call.decision.crowded and looked.level == BLOCK and not self._shows_ids(call):
            return self.follow(call, looked, NOTICE, project, group, CROWDED)
        return super().operation(call, looked, project, group)
