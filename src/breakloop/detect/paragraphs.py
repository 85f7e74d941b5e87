"""Paragraphs of one answer that are almost the same: a model that words one thought anew, over and over.

A paragraph counts if all its words are in the last paragraphs, and most of its word trigrams are in one of them. A
paragraph with a new word brings something: templates with other names, numbers or items in each paragraph are work.
"""

from __future__ import annotations

from collections import deque
from typing import Final

BREAK: Final = "\n\n"
NEAR: Final = 0.6  # of the trigrams
_MIN_CHARS: Final = 60  # a shorter paragraph is a heading or an interjection
_MAX_CHARS: Final = 1000  # of a paragraph; its end is compared
_COMPARED: Final = 8  # paragraphs
_FIRST: Final = 6  # trigrams


class ParagraphProbe:
    """Counts paragraphs in a row that are almost the same as earlier ones."""

    __slots__ = ("_last", "_rest", "chars", "times")

    def __init__(self) -> None:
        self._rest = ""
        self._last: deque[str] = deque(maxlen=_COMPARED)
        self.times = 0
        self.chars = 0  # of these paragraphs

    def feed(self, text: str) -> bool:
        """Add a piece; return whether it completed a paragraph that is almost the same as an earlier one."""
        if BREAK not in text and not (text[:1] == "\n" == self._rest[-1:]):
            self._rest = (self._rest + text)[-_MAX_CHARS:]
            return False
        *complete, self._rest = (self._rest + text).split(BREAK)
        self._rest = self._rest[-_MAX_CHARS:]
        found = False
        for paragraph in complete:
            found = self._add(paragraph[-_MAX_CHARS:]) or found
        return found

    def _add(self, paragraph: str) -> bool:
        is_long = len(paragraph) >= _MIN_CHARS
        if not (is_long or self.times):
            return False
        words = paragraph.lower().split()
        near = is_long and self._is_near(words)
        if near:
            self.times += 1
            self.chars += len(paragraph)
        elif is_long or self._has_new(words):
            self.times = self.chars = 0
        if is_long:
            self._last.append(" ".join(words))
        return near

    def _is_near(self, words: list[str]) -> bool:
        """Tell whether no word is new, and most trigrams are in one of the last paragraphs. A few are tried first: most
        paragraphs have none that is known."""
        trigrams = list(map(" ".join, zip(words, words[1:], words[2:], strict=False)))
        if not trigrams or not self._last:
            return False
        some = trigrams[:: len(trigrams) // _FIRST + 1]
        together = "\n".join(self._last)
        if 2 * sum([one in together for one in some]) < len(some) or self._has_new(words):
            return False
        return any(sum([one in other for one in trigrams]) >= NEAR * len(trigrams) for other in self._last)

    def _has_new(self, words: list[str]) -> bool:
        return not {word for other in self._last for word in other.split()}.issuperset(words)
