"""Did-you-mean: the known word nearest to what was typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

_NEAR = 0.75


def nearest(typed: str, known: Iterable[str]) -> str | None:
    """Return the known word that `typed` most likely stands for, also when only its first words were typed."""
    folded = _fold(typed)
    best, best_score = None, _NEAR
    for word in known:
        score = max(SequenceMatcher(None, folded, part).ratio() for part in _parts(_fold(word)))
        if score > best_score:
            best, best_score = word, score
    return best


def did_you_mean(typed: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean "x"?`, or nothing when no known word is near."""
    word = nearest(typed, known)
    return f'; did you mean "{prefix}{word}"?' if word is not None else ""


def _fold(word: str) -> str:
    spaced = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in word)
    return spaced.replace("-", "_").lstrip("_")


def _parts(word: str) -> Iterator[str]:
    """The word, then its leading and its trailing words: `threshold` of `threshold_identical_requests`."""
    yield word
    words = word.split("_")
    for cut in range(1, len(words)):
        yield "_".join(words[:cut])
        yield "_".join(words[cut:])
