"""One compiled `similarity: simhash` block (SPEC LD-3): scores a call against the last ones of its caller and agent.
How that is counted is `detect.score`'s matter."""

from __future__ import annotations

from typing import Final, NamedTuple

from breakloop.detect.block import Block, Reads
from breakloop.detect.loop import LoopTerms
from breakloop.detect.score import ScoreDetector, new_prompt
from breakloop.detect.seen import BLOCK, Ladder
from breakloop.model.answer import Answer
from breakloop.model.call import Call

KIND: Final = "simhash"


class Scored(NamedTuple):
    """What a score came to."""

    window: bytes
    level: int
    kind: str
    evidence: str
    identity: str
    fresh: bool = True


class ScoreLoop(Block):
    """The block."""

    __slots__ = ("_detector",)

    def __init__(self, terms: LoopTerms, ladder: Ladder, reads: Reads, detector: ScoreDetector) -> None:
        super().__init__(terms, ladder, reads, "score:")
        self._detector = detector

    def look(self, call: Call, window: bytes, now: float) -> Scored | None:
        """Score the call."""
        step = self.newest(call, now)
        if step is None:
            return None
        scored = self._detector.judge(window, new_prompt(step), step.calls, tracked=call.tracked)
        return Scored(scored.window, BLOCK if scored.tripped else 0, KIND, scored.evidence, scored.identity)

    def hears(self, _call: Call, _looked: Scored) -> bool:
        """Every answer counts."""
        return True

    def heard(self, window: bytes, answer: Answer) -> bytes:
        """Return the window after an answer: what it said counts from now on."""
        return self._detector.answered(window, answer)
