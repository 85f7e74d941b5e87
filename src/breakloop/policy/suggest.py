"""Did-you-mean: the known word nearest to what was typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

_NEAR = 0.75
_CAMEL = re.compile("(?<=[a-z0-9])(?=[A-Z])")


def nearest(typed: str, known: Iterable[str]) -> str | None:
    """Return the known word that `typed` most likely stands for, also when only its first words were typed."""
    folded = _fold(typed)
    scored = [(_score(folded, _fold(word)), word) for word in known]
    best, word = max(scored, key=lambda pair: pair[0], default=(0.0, ""))
    return word if best >= _NEAR else None


def _score(typed: str, word: str) -> float:
    """Likeness from 0 to 1; a part of a word counts a little less than the whole."""
    whole = SequenceMatcher(None, typed, word).ratio()
    return max([whole, *(0.9 * SequenceMatcher(None, typed, part).ratio() for part in _parts(word))])


def did_you_mean(typed: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean "x"?`, or nothing when no known word is near."""
    word = nearest(typed, known)
    return f'; did you mean "{prefix}{word}"?' if word is not None else ""


def _fold(word: str) -> str:
    """`pathPrefix`, `path-prefix` and `path_prefix` are the same word."""
    return _CAMEL.sub("_", word).replace("-", "_").lower()


def _parts(word: str) -> Iterator[str]:
    """The leading and the trailing words: `threshold` of `threshold_identical_requests`."""
    words = word.split("_")
    for cut in range(1, len(words)):
        yield "_".join(words[:cut])
        yield "_".join(words[cut:])
