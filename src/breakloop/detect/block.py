"""What blocks with a memory have in common: whose window they keep, whom they leave alone, and what follows from what
they find. What they look for is each one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from breakloop.detect.allow import Identity
from breakloop.detect.loop import LoopTerms
from breakloop.detect.seen import Finding, Ladder
from breakloop.detect.watch import Watch, tags
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.model.step import Step
from breakloop.state.ops import ENFORCED, Op


class Reads(NamedTuple):
    """How a block reads a call."""

    step: Callable[[Call], Step | None]
    owner: Callable[[Call], str]  # whose window; "" where the block has nothing to say
    who: Identity


class Block:
    """A `Watcher` without eyes: `look` is for those who inherit."""

    __slots__ = ("_ladder", "_reads", "_watch", "tags", "terms")

    def __init__(self, terms: LoopTerms, ladder: Ladder, reads: Reads, what: str = "") -> None:
        self.terms = terms
        self.tags = tags(terms, what)
        self._ladder = ladder
        self._reads = reads
        self._watch = Watch(self, ENFORCED)  # the same for every call

    def plan(self, _call: Call, _project: str, group: int, _now: float) -> Watch | None:
        """Return what stands in the place of a finding until the window is read."""
        return Watch(self, group) if group else self._watch

    def owner(self, call: Call) -> str:
        """Return whose window it is."""
        return self._reads.owner(call)

    def look(self, _call: Call, _window: bytes, _now: float) -> Finding | None:
        """Judge the call with what is remembered."""
        raise NotImplementedError

    def hears(self, _call: Call, _looked: Any) -> bool:
        """Tell whether the answer to a call can change what is remembered."""
        return False

    def heard(self, window: bytes, _answer: Answer) -> bytes:
        """Return the memory after an answer: the same, where `hears` does not say otherwise."""
        return window

    def operation(self, call: Call, looked: Finding, project: str, group: int) -> Op | None:
        """Return what is to be done about it."""
        return self.follow(call, looked, looked.level, project, group) if looked.level else None

    def follow(self, call: Call, looked: Finding, level: int, project: str, group: int, aside: str = "") -> Op | None:
        """Return what follows from a finding of this level."""
        return self._ladder.operation(looked, level, f"{project}:{self.owner(call)}", group, aside)

    def newest(self, call: Call, now: float) -> Step | None:
        """Return the call's newest step; None when it has none, or is none of this block's business."""
        step = self._reads.step(call)
        return None if step is None or self._is_allowed(call, now) else step

    def _is_allowed(self, call: Call, now: float) -> bool:
        allow = self.terms.allow
        return allow is not None and allow.covers(call, "", self._reads.who, now)
