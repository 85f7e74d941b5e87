"""What has been read of one answer so far, within bounds of memory (SPEC Y-2), and the `Answer` made of it at the end.

A dialect is a subclass that says where its fields are; splitting bytes into events and bodies is `answer`'s business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import xxhash

from breakloop.model.answer import Answer, Usage
from breakloop.model.call import ToolCall
from breakloop.wire.content import arguments, count, load

TEXT_MAX_CHARS: Final = 64 * 1024
CALLS_MAX: Final = 1000
TEXTS_MAX: Final = 1000
ARGUMENTS_MAX_CHARS: Final = 256 * 1024  # of all calls; what follows stands as one digest a call
_WORD_MAX: Final = 200
_PIECES_MAX: Final = 256
_TOKENS_MAX: Final = 10**12  # nobody sold so many at once: a number like that is no number of tokens
DONE: Final = b"[DONE]"
_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes


class Pieces:
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


class PartOfCall:
    """A call that the model is making: its arguments come in pieces, or as a value all at once."""

    __slots__ = ("_over", "_pieces", "_spelled", "call_id", "name")

    def __init__(self, name: str, call_id: str = "") -> None:
        self.name = name
        self.call_id = call_id
        self._pieces = Pieces()
        self._spelled = False  # what is there came as a value
        self._over: Any = None  # digest of what there was no room for

    def add(self, piece: str, room: int) -> None:
        """Take the next piece, of which `room` characters may be kept. Pieces replace a value."""
        if self._spelled:
            self._pieces, self._spelled = Pieces(), False
        self._put(piece, room)

    def set(self, value: object, room: int) -> int:
        """Take arguments as a value, instead of any pieces; return how much room that took."""
        said = arguments(value)
        self._pieces, self._spelled, self._over = Pieces(), True, None
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


class Gathered(ABC):
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
        self._texts: dict[int, Pieces] = {}
        self._text: int | None = None  # the number of the one that `_write` continues
        self._write: Callable[[str], object] = _nowhere
        self._room = TEXT_MAX_CHARS
        self._calls: dict[int, PartOfCall] = {}
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
            text = Pieces()
            if len(self._texts) < TEXTS_MAX:
                self._texts[number] = text
        self._text = number
        self._write = text.add

    def said(self, number: int) -> bool:
        """Say whether there is a text of this number."""
        return number in self._texts

    def call(self, number: int) -> PartOfCall | None:
        """Return the call of this number, if it is being made."""
        return self._calls.get(number)

    def begin(self, number: int, name: str, call_id: str = "") -> PartOfCall:
        """Begin a call, in place of any other of this number. Of too many, the last are not kept."""
        call = PartOfCall(name, call_id)
        if len(self._calls) < CALLS_MAX or number in self._calls:
            self._calls[number] = call
        return call

    def argue(self, call: PartOfCall, piece: str) -> None:
        """Add to the arguments of a call."""
        room = self._arguments_room
        call.add(piece, room)
        self._arguments_room = max(0, room - len(piece))

    def settle(self, call: PartOfCall, value: object) -> None:
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
