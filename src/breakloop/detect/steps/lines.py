"""Lines of texts, and how many of them are new (DETECTION: dry). Lines are compared by digest, whatever their case and
white space; they weigh by length, so that a wrapper's short ones do not drown a result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

from xxhash import xxh32_intdigest

from breakloop.detect.steps.filters import AgedFilter
from breakloop.detect.steps.masks import lowered

NEW_SHARE: Final = 0.4  # of the lines: more is news
_LONG: Final = 300  # longer lines are taken in pieces
_MOST: Final = 256  # of one text: more would push everything else out of the filter
_WEIGHT_MAX: Final = 40
_PLAIN_MAX: Final = 34  # about the same without white space
_UNCLEAR: Final = (0.25, 0.6)  # between these lines are weighed with their white space, which takes longer
_WHITE: Final = b" \t\r\x0b\x0c"
_LOWER: Final = bytes(range(128)).lower() + bytes(range(128, 256))
_BLANKS: Final = bytes.maketrans(_WHITE, b" " * len(_WHITE))
_ENDS: Final = (b". ", b", ", b"; ", b"} ", b"] ", b") ")


def share(known: AgedFilter, texts: Sequence[bytes], seed: int) -> float | None:
    """Return the share of the texts' lines that are not known, and remember them; None where there are no lines."""
    cut = list(texts)
    lines: list[bytes] = []
    for at, text in enumerate(texts):
        found = plain(text)
        if max(map(len, found), default=0) > _LONG // 2:
            cut[at] = pieces(text)
            found = plain(cut[at])
        lines += bounded(found)
    if not lines:
        return None
    digests = list(map(xxh32_intdigest, lines, repeat(seed)))
    new = known.sift(digests)
    if not new or len(new) == len(lines):
        return 1.0 if new else 0.0
    once: Sequence[int] = ()
    weights = [size if (size := len(line)) < _PLAIN_MAX else _PLAIN_MAX for line in lines]
    about = _part(weights, new, once)
    if about < _UNCLEAR[1] and len(set(digests)) < len(digests):  # what stands in a text twice is not known for that
        once = list(dict(zip(reversed(digests), range(len(digests) - 1, -1, -1), strict=True)).values())
        about = _part(weights, new, once)
    if not _UNCLEAR[0] < about < _UNCLEAR[1]:
        return about
    sizes = [len(line) for text in cut for line in bounded(folded(text))]
    return _part([min(size, _WEIGHT_MAX) for size in sizes], new, once)


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


def _part(weights: Sequence[int], new: Sequence[int], once: Sequence[int]) -> float:
    """Return the share of new lines; where some come more than once, `once` says where each stands first."""
    return sum([weights[at] for at in new]) / sum([weights[at] for at in once] if once else weights)
