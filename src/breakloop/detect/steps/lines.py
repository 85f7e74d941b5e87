"""Lines of texts, and how many of them are new (DETECTION: dry). Lines are compared by digest, whatever their case and
white space; they weigh by length, so that a wrapper's short ones do not drown a result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

from xxhash import xxh32_intdigest

from breakloop.detect.steps.filters import CAPACITY, AgedFilter
from breakloop.detect.steps.masks import lowered

NEW_SHARE: Final = 0.4  # of the lines: more is news
_LONG: Final = 300  # longer lines are taken in pieces
_MOST: Final = 256  # of one text: more would push everything else out of the filter
_WEIGHT_MAX: Final = 40
_PLAIN_MAX: Final = 34  # about the same without white space
_WEIGHTS: Final = bytes([min(size, _PLAIN_MAX) for size in range(256)])
_UNCLEAR: Final = (0.25, 0.6)  # between these lines are weighed with their white space, which takes longer
_WHITE: Final = b" \t\r\x0b\x0c"
_LOWER: Final = bytes(range(128)).lower() + bytes(range(128, 256))
_BLANKS: Final = bytes.maketrans(_WHITE, b" " * len(_WHITE))
_ENDS: Final = (b". ", b", ", b"; ", b"} ", b"] ", b") ")


def share(known: AgedFilter, texts: Sequence[bytes], seed: int) -> float | None:
    """Return the share of the texts' lines that are not known, and remember them; None where there are no lines."""
    lines = _all(texts)
    if not lines:
        return None
    once = [*dict.fromkeys(lines)]  # what stands in a text twice is not known for that
    if max(map(len, once)) > _LONG // 2:
        texts = [pieces(text) if max(map(len, plain(text)), default=0) > _LONG // 2 else text for text in texts]
        lines = _all(texts)
        once = [*dict.fromkeys(lines)]
    looked_at = lines if known.count + len(lines) >= CAPACITY else once  # one may be forgotten between the two
    new = [looked_at[at] for at in known.sift(list(map(xxh32_intdigest, looked_at, repeat(seed))))]
    if not new:
        return 0.0
    fresh = _weight(new)
    about = fresh / _weight(once)
    if about >= _UNCLEAR[1] and len(once) < len(lines):
        beside_all = fresh / _weight(lines)
        return beside_all if beside_all >= _UNCLEAR[1] else about
    return _weighed(texts, lines, new) if _UNCLEAR[0] < about < _UNCLEAR[1] else about


def _all(texts: Sequence[bytes]) -> list[bytes]:
    if len(texts) == 1:
        return bounded(plain(texts[0]))
    return [line for text in texts for line in bounded(plain(text))]


def _weight(lines: Sequence[bytes]) -> int:
    """Return what lines weigh: each as much as it is long, but none more than `_PLAIN_MAX`."""
    try:
        return sum(bytes(map(len, lines)).translate(_WEIGHTS))  # a quarter of the time that a loop takes
    except ValueError:  # one is longer than a byte tells
        return sum([min(len(line), _PLAIN_MAX) for line in lines])


def _weighed(texts: Sequence[bytes], lines: list[bytes], new: Sequence[bytes]) -> float:
    """Return the share with the white space weighed."""
    weights = [min(len(line), _WEIGHT_MAX) for text in texts for line in bounded(folded(text))]
    first = dict(zip(reversed(lines), reversed(weights), strict=True))
    return sum([first[line] for line in new]) / sum(first.values())


def plain(text: bytes) -> list[bytes]:
    """Return a text's lines in lower case and without white space."""
    low = text.translate(_LOWER, _WHITE) if text.isascii() else lowered(text).translate(None, _WHITE)
    return list(filter(None, low.split(b"\n")))


def folded(text: bytes) -> list[bytes]:
    """Return a text's lines with their white space folded: as many as `plain` gives."""
    return list(filter(None, [b" ".join(line.split()) for line in text.split(b"\n")]))


def bounded(lines: list[bytes]) -> list[bytes]:
    """Return the first and the last lines of very many."""
    return lines if len(lines) <= _MOST else lines[: _MOST // 2] + lines[-_MOST // 2 :]


def pieces(text: bytes) -> bytes:
    """Return a text with its very long lines cut where a sentence or a field ends."""
    lines = text.split(b"\n")
    for at, line in enumerate(lines):
        if len(line) > _LONG and (len(line.translate(None, _WHITE)) > _LONG or len(b" ".join(line.split())) > _LONG):
            cut = line.translate(_BLANKS)
            for end in _ENDS:
                cut = cut.replace(end, end[:1] + b"\n")
            lines[at] = cut.replace(b"\\\\n", b"\n")
    return b"\n".join(lines)
