"""`Seen`: a loop that a detector with a memory saw in one call, and what is to be done about it. Stands as the owner of
its operation, as `LoopDetector` does for the detectors that count."""

from __future__ import annotations

import math
from typing import Final, Protocol

from breakloop.detect.allow import Identity
from breakloop.detect.loop import DELAY_MAX_MS, DELAY_STEP_MS, LoopTerms
from breakloop.detect.watch import place, window_key
from breakloop.model.call import Call
from breakloop.model.verdict import Loop
from breakloop.state.ops import Noted, Op, Repeat, Repeated, RepeatSpec

NOTICE, BLOCK, STOP = 1, 2, 3
DENYING: Final = frozenset({"reject", "kill"})


class Finding(Protocol):
    """What a detector found."""

    @property
    def window(self) -> bytes:
        """The memory after the call; the same object where nothing changes."""
        ...

    @property
    def level(self) -> int:
        """0 nothing, 1 notice, 2 block, 3 stop."""
        ...

    @property
    def kind(self) -> str:
        """What kind of loop it is."""
        ...

    @property
    def evidence(self) -> str:
        """What was seen, in numbers and names of tools."""
        ...

    @property
    def identity(self) -> str:
        """Tells this loop from others: 16 hex digits."""
        ...

    @property
    def fresh(self) -> bool:
        """Whether it was not told before."""
        ...


class Seen:
    """One loop in one call."""

    __slots__ = ("action", "evidence", "finding", "kind", "owner", "terms", "who")

    def __init__(
        self, terms: LoopTerms, action: str, finding: Finding, who: Identity, owner: str = "", aside: str = ""
    ) -> None:
        self.terms = terms
        self.action = action
        self.finding = finding
        self.kind = finding.kind
        self.evidence = f"{finding.evidence}; {aside}" if aside else finding.evidence
        self.who = who
        self.owner = owner  # whose loop it is, project included

    @property
    def remembered(self) -> tuple[str, ...]:
        """Keys of what is remembered against whoever loops, beside its count."""
        return (window_key(self.owner),)

    @property
    def hits(self) -> int:
        """How far the loop has come, as a whole number; 1 where its detector does not count."""
        return max(1, int(getattr(self.finding, "hits", 1)))

    def found(self, _op: Op, result: Repeated) -> Loop:
        """Return what it means."""
        wait_s = math.ceil(result.wait_s)
        return Loop(
            kind=self.kind,
            fingerprint=self.finding.identity,
            hit_count=result.hits,
            window_s=0,
            cooldown_s=wait_s,
            action=self.action,
            fresh=result.fresh if wait_s else self.finding.fresh,
            message=(
                f"Blocked: {self.evidence}. Do something else, or finish with what you have. "
                f"The same again stays blocked for {wait_s} seconds; a different step passes at once."
            ),
            evidence=self.evidence,
        )

    def note(self, _loop: Loop) -> str:
        """Return the sentence for a model that is steered and not stopped."""
        return f"You repeat yourself: {self.evidence}. Change course, or finish with what you have."

    def delay_ms(self, count: int) -> int:
        """Return how long a throttled request waits."""
        return min(count * DELAY_STEP_MS, DELAY_MAX_MS)

    def sender(self, call: Call) -> tuple[str, str]:
        """Return caller and agent as events name them."""
        return self.who.caller(call), self.who.agent(call)


class Ladder:
    """What a block does at each level, and how long what it blocks stays blocked."""

    __slots__ = ("_actions", "_key", "_spec", "_terms", "_who")

    def __init__(self, terms: LoopTerms, actions: tuple[str, str, str], spec: RepeatSpec, who: Identity) -> None:
        self._terms = terms
        self._actions = actions  # of notice, block and stop
        self._spec = spec
        self._who = who
        self._key = f":{place(terms)}:"

    def operation(self, finding: Finding, level: int, owner: str, group: int, aside: str = "") -> Op | None:
        """Return what follows: a block that cools down, or a mere note. `aside` goes to its evidence.

        `owner` is whose loop it is, project included: nobody cools down for somebody else's.
        """
        if level < NOTICE:
            return None
        action = self._actions[min(level, STOP) - 1]
        seen = Seen(self._terms, action, finding, self._who, owner, aside)
        if action not in DENYING:
            return Noted(seen, group)
        shadow = "shadow:" if group else ""
        return Repeat(self._spec, f"{shadow}cnt:{owner}{self._key}{finding.identity}", seen, group)
