"""Reading an answer while it passes: `reader` selects dialect and framing, `feed` takes the bytes, `answer` returns the
result. Reading never delays or changes a byte, and no input can make it fail.

The caller removes the HTTP framing; `PassingAnswer` undoes compression. `ListeningReader` also reports the stream to a
listener, and can end it early in its dialect's own way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from breakloop.dialects import registry
from breakloop.dialects.answers import (
    EVENT_MAX_BYTES,
    AnswerBuilder,
    SseParser,
    StreamEnd,
    StreamListener,
    StreamState,
)
from breakloop.dialects.encoding import EncodingError, Unpacker
from breakloop.model.call import Answer

Form = Literal["stream", "body"]
STREAM: Final = "stream"
BODY: Final = "body"

UNPACKED_MAX: Final = 64 * 1024 * 1024
BODY_MAX_BYTES: Final = 10 * 1024 * 1024
# A larger piece does not come from a network read: it was decompressed from a small one. A quarter of a megabyte of
# gzip can hold forty megabytes of tiny events, which take half a minute to read.
_PIECE_MAX_BYTES: Final = 1024 * 1024
_BAD_MAX: Final = 100  # unreadable events in a row after which reading stops
_TAIL_BYTES: Final = 4096  # kept of a body that is too large: token counts are near its end
_EVENTS: Final = b"text/event-stream"
_JSON: Final = frozenset((b"application/json", b"text/json"))
_BAD: Final = (ValueError, RecursionError)  # broken JSON, an unexpected type, unlimited nesting


class AnswerReader(Protocol):
    """Reads one answer."""

    @property
    def unreadable(self) -> int:
        """The number of events, or bodies, that could not be read."""
        ...

    def feed(self, content: bytes) -> None:
        """Read the next bytes, without HTTP framing and compression."""
        ...

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return the answer; `complete`: by HTTP, all of it was received."""
        ...


def reader(
    dialect: str, content_type: bytes, *, streamed: bool = False, max_bytes: int = BODY_MAX_BYTES
) -> AnswerReader | None:
    """Return a reader; None if there is nothing to read. `streamed` (requested) applies if no type is given."""
    form = form_of(dialect, content_type, streamed=streamed)
    return reader_of(dialect, form, max_bytes) if form else None


def form_of(dialect: str, content_type: bytes, *, streamed: bool = False) -> Form | None:
    """Return whether an answer is a `STREAM` or a `BODY`; None if there is nothing to read."""
    if dialect not in registry.DIALECTS:
        return None
    kind = content_type.partition(b";")[0].strip().lower()
    if kind == _EVENTS or (not kind and streamed):
        return STREAM
    return BODY if kind in _JSON or kind.endswith(b"+json") or not kind else None


def reader_of(dialect: str, form: Form, max_bytes: int = BODY_MAX_BYTES) -> AnswerReader:
    """Return the reader of an answer in this form."""
    builder = registry.DIALECTS[dialect].answer_builder()
    if form == STREAM:
        return StreamReader(builder, min(max_bytes, EVENT_MAX_BYTES))
    return WholeAnswerReader(builder, max_bytes)


GiveUp = Callable[[str], None]  # called with the reason


def unpacker(encoding: bytes) -> Unpacker | None:
    """Return a decompressor for a `Content-Encoding`; None if the answer is not compressed. Raises `EncodingError`."""
    if not encoding or encoding.strip().lower() == b"identity":
        return None
    return Unpacker(encoding, UNPACKED_MAX)


class PassingAnswer:
    """Decompresses an answer while it passes and feeds it to its reader. If it cannot be read it passes unread, and
    `give_up` is called with the reason."""

    __slots__ = ("_give_up", "_reader", "_unpacker")

    def __init__(self, reader: AnswerReader, unpacker: Unpacker | None, give_up: GiveUp) -> None:
        self._reader: AnswerReader | None = reader
        self._unpacker = unpacker
        self._give_up = give_up

    def feed(self, content: list[bytes]) -> bool:
        """Read what was just passed on; return whether to cut the answer. This class never does, subclasses may."""
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
        """Return the answer as far as it was read."""
        if self._reader is not None:
            try:
                answer = self._reader.answer(status, complete=complete)
                if self._reader.unreadable:
                    self._give_up("unreadable")
                return answer
            except Exception:  # noqa: BLE001 - as in `feed`
                self._stop("fault")
        return Answer(status, complete=complete)

    def _stop(self, reason: str) -> None:
        self._reader = self._unpacker = None
        self._give_up(reason)


class StreamReader:
    """Reads events as they come."""

    __slots__ = ("_bad", "_builder", "_events", "_read", "_split")

    def __init__(self, builder: AnswerBuilder, max_bytes: int = EVENT_MAX_BYTES) -> None:
        self._builder = builder
        self._events = SseParser(max_bytes)
        self._split: Callable[[bytes], Sequence[bytes]] = self._events.feed
        self._bad = 0  # unreadable events in a row
        self._read = builder.read_event

    @property
    def unreadable(self) -> int:
        """Events that were too long or not JSON."""
        return self._builder.unreadable + self._events.skipped

    def feed(self, content: bytes) -> None:
        """Read the events that these bytes complete. Reading stops at content that is made to be expensive."""
        if len(content) > _PIECE_MAX_BYTES:
            self._stop()
        else:
            self._take(self._split(content))

    def _take(self, payloads: Sequence[bytes]) -> None:
        builder = self._builder
        for payload in payloads:
            before = builder.unreadable
            try:
                self._read(payload)
            except _BAD:
                builder.unreadable += 1
            self._bad = self._bad + 1 if builder.unreadable > before else 0
            if self._bad > _BAD_MAX:
                self._stop()
                break

    def _stop(self) -> None:
        self._builder.unreadable += 1
        self._split = _no_events

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return the answer. The end mark of the dialect takes precedence over how the connection ended."""
        builder = self._builder
        before = builder.unreadable
        self._take(self._events.finish())
        if not complete:
            builder.unreadable = before  # half an event is to be expected
        return builder.build(status, complete=builder.is_complete(closed=complete))


def _no_events(_content: bytes) -> Sequence[bytes]:
    return ()


class ListeningReader(StreamReader):
    """Reads events, reports them to a listener, and can end the stream. For dialects with `ends_streams`."""

    __slots__ = ("_dialect", "_read_event", "_state", "_stopped")

    def __init__(self, dialect: str, listener: StreamListener) -> None:
        self._dialect = registry.DIALECTS[dialect]
        builder = self._dialect.answer_builder(listener)
        super().__init__(builder)
        self._state = StreamState(self._dialect.kept_events)
        self._read_event = builder.read_event
        self._read = self._read_and_note
        self._stopped = False

    def _read_and_note(self, payload: bytes) -> None:
        builder = self._builder
        builder.has_spoken = False
        self._read_event(payload)
        if builder.has_spoken:  # as most events; these need no search
            self._state.last = payload
        else:
            self._state.note(payload)

    def _stop(self) -> None:
        super()._stop()
        self._stopped = True

    def ending(self, choices: Sequence[int], chars: int) -> bytes:
        """Return the events that would end the stream now; b"" if that is impossible, or it has ended.

        `choices` are the answers that are still open, `chars` is the length of all text and reasoning.
        """
        builder = self._builder
        if self._stopped or builder.ended or builder.error or not choices or (builder.SINGLE and builder.finish):
            return b""
        usage = None if builder.usage is None else builder.read_usage(builder.usage)
        return self._dialect.end_stream(StreamEnd(self._state, builder.current_text(), usage, choices, chars))


class WholeAnswerReader:
    """Collects a body and reads it at its end. If it is too large, its token counts may still be found."""

    __slots__ = ("_body", "_builder", "_max_bytes", "_size", "_tail", "unreadable")

    def __init__(self, builder: AnswerBuilder, max_bytes: int = BODY_MAX_BYTES) -> None:
        self._builder = builder
        self._max_bytes = max_bytes
        self._body: bytes | bytearray = b""  # not a list: pieces of one byte would take 40 times their size
        self._size = 0
        self._tail = b""
        self.unreadable = 0

    def feed(self, content: bytes) -> None:
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
        """Return the answer. It is complete by HTTP, and if it could be decoded or was too large to be."""
        builder = self._builder
        body, self._body = bytes(self._body), b""
        if body.startswith((b"data:", b"event:")):  # a stream, whatever its content type
            events = StreamReader(builder, self._max_bytes)
            events.feed(body)
            return events.answer(status, complete=complete)
        try:
            if self._size > self._max_bytes:
                self.unreadable = 1
                self._read_usage_from_tail()
            elif body and not builder.read_body(body):
                self.unreadable, complete = 1, False
        except _BAD:
            self.unreadable = 1
        failed = bool(builder.error) and builder.FAILS and status < 400
        return builder.build(status, complete=complete and not failed)

    def _read_usage_from_tail(self) -> None:
        # Quotes inside a text are escaped, so this is a field.
        _, found, after = self._tail.rpartition(b'"%s":' % self._builder.USAGE.encode())
        if found:
            fields, _ = json.JSONDecoder().raw_decode(after.decode("utf-8", "replace").lstrip())
            self._builder.usage = fields if isinstance(fields, dict) else None
