"""The part of a `similarity: steps` block that looks at who began a conversation: agents that hand the same task on and
on (kind `spawn`). What is remembered of it is `detect.spawn`'s matter."""

from __future__ import annotations

from collections.abc import Callable

from breakloop.detect.block import Block, Reads
from breakloop.detect.loop import LoopTerms
from breakloop.detect.seen import Finding, Ladder
from breakloop.detect.spawn import Begin, SpawnDetector, task_of
from breakloop.model.call import Call


class SpawnLoop(Block):
    """Looks at conversations that begin, and that another one has begun."""

    __slots__ = ("_begin", "_detector")

    def __init__(
        self,
        terms: LoopTerms,
        ladder: Ladder,
        reads: Reads,
        detector: SpawnDetector,
        *,
        begin: Callable[[Call, str], Begin],  # of a call and its task
    ) -> None:
        super().__init__(terms, ladder, reads, "spawn:")
        self._detector = detector
        self._begin = begin

    def owner(self, call: Call) -> str:
        """Return the caller of a conversation that begins; "" for one that is under way, or that nobody has begun."""
        step = call.step_cache or self._reads.step(call)
        if step is None or step.said or step.calls or step.results:
            return ""
        return self._reads.owner(call)

    def look(self, call: Call, window: bytes, now: float) -> Finding | None:
        """Judge a conversation that begins; None for one that is under way."""
        step = self.newest(call, now)
        if step is None or step.said or step.calls or not step.users:
            return None
        return self._detector.judge(window, self._begin(call, task_of(step.users)), now)
