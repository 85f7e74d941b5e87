"""Asks OpenAI's APIs for the count of tokens at the end of a stream whose client did not ask, and takes it out of the
stream again, so that the client sees what it would have seen (SPEC D-1, L-3). The other APIs always send one.

When to ask is a policy's business, which answers can be rewritten the gateway's. Every byte that is not about the count
stays as it is, in the request and in the answer; where that cannot be had, nothing is changed.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from breakloop.dialects import openai_chat, openai_legacy
from breakloop.dialects.base import decode

HELD_MAX_BYTES: Final = 256 * 1024  # of an event that is not at its end; a longer one passes as it is
_DIALECTS: Final = frozenset((openai_chat.DIALECT, openai_legacy.COMPLETIONS))
_WHITE: Final = b" \t\n\r"
_BAD: Final = (ValueError, RecursionError)  # broken JSON, a type that is not expected, nesting without end

Raw = msgspec.Raw
_ABSENT: Final = Raw(b"")

# -- in the request

_MEMBER: Final = b'"include_usage":true'
_OPTIONS: Final = re.compile(rb'"stream_options"[ \t\n\r]*:[ \t\n\r]*').finditer
_FLAG: Final = re.compile(rb'"include_usage"[ \t\n\r]*:[ \t\n\r]*(false|null)').finditer


class _Body(msgspec.Struct, gc=False):
    stream: bool | None = None
    stream_options: Raw = _ABSENT


_decode_body: Final = msgspec.json.Decoder(_Body).decode


def ask(dialect: str, body: bytes) -> bytes | None:
    """Return the body with the question in it; None where it need not be asked, or cannot."""
    if dialect not in _DIALECTS:
        return None
    try:
        fields = _decode_body(body)
        if not fields.stream:
            return None
        if fields.stream_options is not _ABSENT:
            return _among_others(body, bytes(fields.stream_options))
    except _BAD:
        return None
    end = len(body.rstrip(_WHITE)) - 1
    return b"".join((memoryview(body)[:end], b',"stream_options":{', _MEMBER, b"}", memoryview(body)[end:]))


def _among_others(body: bytes, options: bytes) -> bytes | None:
    """Put it into the options that the client has set."""
    places = list(_OPTIONS(body))
    asking = _asking(options)
    # Quotes inside a text are escaped, so each of these is the name of a field; but of which object?
    if asking is None or len(places) != 1 or not body.startswith(options, places[0].end()):
        return None
    at = places[0].end()
    return b"".join((memoryview(body)[:at], asking, memoryview(body)[at + len(options) :]))


def _asking(options: bytes) -> bytes | None:
    """Return options that ask; None where these do already, or are none."""
    said: Any = decode(options)
    if said is None:
        return b"{%b}" % _MEMBER
    if not isinstance(said, dict):
        return None
    if "include_usage" not in said:
        return b"{%b%b%b" % (_MEMBER, b"," if said else b"", options[1:])
    flags = list(_FLAG(options))
    if said["include_usage"] or len(flags) != 1:
        return None
    return b"%btrue%b" % (options[: flags[0].start(1)], options[flags[0].end(1) :])


# -- in the answer

# Two ends of a line, of which each is CR LF, LF or CR. The last one may be half of a CR LF.
_EVENT_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n?|\n)").search
_DATA: Final = re.compile(rb"(?:\A(?:\xef\xbb\xbf)?|[\r\n])data:([^\r\n]*)").findall
_NAME: Final = b'"usage"'
_CR: Final = 13
_NULL: Final = re.compile(
    rb'(?<![ \t])[ \t]*+,[ \t]*+"usage"[ \t]*+:[ \t]*+null|"usage"[ \t]*+:[ \t]*+null[ \t]*+,[ \t]*+'
)
# As OpenAI writes it: at the end of a chunk, or before the padding there. What closes after it is the chunk itself.
_NULL_LAST: Final = re.compile(
    rb'"usage"[ \t]*:[ \t]*null(?=(?:[ \t]*,[ \t]*"obfuscation"[ \t]*:[ \t]*"[^"\\]*")?[ \t]*\}[\r\n]+\Z)'
).match


class _Chunk(msgspec.Struct, gc=False):
    choices: list[Raw] | None = None
    usage: Raw = _ABSENT
    error: Any = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


class UsageStrip:
    """Takes out of one stream what the question brought into it. Holds back at most one event that has no end yet."""

    __slots__ = ("_after_cr", "_held", "_passing")

    def __init__(self) -> None:
        self._held = bytearray()
        self._passing = False  # the event that is coming is too long to be held
        self._after_cr: bytes | None = None  # what becomes of a line feed that belongs to the CR before it

    def feed(self, piece: bytes) -> bytes:
        """Take the next bytes of the stream; return those that pass on now."""
        if self._after_cr is not None and piece:
            line_feed, self._after_cr = self._after_cr, None
            if piece.startswith(b"\n"):
                return line_feed + self._take(piece[1:])
        return self._take(piece)

    def finish(self) -> bytes:
        """Return what is held when nothing follows: half an event, as it came."""
        held, self._held = bytes(self._held), bytearray()
        return held

    def _take(self, piece: bytes) -> bytes:
        held = self._held
        scan = max(0, len(held) - 3)
        data: bytes | bytearray = piece
        if held:
            held += piece
            data = held
        passed: list[bytes] = []
        find = _end if _CR in piece else _end_of_line_feeds
        at, end = 0, find(data, scan)
        while end:
            event = bytes(data[at:end])
            kept = event if self._passing else without_usage(event)
            self._passing = False
            passed.append(kept)
            if end == len(data) and event.endswith(b"\r"):
                self._after_cr = b"\n" if kept else b""
            at, end = end, find(data, end)
        if data is piece:
            held += piece[at:]
        else:
            del held[:at]
        if self._passing or len(held) > HELD_MAX_BYTES:
            self._passing = True
            passed.append(bytes(held[:-3]))  # these may be the beginning of its end
            del held[:-3]
        return passed[0] if len(passed) == 1 else b"".join(passed)


def _end(data: bytes | bytearray, scan: int) -> int:
    """Return where the next event ends; 0 where it does not yet."""
    found = _EVENT_END(data, scan)
    return 0 if found is None else found.end()


def _end_of_line_feeds(data: bytes | bytearray, scan: int) -> int:
    """Return the same, many times as fast, for bytes that brought no CR: an end that has one was found before."""
    found = data.find(b"\n\n", scan)
    return 0 if found < 0 else found + 2


def without_usage(event: bytes) -> bytes:
    """Return an event as it would have come without the question: nothing, where it is the count itself."""
    at = event.rfind(_NAME)
    if at < 0:
        return event
    last = _NULL_LAST(event, at)
    if last is not None:
        before = event[:at].rstrip(b" \t")
        if before.endswith(b","):
            return before[:-1].rstrip(b" \t") + event[last.end() :]
    payloads = _DATA(event)
    if len(payloads) != 1:
        return event
    try:
        chunk = _decode_chunk(payloads[0])
    except _BAD:
        return event
    usage = bytes(chunk.usage)
    if usage == b"null" and len(_NULL.findall(event)) == 1:
        return _NULL.sub(b"", event, count=1)
    is_count = usage.startswith(b"{") and not chunk.choices and chunk.error is None
    return b"" if is_count else event
