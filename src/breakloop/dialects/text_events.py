"""Server-Sent Events that add to one text and differ in nothing but this piece of it, as most events of a stream do.
Once one of them was decoded, the pieces of the next are found by what is before and after them, and are kept until the
listener has to know the text. Then they are decoded together.

Some servers pad their events to hide the length of the pieces: OpenAI with letters in a field of their own, Anthropic
with spaces before the last brace. The padding may differ, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

_EVENT_MAX_BYTES: Final = 4096  # of the event that is kept; a larger one is rare, and a hundred may be decoded at once
_PADDING_MAX_BYTES: Final = 256
_DATA: Final = b"data: "
_CLOSE: Final = b"}\n\n"
_PADDING_FIELD: Final = b'"obfuscation":"'
_PADDED_CLOSE: Final = b'"}\n\n'

_decode_text = msgspec.json.Decoder(str).decode


class TextPiece(NamedTuple):
    """All that an event says which adds to one text and has no other effect."""

    number: int  # of the text
    piece: str
    field: bytes  # the name of its field
    choice: int
    part: int
    is_reasoning: bool = False


class TextEvents:
    """Collects the pieces of a text from events that are alike.

    Such an event consists of what is before the piece, the piece, what is after it, the padding, and its end. `data` is
    that of the first one.
    """

    __slots__ = (
        "_after", "_after_size", "_before", "_close", "_close_size", "_is_padding", "_pieces", "_rest", "_room",
        "_start", "_stop", "data", "text",
    )  # fmt: skip

    def __init__(self, text: TextPiece, event: bytes, start: int, end: int, data: bytes) -> None:
        """`event` is the first one. Its piece is between the two positions."""
        after, close = event[end : -len(_CLOSE)], _CLOSE
        before_padding, field, padding = after.partition(_PADDING_FIELD)
        if padding.find(b'"') == len(padding) - 1 and field:
            after, close, self._is_padding = before_padding + field, _PADDED_CLOSE, _is_alphanumeric
        else:
            after, self._is_padding = after.rstrip(b" "), _is_blank
        self.text = text
        self.data = data
        self._room = 0  # the pieces that may still be collected have less than so many bytes
        self._pieces: list[bytes] = []
        self._before, self._start = event[:start], start
        self._after, self._after_size = after, len(after)
        self._close, self._close_size = close, len(close)
        self._rest, self._stop = after + close, -len(after + close)

    def has_same_start(self, event: bytes) -> bool:
        """Return whether an event is the same up to the piece."""
        return event.startswith(self._before)

    def allow(self, room: int) -> None:
        """Collect pieces of less than `room` bytes together."""
        self._room = room

    def add(self, event: bytes) -> bool:
        """Collect the piece of an event; return whether it is one of these, and there was room."""
        piece = event[self._start : self._stop]
        if b'"' in piece or self._before + piece + self._rest != event:
            piece = self._padded_piece(event)
        room = self._room - len(piece)
        if room <= 0 or not piece:
            return False
        self._room = room
        self._pieces.append(piece)
        return True

    def _padded_piece(self, event: bytes) -> bytes:
        """Return the piece of an event that differs in the padding, too; b"" if it differs in anything else."""
        end = event.find(b'"', self._start)
        after, stop = end + self._after_size, len(event) - self._close_size
        if not (event.startswith(self._before) and event.startswith(self._after, end)):
            return b""
        is_padded = after < stop and event.endswith(self._close) and self._is_padding(event[after:stop])
        return event[self._start : end] if is_padded else b""

    def take(self) -> list[bytes]:
        """Return the pieces that were collected, as they are spelled in JSON."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def event(self, piece: bytes) -> bytes:
        """Return the event that had this piece, without padding."""
        return b"%b%b%b" % (self._before, piece, self._rest)


def decoded(pieces: list[bytes]) -> str | None:
    """Return the text of pieces; None if they have to be decoded one by one. One of them may be no JSON, half a
    character, or end in a backslash, so that the quote after it is part of the text.
    """
    spelled = b"".join(pieces)
    if b"\\" in spelled and (b"\\u" in spelled or any(piece.endswith(b"\\") for piece in pieces)):
        return None
    try:
        if not spelled.isascii():
            for piece in pieces:
                piece.decode()
        return _decode_text(b'"%b"' % spelled)
    except ValueError:
        return None


def _is_alphanumeric(padding: bytes) -> bool:
    return len(padding) <= _PADDING_MAX_BYTES and padding.isalnum()


def _is_blank(padding: bytes) -> bool:
    return len(padding) <= _PADDING_MAX_BYTES and not padding.strip(b" ")


def only_data(event: bytes) -> bytes:
    """Return the data of a piece of a stream that is exactly one event in its usual form; b"" for any other piece."""
    if not event.endswith(_CLOSE) or len(event) > _EVENT_MAX_BYTES or b"\\" in event:
        return b""
    name, _, line = event[:-2].rpartition(b"\n")
    if name and (b"\n" in name or not name.startswith(b"event: ")):
        return b""
    return line[len(_DATA) :] if line.startswith(_DATA) else b""


def text_events(event: bytes, data: bytes, text: TextPiece) -> TextEvents | None:
    """Return the collector for events like this one, given with its data and what it says; None if its piece is not
    found for certain.
    """
    field, piece = b'"%b"' % text.field, text.piece.encode()
    before = field + b':"'
    start = event.find(before) + len(before)
    if event.count(field) != 1 or not event.startswith(before + piece + b'"', start - len(before)):
        return None
    return TextEvents(text, event, start, start + len(piece), data)
