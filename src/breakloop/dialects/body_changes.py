"""Changes to bodies that pass. Every other byte stays as it was sent; if that is impossible, nothing is changed.

A note for the model is appended to a request, so that prompt caches still hit. `Dialect.insert_note` puts it into the
last message if that is the user's, and else adds a message of the user: several servers require roles to alternate.
A request that is landed also has its tools switched off (`Dialect.switch_off_tools`). They stay declared: histories
with calls of undeclared tools are refused by some servers, and tools are part of what prompt caches compare.

A thought that breakloop has ended is removed from the requests that follow (`without_ended_thoughts`): the provider has
not signed it, and refuses it.

Token counts are requested in OpenAI streams whose client did not (`request_usage`), and removed from the answer again
(`UsageStrip`), so that the client gets what it would have got. Other APIs always send counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from breakloop.dialects.content import decode

_BLANK_LINE: Final = "\n\n"
_WHITE: Final = b" \t\n\r"
_KEY: Final = re.compile(rb'[ \t\n\r]*"[^"\\]*(?:\\.[^"\\]*)*"[ \t\n\r]*:[ \t\n\r]*', re.DOTALL).match
_COMMA: Final = re.compile(rb"[ \t\n\r]*,").match

# What a thought that breakloop has ended is marked with, in place of the provider's signature or encrypted content. A
# search skips its length wherever none of its letters stands, and most of a conversation is in small letters.
ENDED_THOUGHT: Final = "BREAKLOOPHASENDEDTHISTHOUGHTTHEPROVIDERHASNOTSIGNEDITANDWOULDREFUSEITINAREQUEST"

Raw = msgspec.Raw
Span = tuple[int, int]

_split_object = msgspec.json.Decoder(dict[str, Raw]).decode
_split_list = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.encode


class JsonBody:
    """A JSON object and the positions of its values. Changes are insertions, or replace one value: no other byte is
    rewritten."""

    __slots__ = ("body", "fields", "span")

    def __init__(self, body: bytes) -> None:
        self.body = body
        end = len(body.rstrip(_WHITE))
        self.span: Span = (end - len(body.strip(_WHITE)), end)
        self.fields = self.fields_at(self.span)

    def fields_at(self, span: Span) -> dict[str, Span]:
        """Return the span of each field's value in an object. Raises ValueError for anything else."""
        body, at = self.body, span[0] + 1
        found: dict[str, Span] = {}
        for name, raw in _split_object(memoryview(body)[slice(*span)]).items():
            if found:
                at = _past(_COMMA, body, at)
            at = _past(_KEY, body, at)
            found[name] = at, self._end_of(raw, at)
            at = found[name][1]
        if body[at : span[1]].strip(_WHITE) != b"}":
            raise ValueError("duplicate field")
        return found

    def items_at(self, span: Span) -> tuple[list[Raw], Span]:
        """Return the items of a list and the span of the last one. Raises ValueError if there are none."""
        items = _split_list(memoryview(self.body)[slice(*span)])
        if not items:
            raise ValueError("nothing to append to")
        end = span[0] + len(self.body[span[0] : span[1] - 1].rstrip(_WHITE))
        start = end - memoryview(items[-1]).nbytes
        return items, (start, self._end_of(items[-1], start))

    def value(self, fields: dict[str, Span], name: str) -> Any:
        """Return the decoded value of a field; None if it is missing."""
        span = fields.get(name)
        return None if span is None else decode(memoryview(self.body)[slice(*span)])

    def first_char(self, span: Span) -> str:
        """Return the first character of a value, which identifies its type."""
        return chr(self.body[span[0]])

    def has_items(self, name: str) -> bool:
        """Return whether a field is a list that is not empty."""
        span = self.fields.get(name)
        return span is not None and self.first_char(span) == "[" and not self._is_empty(span)

    def with_item(self, span: Span, item: object) -> bytes:
        """Return the body with an item appended to a list."""
        return self._with(span[1] - 1, _encode(item) if self._is_empty(span) else b"," + _encode(item))

    def with_field(self, name: str, value: object) -> bytes:
        """Return the body with a field of the whole object set to a value."""
        return self.with_field_of(self.span, self.fields, name, value)

    def with_field_of(self, span: Span, fields: dict[str, Span], name: str, value: object) -> bytes:
        """Return the body with a field of an object set to a value: replaced where it stands, or appended."""
        known = fields.get(name)
        if known is not None:
            return b"".join((memoryview(self.body)[: known[0]], _encode(value), memoryview(self.body)[known[1] :]))
        member = b"%b:%b" % (_encode(name), _encode(value))
        return self._with(span[1] - 1, b"," + member if fields else member)

    def with_text(self, span: Span, text: str) -> bytes:
        """Return the body with text appended to a string, after a blank line."""
        return self._with(span[1] - 1, _encode(_BLANK_LINE + text)[1:-1])

    def with_content(self, span: Span, part: dict[str, str], text: str) -> bytes:
        """Return the body with text appended to a content: a string, or a list of parts."""
        first = self.first_char(span)
        if first == '"':
            return self.with_text(span, text)
        if first != "[":
            raise ValueError("no content to append to")
        return self.with_item(span, part)

    def _is_empty(self, span: Span) -> bool:
        return not self.body[span[0] + 1 : span[1] - 1].strip(_WHITE)

    def _with(self, at: int, piece: bytes) -> bytes:
        return b"".join((memoryview(self.body)[:at], piece, memoryview(self.body)[at:]))

    def _end_of(self, raw: Raw, at: int) -> int:
        """Return the end of a value that begins at `at`. Raises ValueError if it does not."""
        if not self.body.startswith(bytes(raw), at):
            raise ValueError("not at the expected position")
        return at + memoryview(raw).nbytes


def _past(pattern: Callable[[bytes, int], re.Match[bytes] | None], body: bytes, at: int) -> int:
    found = pattern(body, at)
    if found is None:
        raise ValueError("unexpected syntax")
    return found.end()


HELD_MAX_BYTES: Final = 256 * 1024  # of an incomplete event; a longer one passes unchanged
_BAD: Final = (ValueError, RecursionError)  # broken JSON, an unexpected type, unlimited nesting
_ABSENT: Final = Raw(b"")

_MEMBER: Final = b'"include_usage":true'
_OPTIONS: Final = re.compile(rb'"stream_options"[ \t\n\r]*:[ \t\n\r]*').finditer
_FLAG: Final = re.compile(rb'"include_usage"[ \t\n\r]*:[ \t\n\r]*(false|null)').finditer


class _Body(msgspec.Struct, gc=False):
    stream: bool | None = None
    stream_options: Raw = _ABSENT


_decode_body: Final = msgspec.json.Decoder(_Body).decode


def request_usage(body: bytes) -> bytes | None:
    """Return the body with `include_usage` set; None if that is unnecessary or impossible."""
    try:
        fields = _decode_body(body)
        if not fields.stream:
            return None
        if fields.stream_options is not _ABSENT:
            return _with_options(body, bytes(fields.stream_options))
    except _BAD:
        return None
    end = len(body.rstrip(_WHITE)) - 1
    return b"".join((memoryview(body)[:end], b',"stream_options":{', _MEMBER, b"}", memoryview(body)[end:]))


def _with_options(body: bytes, options: bytes) -> bytes | None:
    """Add the member to the options that the client has set."""
    found = list(_OPTIONS(body))
    changed = _with_usage(options)
    # Quotes inside a text are escaped, so each match is the name of a field, but maybe of another object.
    if changed is None or len(found) != 1 or not body.startswith(options, found[0].end()):
        return None
    at = found[0].end()
    return b"".join((memoryview(body)[:at], changed, memoryview(body)[at + len(options) :]))


def _with_usage(options: bytes) -> bytes | None:
    """Return options that request counts; None if these do already, or are no options."""
    value: Any = decode(options)
    if value is None:
        return b"{%b}" % _MEMBER
    if not isinstance(value, dict):
        return None
    if "include_usage" not in value:
        return b"{%b%b%b" % (_MEMBER, b"," if value else b"", options[1:])
    flags = list(_FLAG(options))
    if value["include_usage"] or len(flags) != 1:
        return None
    return b"%btrue%b" % (options[: flags[0].start(1)], options[flags[0].end(1) :])


# Two line ends, each CR LF, LF or CR. The last one may be the first half of a CR LF.
_EVENT_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n?|\n)").search
_DATA: Final = re.compile(rb"(?:\A(?:\xef\xbb\xbf)?|[\r\n])data:([^\r\n]*)").findall
_USAGE: Final = b'"usage"'
_CR: Final = 13
_NULL: Final = re.compile(
    rb'(?<![ \t])[ \t]*+,[ \t]*+"usage"[ \t]*+:[ \t]*+null|"usage"[ \t]*+:[ \t]*+null[ \t]*+,[ \t]*+'
)
# As OpenAI writes it: at the end of a chunk, or before the padding there. The brace after it closes the chunk.
_NULL_LAST: Final = re.compile(
    rb'"usage"[ \t]*:[ \t]*null(?=(?:[ \t]*,[ \t]*"obfuscation"[ \t]*:[ \t]*"[^"\\]*")?[ \t]*\}[\r\n]+\Z)'
).match


class _Chunk(msgspec.Struct, gc=False):
    choices: list[Raw] | None = None
    usage: Raw = _ABSENT
    error: Any = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


def change_items(body: bytes, name: str, change: Callable[[Any], Any]) -> bytes:
    """Return a request whose items in the list `name` with an ended thought are changed; those that `change` returns
    None for are left out. A body of an unexpected shape is returned as it is."""
    try:
        json = JsonBody(body)
        start, end = json.fields[name]
        items, _ = json.items_at((start, end))
        mark, kept = ENDED_THOUGHT.encode(), []
        for item in map(bytes, items):
            changed = change(decode(item)) if mark in item else item
            if changed is not None:
                kept.append(changed if changed is item else _encode(changed))
    except (ValueError, KeyError, RecursionError):
        return body
    return b"".join((body[:start], b"[", b",".join(kept), b"]", body[end:]))


class UsageStrip:
    """Removes the requested counts from one stream. Holds back at most one incomplete event."""

    __slots__ = ("_after_cr", "_held", "_passing")

    def __init__(self) -> None:
        self._held = bytearray()
        self._passing = False  # the current event is too long to be held back
        self._after_cr: bytes | None = None  # replaces a line feed that belongs to the CR before it

    def feed(self, piece: bytes) -> bytes:
        """Take the next bytes of the stream; return those to pass on now."""
        if self._after_cr is not None and piece:
            line_feed, self._after_cr = self._after_cr, None
            if piece.startswith(b"\n"):
                return line_feed + self._take(piece[1:])
        return self._take(piece)

    def finish(self) -> bytes:
        """Return the incomplete event at the end of the stream, unchanged."""
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
            passed.append(bytes(held[:-3]))  # the last bytes may be the beginning of its end
            del held[:-3]
        return passed[0] if len(passed) == 1 else b"".join(passed)


def _end(data: bytes | bytearray, scan: int) -> int:
    """Return where the next event ends; 0 if it is incomplete."""
    found = _EVENT_END(data, scan)
    return 0 if found is None else found.end()


def _end_of_line_feeds(data: bytes | bytearray, scan: int) -> int:
    """Like `_end`, many times as fast, for new bytes without a CR. An end with a CR was found before."""
    found = data.find(b"\n\n", scan)
    return 0 if found < 0 else found + 2


def without_usage(event: bytes) -> bytes:
    """Return an event as it would be without requested counts: b"" for the event of the counts itself."""
    at = event.rfind(_USAGE)
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
