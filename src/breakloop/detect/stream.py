"""Kind `stream`: detects that the text of one streamed answer repeats itself word for word. Only prose is cut: tables,
code, JSON, base64, grids and dot leaders repeat for good reasons.

The last 8 KB are checked every 256 characters. Each answer of a stream (`n` > 1) needs a probe of its own. The gateway
cuts the stream.
"""

from __future__ import annotations

import re
from typing import Final

PROBE_CHARS: Final = 256
REPEATS: Final = 8
REPEATED_CHARS: Final = 1200
_KEEP_CHARS: Final = 8 * 1024
_PERIOD_MAX: Final = _KEEP_CHARS // REPEATS
_SUFFIX_CHARS: Final = 64
_GUESSES: Final = 16  # at a period: the end of a text may occur within the period too
_SAMPLE_CHARS: Final = 400
_PROSE_CHARS: Final = 40  # that a loop must have outside code blocks
_CODE_EVERY: Final = 60  # characters: prose about code mentions a function now and then
_FENCE: Final = "```"

_spans: Final = re.compile(r"`[^`\n]*`").sub
# What prose does not have: the ends of JSON's keys and items; cells between bars, tabs or blanks.
_data: Final = re.compile(r'"\s*[:\]}]|"\s*,\s*"|\|[^|\n]*\||\t|\S {2,}\S+ {2,}\S').search
_code: Final = re.compile(r"[{}<>=\\]|[)\w];|\w\(").findall
_word: Final = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*").fullmatch
_MARKS: Final = ".,!?;:\u2026'\"\u2018\u2019\u201c\u201d()*_#"
_SENTENCE_ENDS: Final = tuple('.!?\u2026"\u201d')
_VALUES: Final = frozenset(("true", "false", "null", "none", "nan", "inf", "nil", "na", "undefined"))
_HEX_AND_BASES: Final = frozenset("abcdefgtun")  # hex digits, and the letters of DNA and RNA
_NO_BLANKS: Final = "\u0e00"  # scripts from Thai to Chinese have no spaces between words


class StreamProbe:
    """Checks one answer. `feed` only collects pieces until there are 256 characters."""

    __slots__ = ("_fenced", "_new", "_new_chars", "_tail", "chars", "found", "period", "times")

    def __init__(self) -> None:
        self._tail = ""
        self._new: list[str] = []
        self._new_chars = 0
        self._fenced = False  # a code block is open
        self.chars = 0  # checked so far
        self.found = False
        self.period = 0  # once found: length of what is repeated
        self.times = 0  # and how often it was repeated by then

    def feed(self, text: str) -> bool:
        """Add the next piece; return whether the answer should be cut."""
        self._new.append(text)
        self._new_chars += len(text)
        return self._check() if self._new_chars >= PROBE_CHARS else self.found

    def _check(self) -> bool:
        new = "".join(self._new)
        self._new.clear()
        self.chars += self._new_chars
        self._new_chars = 0
        if (self._tail[1 - len(_FENCE) :] + new).count(_FENCE) % 2:  # a fence may be split between pieces
            self._fenced = not self._fenced
        tail = self._tail = (self._tail + new)[-_KEEP_CHARS:]
        if not self.found:
            period = _period(tail)
            if period and self._is_prose(tail[-max(period, _SAMPLE_CHARS) :]):
                self.found, self.period, self.times = True, period, _times(tail, period)
        return self.found

    def _is_prose(self, sample: str) -> bool:
        """Check the text outside code blocks. Counted from the end, every second part is inside one."""
        outside = "\n".join(sample.split(_FENCE)[-1 - self._fenced :: -2])
        return len(outside) >= _PROSE_CHARS and is_prose(outside)


def _period(tail: str) -> int:
    """Return the length of what is repeated at the end of the text, often and long enough; 0 for nothing."""
    end = len(tail)
    if end < REPEATED_CHARS:
        return 0
    suffix = tail[-_SUFFIX_CHARS:]
    at = end - _SUFFIX_CHARS
    for _ in range(_GUESSES):
        at = tail.rfind(suffix, 0, at + _SUFFIX_CHARS - 1)
        period = end - _SUFFIX_CHARS - at
        if at < 0 or period > _PERIOD_MAX:
            return 0
        needed = max(REPEATS * period, REPEATED_CHARS)
        if needed <= end and tail[end - needed : end - period] == tail[end - needed + period :]:
            return period
    return 0


def _times(tail: str, period: int) -> int:
    unit, times = tail[-period:], 1
    while (end := len(tail) - times * period) >= period and tail.endswith(unit, 0, end):
        times += 1
    return times


def is_prose(sample: str) -> bool:
    """Tell whether a text consists of sentences, not of code, a table, JSON or data."""
    letters = sum(map(str.isalpha, sample))
    if 5 * letters < 3 * (len(sample) - sum(map(str.isspace, sample))):
        return False
    if _data(sample) or len(_code(_spans("code", sample))) * _CODE_EVERY > len(sample):
        return False
    if sum([letter >= _NO_BLANKS and letter.isalpha() for letter in sample]) * 3 > letters:
        return True
    lines = sample.split("\n")
    if len(lines) > 2:
        lines = lines[1:-1]  # the first and the last may be incomplete
    lines = [line for line in lines if line.strip()]
    return 2 * sum(map(_is_sentence, lines)) >= len(lines) > 0


def _is_sentence(line: str) -> bool:
    """Tell whether a line is a sentence or a large part of one."""
    words = line.split()
    plain = [word.lower() for given in words if _word(word := given.strip(_MARKS))]
    if len(words) < 3 or 10 * len(plain) < 7 * len(words):
        return False
    if not 2 * len(plain) <= sum(map(len, plain)) <= 15 * len(plain):
        return False
    if _HEX_AND_BASES.issuperset("".join(plain)) or _VALUES.issuperset(plain):
        return False
    if line.rstrip(" *_").endswith(_SENTENCE_ENDS):
        return True
    return len(words) >= 5 and 3 * line.count(",") <= len(words)
