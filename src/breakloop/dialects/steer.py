"""Appending a note for the model to a request. All other bytes stay as they were sent, so that prompt caches still hit.

`Dialect.insert_note` puts the note into the last message if that is the user's, and else adds a message of the user:
several servers require roles to alternate. If neither is possible, the body is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from breakloop.dialects.content import clean, decode
from breakloop.model.call import END, MARK

_NOTE_MAX: Final = 1000
_BLANK_LINE: Final = "\n\n"
_WHITE: Final = b" \t\n\r"
_KEY: Final = re.compile(rb'[ \t\n\r]*"[^"\\]*(?:\\.[^"\\]*)*"[ \t\n\r]*:[ \t\n\r]*', re.DOTALL).match
_COMMA: Final = re.compile(rb"[ \t\n\r]*,").match

Raw = msgspec.Raw
Span = tuple[int, int]

_split_object = msgspec.json.Decoder(dict[str, Raw]).decode
_split_list = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.encode


def marked(note: str) -> str:
    """Return a note between its marks, by which it is recognised when it comes back in a conversation."""
    said = clean(note)[:_NOTE_MAX].replace(MARK, "").replace(END, "")
    return f"{MARK} {said} {END}"


class JsonBody:
    """A JSON object and the positions of its values. Changes are insertions: no other byte is rewritten."""

    __slots__ = ("body", "fields")

    def __init__(self, body: bytes) -> None:
        self.body = body
        end = len(body.rstrip(_WHITE))
        self.fields = self.fields_at((end - len(body.strip(_WHITE)), end))

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
        """Return the first character of a value, which tells its type."""
        return chr(self.body[span[0]])

    def with_item(self, span: Span, item: object) -> bytes:
        """Return the body with an item appended to a list."""
        empty = not self.body[span[0] + 1 : span[1] - 1].strip(_WHITE)
        return self._with(span[1] - 1, _encode(item) if empty else b"," + _encode(item))

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
