"""One compiled `similarity: steps` block: looks at a call's newest step, and says what follows from what it found.
How steps are judged is `detect.steps`' matter, keeping the window `windows`'."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from breakloop.detect.allow import Identity
from breakloop.detect.loop import DELAY_MAX_MS, DELAY_STEP_MS, LoopTerms
from breakloop.detect.sections import TAG_BYTES
from breakloop.detect.steps import Judged, StepsDetector
from breakloop.model.call import Call
from breakloop.model.step import Step
from breakloop.model.verdict import Loop
from breakloop.state.keys import part
from breakloop.state.ops import Noted, Op, Repeat, Repeated, RepeatSpec

NOTICE, BLOCK, STOP = 1, 2, 3
DENYING: Final = frozenset({"reject", "kill"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A loop that was seen in one call. Stands as the owner of its operation, as `LoopDetector` does."""

    terms: LoopTerms
    action: str
    judged: Judged
    who: Identity

    def found(self, _op: Op, result: Repeated) -> Loop:
        """Return what it means."""
        judged = self.judged
        wait_s = math.ceil(result.wait_s)
        return Loop(
            kind=judged.kind,
            fingerprint=judged.identity,
            hit_count=result.hits,
            window_s=0,
            cooldown_s=wait_s,
            action=self.action,
            fresh=result.fresh if wait_s else judged.fresh,
            message=(
                f"Blocked: {judged.evidence}. Do something else, or finish with what you have. "
                f"The same again stays blocked for {wait_s} seconds; a different step passes at once."
            ),
            evidence=judged.evidence,
        )

    def note(self, _loop: Loop) -> str:
        """Return the sentence for a model that is steered and not stopped."""
        return f"You repeat yourself: {self.judged.evidence}. Change course, or finish with what you have."

    def delay_ms(self, count: int) -> int:
        """Return how long a throttled request waits."""
        return min(count * DELAY_STEP_MS, DELAY_MAX_MS)

    def sender(self, call: Call) -> tuple[str, str]:
        """Return caller and agent as events name them."""
        return self.who.caller(call), self.who.agent(call)


def _tag(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "replace"), digest_size=TAG_BYTES).digest()


class Watch:
    """Stands among the operations where a finding may follow; no store ever sees it."""

    __slots__ = ("detector", "group")

    def __init__(self, detector: StepLoop, group: int) -> None:
        self.detector = detector
        self.group = group


class StepLoop:
    """The block."""

    __slots__ = ("_actions", "_detector", "_key", "_spec", "_step", "_who", "tags", "terms")

    def __init__(
        self,
        terms: LoopTerms,
        actions: tuple[str, str, str],
        spec: RepeatSpec,
        detector: StepsDetector,
        step: Callable[[Call], Step | None],
        who: Identity,
    ) -> None:
        self.terms = terms
        self._actions = actions  # of notice, block and stop
        self._spec = spec
        self._detector = detector
        self._step = step
        self._who = who
        name = f"{terms.place}{part(terms.policy)}:{terms.index}"
        # In a session's window; what a shadow policy remembers stands apart.
        self.tags = (_tag(name), _tag(f"shadow:{name}"))
        self._key = ("cnt:", f":{name}:")

    def plan(self, _call: Call, _project: str, group: int, _now: float) -> Watch:
        """Return what stands in the place of a finding until the session's window is read."""
        return Watch(self, group)

    def look(self, call: Call, window: bytes, now: float) -> Judged | None:
        """Judge the call's newest step; None when it has none, or is none of this detector's business."""
        step = self._step(call)
        if step is None:
            return None
        allow = self.terms.allow
        if allow is not None and allow.covers(call, "", self._who, now):
            return None
        return self._detector.judge(window, step, now)

    def heard(self, window: bytes, said: str) -> bytes:
        """Return the window after an answer of the model."""
        return self._detector.answered(window, said)

    def operation(self, judged: Judged, project: str, group: int) -> Op | None:
        """Return what is to be done about it: a block that cools down, or something that is only noted."""
        if judged.level < NOTICE:
            return None
        action = self._actions[min(judged.level, STOP) - 1]
        seen = Seen(self.terms, action, judged, self._who)
        if action not in DENYING:
            return Noted(seen, group)
        family, middle = self._key
        shadow = "shadow:" if group else ""
        return Repeat(self._spec, f"{shadow}{family}{project}{middle}{judged.identity}", seen, group)
