"""How much of a step is read: of one text, and in all, for a request of 10 MB may hold a thousand texts, and must not
hold up everybody else. What is newest is read; of the rest its edges and a digest are kept, so that steps that differ
still do.
"""

from __future__ import annotations

from typing import Final

import xxhash

from breakloop.model.step import Result

# Characters of all results of a step, of all its arguments, of all texts of the user: judging takes up to 0.1 us each.
ALL_MAX: Final = 512 * 1024
# Characters of one text. Of a longer one the beginning, the end and a digest of the whole are kept: a large file that
# was changed in its middle is another result.
TEXT_MAX: Final = 64 * 1024
_HEAD: Final = 48 * 1024
_TAIL: Final = 16 * 1024
_FEW: Final = 8  # texts, each within its own bound, that are never too much
_EDGE: Final = 120
NAME_MAX: Final = 1000


class Budget:
    """What is left of the characters that are read."""

    __slots__ = ("left",)

    def __init__(self, left: int = ALL_MAX) -> None:
        self.left = left

    def take(self, said: str) -> str:
        """Return a text, or what stands for it where there were too many characters before it."""
        self.left -= len(said)
        return said if self.left >= 0 else edges(said)


def newest(results: list[Result]) -> list[Result]:
    """Return results, which come newest first, with so much text in all."""
    if len(results) <= _FEW:  # as nearly always
        return results
    budget = Budget()
    return [one._replace(text=budget.take(one.text)) for one in results]


def bounded(said: str) -> str:
    """Return a text of at most `TEXT_MAX` characters and a little more: its beginning, a digest, and its end."""
    if len(said) <= TEXT_MAX:
        return said
    return f"{said[:_HEAD]}\n<cut:{digest(said)}>\n{said[-_TAIL:]}"


def edges(said: str) -> str:
    """Return the beginning and the end of a text and a digest of the whole; a short text as it is."""
    return said if len(said) <= 3 * _EDGE else f"{said[:_EDGE]}\n<cut:{digest(said)}>\n{said[-_EDGE:]}"


def short(name: str) -> str:
    """Return a tool's name; of an absurdly long one the beginning and a digest."""
    return name if len(name) <= NAME_MAX else f"{name[:_EDGE]}<cut:{digest(name)}>"


def digest(said: str) -> str:
    """Return 16 hex digits that stand for a text."""
    return xxhash.xxh3_64_hexdigest(said.encode("utf-8", "replace"))
