"""What is removed from texts before they are compared: times, durations, ids and our own notes everywhere; paths,
quotes and numbers only in errors. Texts are UTF-8 here. Each mask has a cheap test first, because most texts need none,
and each pattern begins with a character or a class, because its search is fastest then."""

from __future__ import annotations

import re
import zlib
from itertools import repeat
from typing import Final

from breakloop.model.call import END, MARK

_MARK: Final = MARK.encode()
_END: Final = END.encode()
_NOTE_MAX: Final = 1100
_DIGITS: Final = b"0123456789"
_ZERO, _HYPHEN = b"0-"  # searching for a number takes a quarter of the time
_WHITE: Final = b" \t\n\r\x0b\x0c"
_UUID_TEST: Final = re.compile(rb"-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-").search
_UUID: Final = re.compile(rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b").sub
# A time of day, with or without a date, and a duration: what follows the first digit. Thousandths after a comma are
# only recognised in a log line; in a table, a comma separates values.
_CLOCK_FORM: Final = (
    rb"\d(?:\d\d-\d\d-\d\d[T ]\d\d)?:\d\d(?::\d\d(?:\.\d+|,\d{3}(?=[] |\t)]))?)?"
    rb"(?: ?[AP]M\b|Z\b|[+-]\d\d:?\d\d\b)?"
)
_LENGTH_FORM: Final = rb"(?<![\d.,][0-9])[\d.,]*+ ?(?:ms|us|ns|s|secs?|seconds?|milliseconds?)\b"
_CLOCK_TEST: Final = re.compile(rb":[0-9][0-9]").search
_CLOCK: Final = re.compile(rb"[0-9]" + _CLOCK_FORM).sub
_LENGTH: Final = re.compile(rb"[0-9]" + _LENGTH_FORM).sub
_CLOCK_OR_LENGTH: Final = re.compile(rb"[0-9](?:" + _CLOCK_FORM + rb"|" + _LENGTH_FORM + rb")").sub
# Without the characters in between, a duration is a digit and an "s". An address begins with "0x".
_BETWEEN: Final = b" munilecod"
_UNITS: Final = bytes(48 if code in _DIGITS else code if code in b"sx" else 46 for code in range(256))
_EITHER: Final = bytes(48 if code in _DIGITS else 115 if code in b"sx" else 46 for code in range(256))
# Expressions: for a few letters in a longer text they take a third of the time of `in`.
_EITHER_TEST: Final = re.compile(b"0s").search
_PID: Final = re.compile(b"pid").search
_PROCESS_NAME: Final = re.compile(b"process").search
_THREAD: Final = re.compile(b"thread").search
_ADDRESS: Final = re.compile(rb"0x[0-9a-fA-F]{5,}").sub
_PROCESS: Final = re.compile(rb"[pPtT](?:id|ID|rocess|hread)[ =:#\[-]{1,2}\d+").sub
_ID_TEST: Final = re.compile(rb"[0-9A-Za-z]{12}").search
_TYPED_ID: Final = re.compile(rb"\b(?:[A-Za-z]{2,12}[_-])?(?=[A-Za-z]*\d)[0-9A-Za-z]{12,}\b").sub
_NUMBER: Final = re.compile(rb"[0-9][\w.,:/-]*").sub
_QUOTED: Final = re.compile(rb"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`").sub
_QUOTE: Final = b"\x01"
_PLACES: Final = bytes.maketrans(b"/\\" + _DIGITS + b"#", b"#" * 12 + b"\x02")
# ASCII letters and digits and other bytes belong to words; everything else separates them.
_APART: Final = bytes(code if code > 127 or chr(code).isalnum() else 32 for code in range(256))
_WORD_MIN: Final = 4
_LOOSE_MAX: Final = 2000


def own(raw: bytes) -> bytes:
    """Return a text without our own notes, which are never part of a fingerprint."""
    if _MARK not in raw or _END not in raw:
        return raw
    *pieces, rest = raw.split(_END)
    return b"".join([_before_note(piece) for piece in pieces]) + rest


def _before_note(piece: bytes) -> bytes:
    """Return the text before the note that ends here; all of it if there is no note."""
    at = piece.rfind(_MARK)
    return piece[:at] if at >= 0 and len(piece) - at - len(_MARK) <= _NOTE_MAX else piece + _END


def steady(raw: bytes) -> bytes:
    """Return a text without what changes by itself: times, durations, addresses, process numbers, UUIDs."""
    units = raw.translate(_EITHER, _BETWEEN)
    if _ZERO not in units:
        return raw
    length = address = _EITHER_TEST(units) is not None
    if length:
        units = raw.translate(_UNITS, _BETWEEN)
        length, address = b"0s" in units, b"0x" in units
    if _HYPHEN in raw and _UUID_TEST(raw):
        raw = _UUID(b"~", raw)
    if address:
        raw = _ADDRESS(b"~", raw)
    if _CLOCK_TEST(raw):
        raw = (_CLOCK_OR_LENGTH if length else _CLOCK)(b"~", raw)
    elif length:
        raw = _LENGTH(b"~", raw)
    low = raw.lower()
    if _PID(low) or _PROCESS_NAME(low) or _THREAD(low):
        raw = _PROCESS(b"~", raw)
    return raw


def compact(raw: bytes) -> bytes:
    """Return a text without white space."""
    return raw.translate(None, _WHITE)


def folded(raw: bytes) -> bytes:
    """Return a text with white space folded, for short texts in which a space may matter."""
    return b" ".join(raw.split())


def lowered(raw: bytes) -> bytes:
    """Return a text in lower case, in any script."""
    return raw.decode("utf-8", "surrogatepass").lower().encode("utf-8", "surrogatepass")


def loose(raw: bytes) -> bytes:
    """Return a call's arguments with ids and tokens that begin with a digit masked, for `near`."""
    if len(raw.translate(None, _DIGITS)) == len(raw):
        return raw
    if _HYPHEN in raw and _UUID_TEST(raw):
        raw = _UUID(b"#", raw)
    head = raw[:_LOOSE_MAX]
    return _NUMBER(b"#", _TYPED_ID(b"#", head) if _ID_TEST(head) else head) + raw[_LOOSE_MAX:]


def shape(raw: bytes) -> bytes:
    """Return the form of an error or an empty result: quotes, paths and numbers masked, lines kept."""
    lines = _QUOTED(_QUOTE, raw).translate(_PLACES).split(b"\n")
    return b"\n".join([b" ".join([b"#" if b"#" in one else one for one in line.split()]) for line in lines])


def words(text: str, limit: int, seed: int) -> list[int]:
    """Return 32-bit digests of the different content words and numbers of a text's first `limit` characters."""
    plain = text[:limit].lower().encode("utf-8", "surrogatepass").translate(_APART)
    found = [word for word in dict.fromkeys(plain.split()) if len(word) >= _WORD_MIN or word.isdigit()]
    return list(map(zlib.crc32, found, repeat(seed)))
