"""What is taken out of texts before they are compared: times, durations, ids and our own notes everywhere; paths,
quotes and numbers only in errors. Each mask is looked for with a cheap test first, because most texts need none, and
each pattern begins with a character class, because then the search for where to begin runs at full speed."""

from __future__ import annotations

import re
import zlib
from typing import Final

from breakloop.wire.steer import END, MARK

_NOTE: Final = re.compile(re.escape(MARK) + r".{0,1100}?" + re.escape(END), re.DOTALL).sub
_HAS_DIGIT: Final = re.compile(r"\d").search
_UUID_TEST: Final = re.compile(r"-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-").search
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b").sub
# A time of day, with its date or without, or a length of time.
_TIME: Final = re.compile(
    r"[0-9](?:\d(?:\d\d-\d\d-\d\d[T ]\d\d)?:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AP]M\b|Z\b|[+-]\d\d:?\d\d\b)?|"
    r"(?<![\d.,][0-9])[\d.,]*+ ?(?:ms|us|ns|s|secs?|seconds?|milliseconds?)\b)"
).sub
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{5,}").sub
_PROCESS: Final = re.compile(r"[pPtT](?:id|ID|rocess|hread)[ =:#\[-]{1,2}\d+").sub
_TYPED_ID: Final = re.compile(r"\b(?:[A-Za-z]{2,12}[_-])?(?=[A-Za-z]*\d)[0-9A-Za-z]{12,}\b").sub
_NUMBER: Final = re.compile(r"[0-9][\w.,:/-]*").sub
_QUOTED: Final = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`").sub
_PLACE: Final = re.compile(r"[/\\0-9]").search
_DIGITS: Final = bytes(range(48, 58))
# ASCII: letters and digits as they are, everything else parts words; other bytes belong to words.
_APART: Final = bytes(code if code > 127 or chr(code).isalnum() else 32 for code in range(256))
_WORD_MIN: Final = 4
_LOOSE_MAX: Final = 2000


def own(text: str) -> str:
    """Return `text` without notes of ours, which never enter a fingerprint."""
    return _NOTE("", text) if MARK in text else text


def steady(text: str) -> str:
    """Return `text` without what changes by itself: times, durations, addresses, process numbers, UUIDs."""
    if not _HAS_DIGIT(text):
        return text
    if "-" in text and _UUID_TEST(text):
        text = _UUID("~", text)
    if "0x" in text:
        text = _ADDRESS("~", text)
    text = _TIME("~", text)
    if "pid" in text or "PID" in text or "rocess" in text or "hread" in text:
        text = _PROCESS("~", text)
    return text


def loose(text: str) -> str:
    """Return a call's arguments with typed ids and digit-led tokens collapsed: for second-class comparisons only."""
    if not _HAS_DIGIT(text):
        return text
    return _NUMBER("#", _TYPED_ID("#", text[:_LOOSE_MAX])) + text[_LOOSE_MAX:]


def undigited(plain: bytes) -> bytes:
    """Return a result without any digits: what `loose` is to arguments, for texts of any length."""
    return plain.translate(None, _DIGITS)


def shape(text: str) -> str:
    """Return an error's or an empty result's text by its form: quotes, paths and numbers masked, lines kept."""
    lines = _QUOTED("#", text).split("\n")
    return "\n".join(
        [" ".join([one if one.isalpha() or not _PLACE(one) else "#" for one in line.split()]) for line in lines]
    )


def words(text: str, limit: int, seed: int) -> list[int]:
    """Return 32-bit digests of the different content words and numbers of a text's first `limit` characters."""
    plain = text[:limit].lower().encode("utf-8", "surrogatepass").translate(_APART)
    crc32 = zlib.crc32
    return [crc32(word, seed) for word in dict.fromkeys(plain.split()) if len(word) >= _WORD_MIN or word.isdigit()]
