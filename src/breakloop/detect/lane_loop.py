"""The part of a `similarity: steps` block that looks beyond one session: conversations that the client did not name
(SPEC C-7), judged by caller and agent. What is remembered of them is `detect.lanes`' matter."""

from __future__ import annotations

from collections.abc import Callable

from breakloop.detect.block import Block, Reads
from breakloop.detect.lanes import LaneDetector, LaneJudged
from breakloop.detect.loop import LoopTerms
from breakloop.detect.seen import Ladder
from breakloop.model.call import Call


class LaneLoop(Block):
    """Says of a call whether its session is one of a crowd, and finds prompts that wrap the one before."""

    __slots__ = ("_detector", "_lane", "_session")

    def __init__(
        self,
        terms: LoopTerms,
        ladder: Ladder,
        reads: Reads,
        detector: LaneDetector,
        *,
        session: Callable[[Call], str],
        lane: Callable[[Call], str],
    ) -> None:
        super().__init__(terms, ladder, reads, "lanes:")
        self._detector = detector
        self._session = session
        self._lane = lane

    def owner(self, call: Call) -> str:
        """Return caller and agent, where that can matter: ids of calls tell conversations apart by themselves."""
        step = call.step_cache or self._reads.step(call)
        return "" if step is None or step.call_ids else self._reads.owner(call)

    def look(self, call: Call, window: bytes, now: float) -> LaneJudged | None:
        """Judge the call; where tools are at work, only whether there is a crowd is of interest."""
        step = self.newest(call, now)
        if step is None:
            return None
        lane = "" if step.calls or step.results else self._lane(call)
        judged = self._detector.judge(window, self._session(call), lane, step, now)
        call.crowded = judged.crowded
        return judged
