"""How much one stream has said, thought and called so far, and whether that is more than rules let it (SPEC L-3). A
token is four characters, as everywhere. The stream guard may listen to the same stream; it is told on from here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from breakloop.gateway.repeats import OPEN_MAX, Repeats
from breakloop.model.completion_cap import CompletionCap
from breakloop.model.prompt import CHARS_A_TOKEN, chars_of

TellCap = Callable[[CompletionCap, str], None]  # whose cap, and what became of it


class Capped:
    """One cap of one stream."""

    __slots__ = ("_cap", "_tell", "chars", "told")

    def __init__(self, cap: CompletionCap, answers: int, tell: TellCap, told: str) -> None:
        self._cap = cap
        self._tell: TellCap | None = tell
        self.chars = cap.tokens * max(1, answers) * CHARS_A_TOKEN  # more is too much
        self.told = told  # as what it is told, and nothing else is done; empty: the answer is cut

    @property
    def is_told(self) -> bool:
        """Whether it has been told: once at the most."""
        return self._tell is None

    def say(self, what: str) -> None:
        """Tell what became of it."""
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(self._cap, what)


class Spoken:
    """Hears everything in one stream."""

    __slots__ = ("_due", "_open", "_reached", "_repeats", "_waiting", "chars", "thought_chars")

    def __init__(self, caps: Iterable[Capped], repeats: Repeats | None = None) -> None:
        self._waiting = sorted(caps, key=lambda one: one.chars, reverse=True)  # the next one is the last
        self._due: float = self._waiting[-1].chars if self._waiting else math.inf
        self._reached: list[Capped] = []
        self._repeats = repeats
        self._open: set[int] = set()
        self.chars = 0
        self.thought_chars = 0  # of them: thought aloud

    @property
    def found(self) -> bool:
        """Whether there is something to be done about it."""
        return bool(self._reached) or (self._repeats is not None and self._repeats.found)

    @property
    def open(self) -> list[int]:
        """The answers that have not ended."""
        return sorted(self._open)

    def matters(self) -> Sequence[Capped | Repeats]:
        """Return what there is something to be done about."""
        return self._reached if self._repeats is None else [*self._reached, *self._repeats.matters()]

    def said(self, choice: int, part: int, piece: str) -> None:
        """Count what is said."""
        self._count(choice, piece)
        if self._repeats is not None:
            self._repeats.said(choice, part, piece)

    def thought(self, choice: int, part: int, piece: str) -> None:
        """Count what is thought: it is paid for like what is said."""
        before = self.chars
        self._count(choice, piece)
        self.thought_chars += self.chars - before
        if self._repeats is not None:
            self._repeats.thought(choice, part, piece)

    def argued(self, choice: int, piece: str) -> None:
        """Count the arguments of a call."""
        self._count(choice, piece)

    def ended(self, choice: int) -> None:
        """Leave an answer that came to its end."""
        self._open.discard(choice)
        if self._repeats is not None:
            self._repeats.ended(choice)

    def _count(self, choice: int, piece: str) -> None:
        self.chars += len(piece) if piece.isascii() else chars_of(piece)
        if choice not in self._open and len(self._open) < OPEN_MAX:
            self._open.add(choice)
        if self.chars > self._due:
            self._reach()

    def _reach(self) -> None:
        waiting = self._waiting
        while waiting and self.chars > waiting[-1].chars:
            self._reached.append(waiting.pop())
        self._due = waiting[-1].chars if waiting else math.inf
