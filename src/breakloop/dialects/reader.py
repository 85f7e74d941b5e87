"""Reads an answer while it passes: `reader` picks the dialect and the framing, `feed` takes what passes, `answer` says
what it was. Nothing here delays or changes a byte, and nothing that comes can make it fail.

Taking off HTTP's framing is the caller's task, and compression is `PassingAnswer`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from breakloop.dialects import anthropic, gemini, mcp, openai_chat, openai_legacy, openai_responses
from breakloop.dialects.answers import EVENT_MAX_BYTES, AnswerBuilder, SseParser
from breakloop.dialects.anthropic import AnthropicAnswer
from breakloop.dialects.encoding import EncodingError, Unpacker
from breakloop.dialects.gemini import GeminiAnswer
from breakloop.dialects.mcp import McpAnswer
from breakloop.dialects.openai_chat import ChatAnswer
from breakloop.dialects.openai_legacy import CompletionsAnswer, EmbeddingsAnswer
from breakloop.dialects.openai_responses import ResponsesAnswer
from breakloop.model.call import Answer

Form = Literal["stream", "body"]
STREAM: Final = "stream"
BODY: Final = "body"

UNPACKED_MAX: Final = 64 * 1024 * 1024
BODY_MAX_BYTES: Final = 10 * 1024 * 1024
# No network piece is so large: it was unpacked from one that was made to be (a quarter of a megabyte of gzip can hold
# forty of tiny events, which take half a minute to read).
_PIECE_MAX_BYTES: Final = 1024 * 1024
_BAD_MAX: Final = 100  # events in a row that cannot be read: the rest will be no better
_TAIL_BYTES: Final = 4096  # of a body that is too large: counts stand near its end
_EVENTS: Final = b"text/event-stream"
_JSON: Final = frozenset((b"application/json", b"text/json"))
_BAD: Final = (ValueError, RecursionError)  # broken JSON, a type that is not expected, nesting without end

_DIALECTS: Final[dict[str, Callable[[], AnswerBuilder]]] = {
    openai_chat.DIALECT: ChatAnswer,
    openai_responses.DIALECT: ResponsesAnswer,
    openai_legacy.COMPLETIONS: CompletionsAnswer,
    openai_legacy.EMBEDDINGS: EmbeddingsAnswer,
    anthropic.DIALECT: AnthropicAnswer,
    gemini.DIALECT: GeminiAnswer,
    mcp.DIALECT: McpAnswer,
}


class AnswerReader(Protocol):
    """Reads one answer."""

    @property
    def gave_up(self) -> int:
        """How much of it could not be read: events, or the body."""
        ...

    def feed(self, content: bytes) -> None:
        """Take the next bytes, without HTTP's framing and unpacked."""
        ...

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what was read; `complete` is whether HTTP says that all has come."""
        ...


def reader(
    dialect: str, content_type: bytes, *, streamed: bool = False, max_bytes: int = BODY_MAX_BYTES
) -> AnswerReader | None:
    """Return a reader; None where there is nothing to read. `streamed` (as asked) counts where no type is given."""
    form = form_of(dialect, content_type, streamed=streamed)
    return reader_of(dialect, form, max_bytes) if form else None


def form_of(dialect: str, content_type: bytes, *, streamed: bool = False) -> Form | None:
    """Return how an answer comes, `STREAM` or `BODY`, without making its reader; None where nothing is to be read."""
    if dialect not in _DIALECTS:
        return None
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == _EVENTS or (not kind and streamed):
        return STREAM
    return BODY if kind in _JSON or kind.endswith(b"+json") or not kind else None


def reader_of(dialect: str, form: Form, max_bytes: int = BODY_MAX_BYTES) -> AnswerReader:
    """Return the reader of an answer that comes in this form."""
    gathered = _DIALECTS[dialect]()
    return (
        StreamReader(gathered, min(max_bytes, EVENT_MAX_BYTES))
        if form == STREAM
        else WholeAnswerReader(gathered, max_bytes)
    )


GiveUp = Callable[[str], None]  # called with the reason


def unpacker(encoding: bytes) -> Unpacker | None:
    """Return what undoes the `Content-Encoding` of an answer; None for a plain one. Raises `EncodingError`."""
    if not encoding or encoding.strip().lower() == b"identity":
        return None
    return Unpacker(encoding, UNPACKED_MAX)


class PassingAnswer:
    """An answer that is read while it passes: unpacked if it is compressed, and given to the dialect's reader. Where it
    cannot be read it passes unread, and `give_up` gets the reason."""

    __slots__ = ("_give_up", "_reader", "_unpacker")

    def __init__(self, reader: AnswerReader, unpacker: Unpacker | None, give_up: GiveUp) -> None:
        self._reader: AnswerReader | None = reader
        self._unpacker = unpacker
        self._give_up = give_up

    def feed(self, content: list[bytes]) -> bool:
        """Take what has just been passed on; return whether the answer is to be cut, which only a subclass may ask."""
        reader = self._reader
        if reader is None:
            return False
        try:
            for piece in content:
                reader.feed(piece if self._unpacker is None else self._unpacker.feed(piece))
        except EncodingError as error:
            self._stop(error.reason)
        except Exception:  # noqa: BLE001 - the outermost edge: a fault in reading must not end an answer
            self._stop("fault")
        return False

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what was read, as far as it was."""
        if self._reader is not None:
            try:
                answer = self._reader.answer(status, complete=complete)
                if self._reader.gave_up:
                    self._give_up("unreadable")
                return answer
            except Exception:  # noqa: BLE001 - as in `feed`
                self._stop("fault")
        return Answer(status, complete=complete)

    def _stop(self, why: str) -> None:
        self._reader = self._unpacker = None
        self._give_up(why)


class StreamReader:
    """Reads events as they come."""

    __slots__ = ("_bad", "_events", "_gathered", "_read", "_split")

    def __init__(self, gathered: AnswerBuilder, max_bytes: int = EVENT_MAX_BYTES) -> None:
        self._gathered = gathered
        self._events = SseParser(max_bytes)
        self._split: Callable[[bytes], Sequence[bytes]] = self._events.feed
        self._bad = 0  # events that could not be read, one after the other
        self._read = gathered.event

    @property
    def gave_up(self) -> int:
        """Events that could not be read, because they were too long or no JSON."""
        return self._gathered.gave_up + self._events.skipped

    def feed(self, content: bytes) -> None:
        """Read the events that these bytes complete. What is made to cost time is not read on (Y-2)."""
        if len(content) > _PIECE_MAX_BYTES:
            self._stop()
        else:
            self._take(self._split(content))

    def _take(self, payloads: Sequence[bytes]) -> None:
        gathered = self._gathered
        for payload in payloads:
            before = gathered.gave_up
            try:
                self._read(payload)
            except _BAD:
                gathered.gave_up += 1
            self._bad = self._bad + 1 if gathered.gave_up > before else 0
            if self._bad > _BAD_MAX:
                self._stop()
                break

    def _stop(self) -> None:
        self._gathered.gave_up += 1
        self._split = _nothing

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what the events said. An end mark of the dialect counts more than how the connection ended."""
        gathered = self._gathered
        before = gathered.gave_up
        self._take(self._events.finish())
        if not complete:
            gathered.gave_up = before  # half an event is no surprise
        return gathered.answer(status, complete=gathered.is_complete(closed=complete))


def _nothing(_content: bytes) -> Sequence[bytes]:
    return ()


class WholeAnswerReader:
    """Collects a body and reads it at its end. Of one that is too large, the count of tokens may still be found."""

    __slots__ = ("_body", "_gathered", "_max_bytes", "_size", "_tail", "gave_up")

    def __init__(self, gathered: AnswerBuilder, max_bytes: int = BODY_MAX_BYTES) -> None:
        self._gathered = gathered
        self._max_bytes = max_bytes
        self._body: bytes | bytearray = b""  # no list of pieces: those of one byte would take 40 times their size
        self._size = 0
        self._tail = b""
        self.gave_up = 0

    def feed(self, content: bytes) -> None:
        """Keep these bytes, or the last of them."""
        self._size += len(content)
        if self._size > self._max_bytes:
            self._tail = bytes((self._tail + self._body + content)[-_TAIL_BYTES:])
            self._body = b""
        elif not self._body:
            self._body = content
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += content

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what the body said. It is whole when HTTP says so and it can be decoded, or was not tried."""
        gathered = self._gathered
        body, self._body = bytes(self._body), b""
        if body.startswith((b"data:", b"event:")):  # whatever its type says
            events = StreamReader(gathered, self._max_bytes)
            events.feed(body)
            return events.answer(status, complete=complete)
        try:
            if self._size > self._max_bytes:
                self.gave_up = 1
                self._count_from_tail()
            elif body and not gathered.body(body):
                self.gave_up, complete = 1, False
        except _BAD:
            self.gave_up = 1
        failed = bool(gathered.error) and gathered.FAILS and status < 400
        return gathered.answer(status, complete=complete and not failed)

    def _count_from_tail(self) -> None:
        # Inside a text the quotes would be escaped, so this is a field.
        _, found, after = self._tail.rpartition(b'"%s":' % self._gathered.USAGE.encode())
        if found:
            fields, _ = json.JSONDecoder().raw_decode(after.decode("utf-8", "replace").lstrip())
            self._gathered.usage = fields if isinstance(fields, dict) else None
