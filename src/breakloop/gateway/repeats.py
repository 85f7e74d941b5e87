"""What the stream guard knows of the texts in one stream (SPEC LD-8): which answers are open, and whether all of them
repeat themselves. What a repetition is, is `detect.stream`'s business, what is done about it `cutting`'s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from breakloop.detect.stream import StreamProbe

ANSWERS_MAX: Final = 16  # a stream with more of them at once is not cut
OPEN_MAX: Final = 1000  # and with so many, nobody asked for them

Tell = Callable[[str, int, int], None]  # what became of it, how many characters were repeated, and how often

_Text = tuple[int, StreamProbe]  # which part of its answer it is, and what looks at it


class Repeats:
    """Hears what is said and thought in one stream, and knows whether all that goes on in it repeats itself."""

    __slots__ = ("_chars", "_open", "_tell", "_texts", "_thoughts", "found", "probe", "told")

    def __init__(self, tell: Tell | None = None, told: str = "") -> None:
        self._tell = tell
        self.told = told  # as what a repetition is told, and nothing else is done; empty: the answer is cut
        self._open: dict[int, bool] = {}  # the answers that have not ended, and whether they repeat themselves
        self._texts: dict[int, _Text] = {}  # by answer
        self._thoughts: dict[int, _Text] = {}
        self._chars = 0  # of texts that are over
        self.found = False
        self.probe: StreamProbe | None = None  # the one that found something

    @property
    def open(self) -> list[int]:
        """The answers that have not ended."""
        return sorted(self._open)

    @property
    def chars(self) -> int:
        """About how much was said and thought."""
        return self._chars + sum([probe.chars for _, probe in (*self._texts.values(), *self._thoughts.values())])

    @property
    def is_told(self) -> bool:
        """Whether it has been told: once at the most."""
        return self._tell is None

    def matters(self) -> Sequence[Repeats]:
        """Return itself while there is something to be done about it."""
        return (self,) if self.found else ()

    def say(self, what: str) -> None:
        """Tell what became of it."""
        tell, self._tell = self._tell, None
        probe = self.probe
        if tell is not None and probe is not None:
            tell(what, probe.period, probe.times)

    def said(self, choice: int, part: int, piece: str) -> None:
        """Look at what is said."""
        text = self._texts.get(choice)
        if text is None or text[0] != part:
            text = self._begin(self._texts, choice, part)
        if text[1].feed(piece):
            self._saw(choice, text[1])

    def thought(self, choice: int, part: int, piece: str) -> None:
        """Look at what is thought, apart from what is said."""
        text = self._thoughts.get(choice)
        if text is None or text[0] != part:
            text = self._begin(self._thoughts, choice, part)
        if text[1].feed(piece):
            self._saw(choice, text[1])

    def argued(self, choice: int, piece: str) -> None:
        """Leave out the arguments of calls: they repeat themselves for good reasons."""

    def ended(self, choice: int) -> None:
        """Leave an answer that came to its end: it may have been the last one that was worth waiting for."""
        self._open.pop(choice, None)
        self.found = bool(self._open) and all(self._open.values())

    def _saw(self, choice: int, probe: StreamProbe) -> None:
        self.probe = probe
        self._open[choice] = True
        self.found = all(self._open.values())

    def _begin(self, texts: dict[int, _Text], choice: int, part: int) -> _Text:
        """Begin a text: what stands in another part of an answer is no part of it."""
        before, begun = texts.get(choice), (part, StreamProbe())
        if len(self._open) < OPEN_MAX:
            self._open.setdefault(choice, False)
        if before is not None:
            self._chars += before[1].chars
        if before is not None or len(texts) < ANSWERS_MAX:
            texts[choice] = begun
        return begun
