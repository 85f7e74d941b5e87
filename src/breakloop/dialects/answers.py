"""What has been read of one answer so far, within bounds of memory (SPEC Y-2), and the `Answer` made of it at the end.

A dialect is a subclass that says where its fields are; splitting bytes into events and bodies is `answer`'s business.

Server-Sent Events, split as they pass: bytes in, the `data` of complete events out. However the bytes are cut into
pieces, the events are the same. What an event says is the dialects' business; event names are not kept, because every
dialect that has them repeats them inside its JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import xxhash

from breakloop.dialects.base import arguments, count, load
from breakloop.model.call import Answer, ToolCall, Usage

TEXT_MAX_CHARS: Final = 64 * 1024
CALLS_MAX: Final = 1000
TEXTS_MAX: Final = 1000
ARGUMENTS_MAX_CHARS: Final = 256 * 1024  # of all calls; what follows stands as one digest a call
_WORD_MAX: Final = 200
_PIECES_MAX: Final = 256
_TOKENS_MAX: Final = 10**12  # nobody sold so many at once: a number like that is no number of tokens
DONE: Final = b"[DONE]"
_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes


class TextPieces:
    """A text that comes in pieces of some characters, which would take ten times its memory if all were kept."""

    __slots__ = ("_blocks", "_pieces")

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Take the next piece."""
        pieces = self._pieces
        pieces.append(piece)
        if len(pieces) == _PIECES_MAX:
            self._blocks.append("".join(pieces))
            pieces.clear()

    def text(self) -> str:
        """Return all of it."""
        return "".join(self._blocks + self._pieces)


class PartialCall:
    """A call that the model is making: its arguments come in pieces, or as a value all at once."""

    __slots__ = ("_over", "_pieces", "_spelled", "call_id", "name")

    def __init__(self, name: str, call_id: str = "") -> None:
        self.name = name
        self.call_id = call_id
        self._pieces = TextPieces()
        self._spelled = False  # what is there came as a value
        self._over: Any = None  # digest of what there was no room for

    def add(self, piece: str, room: int) -> None:
        """Take the next piece, of which `room` characters may be kept. Pieces replace a value."""
        if self._spelled:
            self._pieces, self._spelled = TextPieces(), False
        self._put(piece, room)

    def set(self, value: object, room: int) -> int:
        """Take arguments as a value, instead of any pieces; return how much room that took."""
        said = arguments(value)
        self._pieces, self._spelled, self._over = TextPieces(), True, None
        self._put(said, room)
        return min(len(said), room)

    def _put(self, said: str, room: int) -> None:
        if len(said) <= room:
            self._pieces.add(said)
            return
        self._pieces.add(said[:room])
        if self._over is None:
            self._over = xxhash.xxh3_64()
        self._over.update(said[room:].encode("utf-8", "surrogatepass"))

    def made(self) -> ToolCall:
        """Return the call as it stands, its arguments in one spelling where they are whole."""
        said = self._pieces.text()
        if self._over is not None:
            said = f"{said}<more:{self._over.hexdigest()}>"
        elif not self._spelled:
            said = arguments(said)
        return ToolCall(joined(self.name), joined(said))


class AnswerBuilder(ABC):
    """One answer being read. Texts and calls are kept by number, and stand in the order of their numbers at the end."""

    __slots__ = (
        "_arguments_room",
        "_calls",
        "_room",
        "_text",
        "_texts",
        "_write",
        "ended",
        "error",
        "finish",
        "gave_up",
        "model",
        "response_id",
        "usage",
    )

    USAGE: str = "usage"  # where the dialect keeps its count of tokens
    FAILS: bool = True  # an error inside the answer means that it did not come to its proper end

    def __init__(self) -> None:
        self._texts: dict[int, TextPieces] = {}
        self._text: int | None = None  # the number of the one that `_write` continues
        self._write: Callable[[str], object] = _nowhere
        self._room = TEXT_MAX_CHARS
        self._calls: dict[int, PartialCall] = {}
        self._arguments_room = ARGUMENTS_MAX_CHARS
        self.usage: dict[str, Any] | None = None
        self.model = ""
        self.response_id = ""
        self.finish = ""
        self.error = ""
        self.ended = False  # the dialect's own end mark has come
        self.gave_up = 0  # events or bodies that could not be read

    @abstractmethod
    def event(self, payload: bytes) -> None:
        """Read one event of a stream. Raises nothing but `ValueError` and `RecursionError`."""

    @abstractmethod
    def whole(self, fields: dict[str, Any]) -> None:
        """Read an answer that came in one piece, or one event that had to be decoded tolerantly."""

    @abstractmethod
    def tokens(self, fields: dict[str, Any]) -> Usage | None:
        """Read the dialect's count of tokens; None where there is none."""

    def body(self, body: bytes) -> bool:
        """Read a body that came in one piece; return whether it could be decoded."""
        fields = load(body)
        if isinstance(fields, dict):
            self.whole(fields)
        return fields is not None

    def tolerantly(self, payload: bytes) -> None:
        """Read an event that is not as expected: the end mark, odd types, or no JSON at all."""
        if payload.startswith(DONE):
            self.ended = True
            return
        fields = load(payload)
        if isinstance(fields, dict):
            self.whole(fields)
        else:
            self.gave_up += 1

    def say(self, number: int, piece: str) -> None:
        """Add to the text of this number: a choice, a block or an item."""
        room, size = self._room, len(piece)
        self._room = room - size  # below zero: how much was not kept
        if size > room:
            piece = piece[: max(0, room)]
        if number != self._text:
            self._turn_to(number)
        self._write(piece)

    def _turn_to(self, number: int) -> None:
        text = self._texts.get(number)
        if text is None:
            text = TextPieces()
            if len(self._texts) < TEXTS_MAX:
                self._texts[number] = text
        self._text = number
        self._write = text.add

    def said(self, number: int) -> bool:
        """Say whether there is a text of this number."""
        return number in self._texts

    def call(self, number: int) -> PartialCall | None:
        """Return the call of this number, if it is being made."""
        return self._calls.get(number)

    def begin(self, number: int, name: str, call_id: str = "") -> PartialCall:
        """Begin a call, in place of any other of this number. Of too many, the last are not kept."""
        call = PartialCall(name, call_id)
        if len(self._calls) < CALLS_MAX or number in self._calls:
            self._calls[number] = call
        return call

    def argue(self, call: PartialCall, piece: str) -> None:
        """Add to the arguments of a call."""
        room = self._arguments_room
        call.add(piece, room)
        self._arguments_room = max(0, room - len(piece))

    def settle(self, call: PartialCall, value: object) -> None:
        """Give a call its arguments as a value."""
        self._arguments_room -= call.set(value, self._arguments_room)

    def fail(self, *words: object) -> None:
        """Note an error by the first word that names it; messages are not kept, for they may quote the prompt."""
        for candidate in words:
            name = str(candidate) if isinstance(candidate, int) else candidate
            if isinstance(name, str) and name and len(name) <= 64 and name.isprintable() and " " not in name:
                self.error = name
                return
        self.error = "error"

    def forget(self) -> None:
        """Drop texts and calls, because the whole of them follows."""
        self._texts.clear()
        self._calls.clear()
        self._text = None
        self._room, self._arguments_room = TEXT_MAX_CHARS, ARGUMENTS_MAX_CHARS

    def is_complete(self, *, closed: bool) -> bool:
        """Say whether a stream came to its proper end; `closed` is whether the connection says so."""
        if self.error and self.FAILS:
            return False
        return self.ended or (closed and bool(self.finish))

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what was read."""
        texts = [text for number in sorted(self._texts) if (text := self._texts[number].text())]
        calls, names = self._calls, (self.model, self.response_id, self.finish)
        if not "".join(names).isascii():
            names = (joined(self.model), joined(self.response_id), joined(self.finish))
        return _new(
            Answer,
            (
                status,
                joined(texts[0] if len(texts) == 1 else "\n".join(texts)),
                tuple([calls[number].made() for number in sorted(calls)]) if calls else (),
                None if self.usage is None else self.tokens(self.usage),
                *names,
                self.error,
                complete,
                max(0, -self._room),
            ),
        )


def word(value: object) -> str:
    """Return a name, an id or a reason; "" for anything that is none."""
    return value[:_WORD_MAX] if isinstance(value, str) else ""


def number(value: object, other: int = 0) -> int:
    """Return a position; `other` for anything that is none."""
    return value if isinstance(value, int) else other


def tokens(fields: object, *names: str) -> int:
    """Return the first of these counts that there is; 0 where there is none."""
    if not isinstance(fields, dict):
        return 0
    for name in names:
        found = fields.get(name)
        if type(found) is not int:  # nearly always it is
            found = count(found)
        if found is not None:
            return found if 0 <= found <= _TOKENS_MAX else 0
    return 0


def joined(value: str) -> str:
    """Join halves of characters that came in two pieces, and replace those whose other half never came."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def _nowhere(_piece: str) -> None:
    """Where texts go before the first has its number."""


# An event that is longer (SPEC Y-2) is passed over and counted. Images travel in events of some megabytes.
EVENT_MAX_BYTES: Final = 4 * 1024 * 1024
_LF: Final = 10  # as numbers, because looking for one of these in bytes is three times as quick
_CR: Final = 13
_BOM: Final = b"\xef\xbb\xbf"
_COMMENT: Final = b":"


class SseParser:
    """Splits one stream. Holds at most one unfinished event, and of that no more than `max_bytes`."""

    __slots__ = ("_after_cr", "_between", "_lines", "_max_bytes", "_partial", "_raw", "_size", "_skipping", "skipped")

    def __init__(self, max_bytes: int = EVENT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._between = True  # nothing is held: the next byte begins an event
        self._partial = bytearray()  # a line without its end
        self._lines: list[bytes] = []  # data of the event that is not at its end
        self._size = 0  # of these, with their field names
        self._raw = False  # this event is a JSON object without any field name
        self._skipping = False  # this event is too long
        self._after_cr = False  # the next line feed belongs to the line end before it
        self.skipped = 0

    def feed(self, data: bytes) -> Sequence[bytes]:
        """Take the next bytes; return the data of the events that they complete."""
        # Nearly every piece is one event: a line of data, and the event's name before it in some dialects.
        if self._between and data.endswith(b"\n\n") and _CR not in data and len(data) <= self._max_bytes:
            start = 0 if data.startswith(b"data: ") else data.find(b"\n") + 1 if data.startswith(b"event: ") else -1
            if start == 0 or (start > 0 and data.startswith(b"data: ", start)):
                payload = data[start + 6 : -2]
                if payload and _LF not in payload:
                    return (payload,)
        return self._split(data)

    def finish(self) -> Sequence[bytes]:
        """Return the event that lacks nothing but the empty line at its end, if there is one."""
        return self._split(b"\n\n")

    def _split(self, data: bytes) -> Sequence[bytes]:
        if self._after_cr or _CR in data:
            data = self._with_line_feeds(data)
        partial = self._partial
        found: list[bytes] = []
        if _LF in data:
            if partial:
                partial += data
                data = bytes(partial)
                partial.clear()
            lines = data.split(b"\n")
            partial += lines.pop()
            self._sort(lines, found)
        else:
            partial += data
        if len(partial) > self._max_bytes:
            self._skip()
            partial[:] = _COMMENT  # so that the rest of this line is taken for nothing else
        self._between = not (partial or self._size or self._skipping or self._after_cr)
        return found

    def _with_line_feeds(self, data: bytes) -> bytes:
        """CR LF, CR and LF all end a line, and a piece may end between CR and LF."""
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == _LF:
                data = data[1:]
        if data.endswith(b"\r"):
            self._after_cr = True
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if _CR in data else data

    def _sort(self, lines: list[bytes], found: list[bytes]) -> None:
        """Take complete lines one by one: an empty one ends an event."""
        for line in lines:
            if not line:
                if self._size or self._skipping:
                    self._end(found)
            elif len(line) > self._max_bytes:
                self._skip()
            elif line.startswith(b"data:"):
                if self._raw:
                    self._end(found)
                self._keep(line)
            elif not line.startswith((b"event:", _COMMENT)):
                self._other(line.removeprefix(_BOM))

    def _other(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._keep(line)
        elif self._raw or (line.startswith(b"{") and not self._size):
            # Servers that fail in the middle of a stream forget that it is one.
            self._raw = True
            self._keep(line)

    def _keep(self, line: bytes) -> None:
        if self._skipping:
            return
        self._size += len(line)
        if self._size > self._max_bytes:
            self._skip()
        elif self._raw:
            self._lines.append(line)
        else:
            self._lines.append(line[6:] if line.startswith(b" ", 5) else line[5:])

    def _end(self, found: list[bytes]) -> None:
        lines = self._lines
        payload = lines[0] if len(lines) == 1 else b"\n".join(lines)
        if payload:
            found.append(payload)
        lines.clear()
        self._size = 0
        self._raw = self._skipping = False

    def _skip(self) -> None:
        if not self._skipping:
            self._skipping = True
            self.skipped += 1
        self._lines.clear()
