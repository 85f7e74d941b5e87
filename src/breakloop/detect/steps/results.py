"""What a result says besides what harnesses and services write around it: lines and fields that differ each time, and
the frame of a result that has no content. Only a few lines at each end are read, whatever the length of a result."""

from __future__ import annotations

import re
from typing import Final

# ASCII letters and digits and other bytes belong to words; everything else separates them.
APART: Final = bytes(code if code > 127 or chr(code).isalnum() else 32 for code in range(256))
LOW_APART: Final = APART.lower()  # the same, in lower case
_COLON, _TAG_OPENS, _BRACE, _BREAK = b":<{\n"  # with `in`, a number is found in a quarter of the time
_EDGE: Final = 300  # bytes at each end of an object
_LINES: Final = 6
_KEY_MAX: Final = 40
_VALUE_MAX: Final = 80
# Names of values that differ each time and say nothing, with spaces between their words.
_VOLATILE: Final = frozenset((
    "chunk id", "session id", "request id", "trace id", "span id", "correlation id", "invocation id", "execution id",
    "call id", "tool call id", "process id", "pid", "nonce", "timestamp", "ts",
    "wall time", "elapsed", "elapsed time", "elapsed ms", "elapsed s", "elapsed seconds", "execution time",
    "execution time ms", "exec time", "run time", "runtime", "cpu time", "response time", "response time ms",
    "time taken", "took", "took ms", "duration", "duration s", "duration ms", "duration seconds", "latency",
    "latency ms",
    "started at", "finished at", "completed at", "generated at", "fetched at", "retrieved at",
))  # fmt: skip
_LINE_KEYS: Final = frozenset([name.encode() for name in _VOLATILE])
_FIELD_KEYS: Final = frozenset(
    [spelled.encode() for name in _VOLATILE for spelled in (name, name.replace(" ", "_"), name.replace(" ", ""))]
)
_TAGS: Final = 2
_TAG_BEFORE: Final = re.compile(rb"<([\w:-]{1,40})>\s*").match
_HAS_WORD: Final = re.compile(rb"\w").search
_SPACES: Final = bytes.maketrans(b"_-", b"  ")
_FIELD: Final = re.compile(
    rb"\"([A-Za-z][\w ]{1,24})\"\s*:\s*(?:\"[^\"\\\n]{0,80}\"|-?\d[\d.eE+-]{0,30})\s*(?:,\s*)?"
).sub


def content(raw: bytes) -> bytes:
    """Return a result without the tag around it, without volatile lines of its head and foot, such as `Wall time: 0.2
    seconds`, and without volatile fields at the ends of an object. If nothing else is in it, they stay."""
    begins = raw[:1]
    if begins == b"<":
        raw = _inside(raw)
        begins = raw[:1]
    if begins == b"{":
        kept = _without_fields(raw)
    else:
        if _BREAK not in raw:
            return raw
        kept = raw.rstrip()
        end = kept.rfind(b"\n")
        if end < 0:
            return raw
        if _COLON in raw:
            if raw.find(b": ", 0, _KEY_MAX) >= 0:
                kept = _without_head(kept)
            if raw.find(b": ", end, end + _KEY_MAX) >= 0:
                kept = _without_foot(kept)
    return kept if len(kept) == len(raw) or _HAS_WORD(kept) else raw


def _inside(raw: bytes) -> bytes:
    """Return what is inside of the tags around a result, if there are any."""
    for _ in range(_TAGS):
        tag = _TAG_BEFORE(raw)
        if tag is None:
            break
        inside = raw[tag.end() :].rstrip()
        if not inside.endswith(b"</" + tag[1] + b">"):
            break
        raw = inside[: -len(tag[1]) - 3].strip()
    return raw


def _without_fields(raw: bytes) -> bytes:
    if len(raw) <= 2 * _EDGE:
        return _FIELD(_field, raw)
    return _FIELD(_field, raw[:_EDGE]) + raw[_EDGE:-_EDGE] + _FIELD(_field, raw[-_EDGE:])


def _field(found: re.Match[bytes]) -> bytes:
    return b"" if found[1].lower() in _FIELD_KEYS else found[0]


def _without_head(raw: bytes) -> bytes:
    """Remove volatile lines at the beginning, as far as lines have the form `Key: value`."""
    kept, at = [], 0
    for _ in range(_LINES):
        end = raw.find(b"\n", at) + 1
        colon = raw.find(b": ", at, min(end, at + _KEY_MAX))
        if colon < 0:
            break
        if not _is_volatile(raw[at:colon], end - colon):
            kept.append(raw[at:end])
        at = end
    return b"".join((*kept, raw[at:])) if sum(map(len, kept)) < at else raw


def _without_foot(raw: bytes) -> bytes:
    """Remove volatile lines at the end, as far as lines have the form `Key: value`."""
    kept, end = [], len(raw)
    for _ in range(_LINES):
        at = raw.rfind(b"\n", 0, end)
        colon = raw.find(b": ", at, min(end, at + _KEY_MAX)) if at >= 0 else -1
        if colon < 0:
            break
        if not _is_volatile(raw[at + 1 : colon], end - colon):
            kept.append(raw[at:end])
        end = at
    return b"".join((raw[:end], *reversed(kept))) if end + sum(map(len, kept)) < len(raw) else raw


def _is_volatile(key: bytes, size: int) -> bool:
    return size <= _VALUE_MAX and key.strip(b"[(*# ").lower().translate(_SPACES) in _LINE_KEYS


_TAG: Final = re.compile(rb"</?([\w:-]{1,40})(?: [^<>]{0,80})?>").sub
_ENDED: Final = re.compile(rb"\b(?:finished|completed|exited|ended|terminated)(?: successfully)? with\b").sub
_FRAME: Final = frozenset((
    b"exit", b"exited", b"code", b"status", b"return", b"returned", b"returncode", b"exitcode", b"process", b"command",
    b"output", b"stdout", b"stderr", b"observation", b"execution", b"logs", b"result", b"tool", b"response", b"last",
    b"from", b"snippet", b"metadata", b"none", b"null", b"with",
))  # fmt: skip
_STATUS: Final = frozenset((b"code", b"status", b"returncode", b"exitcode"))


def is_bare(text: bytes) -> bool:
    """Tell whether a short result is only a frame: an exit status without output, labels, empty tags and fields."""
    low = text.lower()
    if _COLON not in low and _TAG_OPENS not in low and _BRACE not in low and low.find(b"exit") < 0:
        return False
    low = low.replace(b"no output", b"")
    if _TAG_OPENS in low:
        low = _TAG(lambda tag: b" " + tag[1] + b" " if tag[1] in _STATUS else b" ", low)
    before = b""
    for word in _ENDED(b" ", low).translate(APART).split():
        if word not in _FRAME and not (before in _STATUS and word.isdigit()):
            return False
        before = word
    return True
