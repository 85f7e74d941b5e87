"""Reading one answer while it passes, within bounded memory: the builder that dialects subclass, and the readers that
take the bytes (`feed`) and return the result (`answer`). Reading never delays or changes a byte, and no input can make
it fail. `framing` cuts a stream into events.

`AnswerBuilder` collects texts, calls and token counts and makes the `Answer` of them. A dialect's subclass knows where
its fields are. If the builder has a listener, it reports each piece as it comes.

`reader_for` selects the reader. The caller removes the HTTP framing; `PassingAnswer` undoes compression.
`ListeningReader` also reports the stream to a listener, and can end it early in its dialect's own way: `StreamState`
keeps what `Dialect.end_stream` needs.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import xxhash

from breakloop.dialects.content import LOADED_MAX_BYTES, arguments, count, is_dense, load
from breakloop.dialects.encoding import EncodingError, Unpacker
from breakloop.dialects.framing import BODY, EVENT_MAX_BYTES, STREAM, Form, event_parser
from breakloop.dialects.text_events import TextEvents, TextPiece, decoded, only_data, text_events
from breakloop.model.call import Answer, ToolCall, Usage

if TYPE_CHECKING:
    from breakloop.dialects.base import Dialect

TEXT_MAX_CHARS: Final = 64 * 1024
CALLS_MAX: Final = 1000
TEXTS_MAX: Final = 1000
ARGUMENTS_MAX_CHARS: Final = 256 * 1024  # of all calls; the rest is represented by one digest a call
WORD_MAX: Final = 200
_PIECES_MAX: Final = 256
TOKENS_MAX: Final = 10**12  # a larger number cannot be a number of tokens
DONE: Final = b"[DONE]"
_new: Final = tuple.__new__  # creates a named tuple in half the time of calling its class


class StreamListener(Protocol):
    """Follows a stream while it is read. `choice` is the number of an answer in the stream, `part` of a text in it."""

    def on_text(self, choice: int, part: int, piece: str) -> None: ...

    def on_reasoning(self, choice: int, part: int, piece: str) -> None: ...

    def on_arguments(self, choice: int, piece: str) -> None: ...

    def on_call(self, choice: int, name: str, arguments: str) -> None:
        """A call is complete. The last one of an answer is not reported."""
        ...

    def on_finish(self, choice: int) -> None: ...

    def room(self, choice: int, part: int, *, is_reasoning: bool) -> int:
        """Return at how many more characters of this text the listener has to get them. Fewer may be kept back."""
        ...


class TextPieces:
    """A text that comes in small pieces. They are joined in blocks: single pieces would take ten times the memory."""

    __slots__ = ("_blocks", "_pieces")

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        pieces = self._pieces
        pieces.append(piece)
        if len(pieces) == _PIECES_MAX:
            self._blocks.append("".join(pieces))
            pieces.clear()

    def text(self) -> str:
        return "".join(self._blocks + self._pieces)


class PartialCall:
    """A call that is being read. Its arguments come in pieces, or at once as a value."""

    __slots__ = ("_over", "_pieces", "_spelled", "call_id", "choice", "name", "size")

    def __init__(self, name: str, call_id: str = "", choice: int = 0) -> None:
        self.name = name
        self.call_id = call_id
        self.choice = choice
        self.size = 0  # characters of the arguments
        self._pieces = TextPieces()
        self._spelled = False  # the arguments came as a value
        self._over: Any = None  # digest of what exceeded the bound

    def add(self, piece: str, room: int) -> None:
        """Add a piece, of which at most `room` characters are kept. Pieces replace a value."""
        if self._spelled:
            self._pieces, self._spelled, self.size = TextPieces(), False, 0
        self.size += len(piece)
        self._put(piece, room)

    def set(self, spelled: str, room: int) -> int:
        """Replace the arguments by the spelling of a value; return how many characters are kept."""
        self._pieces, self._spelled, self._over = TextPieces(), True, None
        self.size = len(spelled)
        self._put(spelled, room)
        return min(len(spelled), room)

    def _put(self, piece: str, room: int) -> None:
        if len(piece) <= room:
            self._pieces.add(piece)
            return
        self._pieces.add(piece[:room])
        if self._over is None:
            self._over = xxhash.xxh3_64()
        self._over.update(piece[room:].encode("utf-8", "surrogatepass"))

    def given(self) -> str:
        """Return the arguments as they came, as far as they were kept, and a digest of the rest."""
        given = self._pieces.text()
        return given if self._over is None else f"{given}<more:{self._over.hexdigest()}>"

    def build(self) -> ToolCall:
        """Return the call, its arguments in one spelling if they are complete JSON."""
        given = self.given()
        if self._over is None and not self._spelled:
            given = arguments(given)
        return ToolCall(joined(self.name), joined(given))


class AnswerBuilder(ABC):
    """One answer being read. Texts and calls are kept by number and ordered by it at the end."""

    __slots__ = (
        "_arguments_room", "_calls", "_complete", "_incomplete", "_reports_calls", "_room", "_text", "_texts", "_write",
        "ended", "error", "finish", "has_reasoned", "has_spoken", "listener", "model", "response_id", "unreadable",
        "usage",
    )  # fmt: skip

    USAGE: str = "usage"  # the field that holds the dialect's token counts
    FAILS: bool = True  # an error inside the answer means that the answer is not complete
    SINGLE: bool = False  # a stream is one answer, whose texts follow each other; else each number is an answer
    NEEDS_IDS: bool = False  # the next request may have results of calls without the calls
    VALUES_ONCE: bool = False  # arguments that come as a value are not repeated later in the stream

    def __init__(self, listener: StreamListener | None = None) -> None:
        self.listener = listener
        # Set by each piece of text, or of reasoning, that the listener gets; reset by the stream reader.
        self.has_spoken = self.has_reasoned = False
        self._texts: dict[int, TextPieces] = {}
        self._text: int | None = None  # the number of the text that `_write` continues
        self._write: Callable[[str], object] = _discard
        self._room = TEXT_MAX_CHARS
        self._calls: dict[int, PartialCall] = {}
        self._reports_calls = listener is not None
        self._incomplete: PartialCall | None = None  # the call that the listener waits for
        self._complete = ToolCall("", "")  # the one that it got last
        self._arguments_room = ARGUMENTS_MAX_CHARS
        self.usage: dict[str, Any] | None = None
        self.model = ""
        self.response_id = ""
        self.finish = ""
        self.error = ""
        self.ended = False  # the dialect's end mark has come
        self.unreadable = 0  # events that could not be read

    @abstractmethod
    def read_event(self, payload: bytes) -> None:
        """Read one event of a stream. May raise `ValueError` and `RecursionError`, nothing else."""

    @abstractmethod
    def read_fields(self, fields: dict[str, Any]) -> None:
        """Read an answer that came as one body, or one event that had to be decoded leniently."""

    def text_piece(self, payload: bytes) -> TextPiece | None:  # noqa: ARG002
        """Return what an event says that only adds to a text; None for any other. May raise as `read_event` does."""
        return None

    @abstractmethod
    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        """Read the dialect's token counts; None if there are none."""

    def read_body(self, body: bytes) -> bool:
        """Read an answer that came as one body; return whether it could be decoded."""
        fields = load(body)
        if isinstance(fields, dict):
            self.read_fields(fields)
        return fields is not None

    def read_leniently(self, payload: bytes) -> None:
        """Read an event that is not as expected: the end mark, odd types, or no JSON at all."""
        if payload.startswith(DONE):
            self.ended = True
            return
        fields = load(payload)
        if isinstance(fields, dict):
            self.read_fields(fields)
        else:
            self.unreadable += 1

    def add_text(self, number: int, piece: str) -> None:
        """Add to the text of this number: a choice, a block or an item."""
        if self.listener is not None:  # before it is kept, because what is kept is bounded
            self.has_spoken = True
            self.report_text(self.listener, number, piece)
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

    def report_text(self, listener: StreamListener, number: int, piece: str) -> None:
        """Report a piece of text by its answer and part. Override this if numbers mean anything else."""
        if self.SINGLE:
            listener.on_text(0, number, piece)
        else:
            listener.on_text(number, 0, piece)

    def add_reasoning(self, number: int, piece: str) -> None:
        """Report a piece of reasoning. It is not part of the answer."""
        listener = self.listener
        if listener is not None:
            self.has_reasoned = True
            if self.SINGLE:
                listener.on_reasoning(0, number, piece)
            else:
                listener.on_reasoning(number, 0, piece)

    def current_text(self) -> str:
        """Return the text that was last added to."""
        text = None if self._text is None else self._texts.get(self._text)
        return "" if text is None else text.text()

    def start_call(self, number: int, name: str, call_id: str = "", choice: int = 0) -> PartialCall:
        """Start a call and replace any other of this number. Calls beyond `CALLS_MAX` are not kept."""
        call = PartialCall(name, call_id, choice)
        if self._reports_calls:
            self._await_call(call, self._calls.get(number))
        if len(self._calls) < CALLS_MAX or number in self._calls:
            self._calls[number] = call
        return call

    def add_arguments(self, call: PartialCall, piece: str, choice: int = 0) -> None:
        if self.listener is not None:
            self.listener.on_arguments(choice, piece)
        room = self._arguments_room
        call.add(piece, room)
        self._arguments_room = max(0, room - len(piece))
        same_size = call is self._incomplete and 0 < call.size == len(self._complete.arguments)
        if same_size and (call.name, call.given()) == self._complete:
            self._report_call(call)  # before another one begins, which would be cut in its middle

    def _await_call(self, call: PartialCall, replaced: PartialCall | None) -> None:
        """Report the call before this one. A call that is replaced is the same one, as some streams repeat it."""
        if replaced is not None and replaced is not self._incomplete:
            return
        if replaced is None and self._incomplete is not None:
            self._report_call(self._incomplete)
        self._incomplete = call

    def _report_call(self, call: PartialCall) -> None:
        self._incomplete, self._complete = None, ToolCall(call.name, call.given())
        if self.listener is not None:
            self.listener.on_call(call.choice, *self._complete)

    def continue_call(self, number: int, piece: str) -> None:
        """Add a piece to the arguments of the call of this number, if there is one."""
        call = self._calls.get(number)
        if call is not None:
            self.add_arguments(call, piece)

    def set_arguments(self, call: PartialCall, value: object, choice: int = 0) -> None:
        spelled = arguments(value)
        if self.VALUES_ONCE and value is not None and self.listener is not None:
            self.listener.on_arguments(choice, spelled)
        self._arguments_room -= call.set(spelled, self._arguments_room)
        if value and call is self._incomplete:  # an empty value is filled by pieces
            self._report_call(call)

    def finish_choice(self, index: int, reason: object) -> None:
        """Note why an answer ended, if there is a reason. That of the first one counts."""
        if reason:
            if self.listener is not None:
                self.listener.on_finish(index)
            if index == 0 or not self.finish:
                self.finish = word(reason)

    def set_error(self, *names: object) -> None:
        """Note an error by the first valid name. Messages are not kept, because they may quote the prompt."""
        for candidate in names:
            name = str(candidate) if isinstance(candidate, int) else candidate
            if isinstance(name, str) and name and len(name) <= 64 and name.isprintable() and " " not in name:
                self.error = name
                return
        self.error = "error"

    def clear(self) -> None:
        """Drop texts and calls, because the complete answer follows."""
        self._texts.clear()
        self._calls.clear()
        self._text = None
        self._reports_calls, self._incomplete = False, None  # they were reported as they came
        self._room, self._arguments_room = TEXT_MAX_CHARS, ARGUMENTS_MAX_CHARS

    def is_complete(self, *, closed: bool) -> bool:
        """Return whether a stream came to its proper end; `closed`: by HTTP, all of it was received."""
        if self.error and self.FAILS:
            return False
        return self.ended or (closed and bool(self.finish))

    def build(self, status: int, *, complete: bool) -> Answer:
        """Return the answer as far as it was read."""
        texts = [text for number in sorted(self._texts) if (text := self._texts[number].text())]
        calls, names = self._calls, (self.model, self.response_id, self.finish)
        if not "".join(names).isascii():
            names = (joined(self.model), joined(self.response_id), joined(self.finish))
        return _new(
            Answer,
            (
                status,
                joined(texts[0] if len(texts) == 1 else "\n".join(texts)),
                tuple([calls[number].build() for number in sorted(calls)]) if calls else (),
                None if self.usage is None else self.read_usage(self.usage),
                *names,
                self.error,
                complete,
                max(0, -self._room),
                _ids([calls[number].call_id for number in sorted(calls)]) if calls and self.NEEDS_IDS else (),
            ),
        )


def _ids(ids: list[str]) -> tuple[str, ...]:
    return tuple(map(joined, ids)) if any(ids) else ()


def word(value: object) -> str:
    """Return a name, an id or a reason; "" for anything that is not a string."""
    return value[:WORD_MAX] if isinstance(value, str) else ""


def number(value: object, default: int = 0) -> int:
    """Return a position; `default` for anything that is not a number."""
    return value if isinstance(value, int) else default


def tokens(fields: object, *names: str) -> int:
    """Return the first of these token counts that is present; 0 if none is."""
    if not isinstance(fields, dict):
        return 0
    for name in names:
        found = fields.get(name)
        if type(found) is not int:
            found = count(found)
        if found is not None:
            return found if 0 <= found <= TOKENS_MAX else 0
    return 0


def joined(value: str) -> str:
    """Join surrogate pairs that came in two pieces, and replace lone surrogates."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def _discard(_piece: str) -> None:
    """Takes the place of `TextPieces.add` before the first text."""


ITEMS_MAX_BYTES: Final = 1024 * 1024
_PING_MAX_BYTES: Final = 20

Json = dict[str, Any]


class StreamState:
    """The events of a stream that ending it may need: the first, the last, and those that contain `mark`."""

    __slots__ = ("_mark", "_room", "first", "items", "last")

    def __init__(self, mark: bytes = b"") -> None:
        self._mark = mark
        self._room = ITEMS_MAX_BYTES
        self.first = b""
        self.last = b""
        self.items: list[bytes] = []

    def note(self, payload: bytes) -> None:
        if not self.first:
            self.first = payload
        if self._mark and self._mark in payload and len(payload) <= self._room:
            self._room -= len(payload)
            self.items.append(payload)
        if len(payload) > _PING_MAX_BYTES or b"ping" not in payload:  # a ping is empty and may come at any time
            self.last = payload


class StreamEnd(NamedTuple):
    """What a dialect needs to end a stream that is cut."""

    state: StreamState
    text: str  # of the part that is cut: OpenAI Responses repeats it
    usage: Usage | None  # as counted so far
    choices: Sequence[int] = (0,)  # the answers that are still open
    chars: int = 0  # length of all text and reasoning


Rewrite = Callable[[Json], Json | None]  # an event of another stream as one of this stream; None: it is left out


def event_fields(payload: bytes) -> Json:
    """Return the fields of an event; {} for the end mark and for anything that is not a JSON object."""
    found = None if not payload or payload.startswith(DONE) else load(payload)
    return found if isinstance(found, dict) else {}


def sse_event(fields: Json) -> bytes:
    """Return an event without a name."""
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n\n"


def named_event(fields: Json) -> bytes:
    """Return an event named by its `type`."""
    return b"event: " + str(fields["type"]).encode("ascii", "replace") + b"\n" + sse_event(fields)


UNPACKED_MAX: Final = 64 * 1024 * 1024
BODY_MAX_BYTES: Final = LOADED_MAX_BYTES
# A larger piece does not come from a network read: it was decompressed from a small one. A quarter of a megabyte of
# gzip can hold forty megabytes of tiny events, which take half a minute to read.
_PIECE_MAX_BYTES: Final = 1024 * 1024
# Bytes as received that are read in one turn of the event loop: up to 1,600 events, or 200 times as much, unpacked.
_TURN_BYTES: Final = 16 * 1024
_PACKED_TURN_BYTES: Final = 1024
_BAD_MAX: Final = 100  # unreadable events in a row after which reading stops
_TAIL_BYTES: Final = 4096  # kept of a body that is too large: token counts are near its end
_TRIES_MAX: Final = 8  # to find out what the events of a text have in common; further ones are of no use
_BAD: Final = (ValueError, RecursionError)  # broken JSON, an unexpected type, unlimited nesting


GiveUp = Callable[[str], None]  # called with the reason


def unpacker(encoding: bytes) -> Unpacker | None:
    """Return a decompressor for a `Content-Encoding`; None if the answer is not compressed. Raises `EncodingError`."""
    if not encoding or encoding.strip().lower() == b"identity":
        return None
    return Unpacker(encoding, UNPACKED_MAX)


class PassingAnswer:
    """Decompresses an answer while it passes and feeds it to its reader. If it cannot be read it passes unread, and
    `give_up` is called with the reason."""

    __slots__ = ("_give_up", "_reader", "_unpacker", "turn_bytes")

    def __init__(self, reader: AnswerReader, unpacker: Unpacker | None, give_up: GiveUp) -> None:
        self._reader: AnswerReader | None = reader
        self._unpacker = unpacker
        self._give_up = give_up
        # How many bytes to pass on and read in one turn of the event loop; 0 for a body, which is read at its end.
        self.turn_bytes = 0
        if isinstance(reader, StreamReader):
            self.turn_bytes = _TURN_BYTES if unpacker is None else _PACKED_TURN_BYTES

    @property
    def between_events(self) -> bool:
        """Whether this is an event stream that is not compressed, and what has passed ends with a whole event."""
        return isinstance(self._reader, StreamReader) and self._unpacker is None and self._reader.between_events

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
    __slots__ = ("_bad", "_builder", "_events", "_read", "_split")

    def __init__(self, builder: AnswerBuilder, max_bytes: int = EVENT_MAX_BYTES, form: Form = STREAM) -> None:
        self._builder = builder
        self._events = event_parser(form, max_bytes)
        self._split: Callable[[bytes], Sequence[bytes]] = self._events.feed
        self._bad = 0  # unreadable events in a row
        self._read = builder.read_event

    @property
    def unreadable(self) -> int:
        """The number of events that were too long or not JSON."""
        return self._builder.unreadable + self._events.skipped

    @property
    def between_events(self) -> bool:
        return self._events.between and self._split == self._events.feed

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
        """Return the answer; `complete`: by HTTP, all of it was received. The dialect's end mark takes precedence."""
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

    __slots__ = (
        "_alike", "_dialect", "_listener", "_read_event", "_state", "_stopped", "_tries_left", "collecting",
    )  # fmt: skip

    def __init__(self, dialect: Dialect, listener: StreamListener, form: Form = STREAM) -> None:
        self._dialect = dialect
        builder = dialect.answer_builder(listener)
        super().__init__(builder, form=form)
        self._listener = listener
        self._state = StreamState(dialect.kept_events)
        self._read_event = builder.read_event
        self._read = self._read_and_note
        self._stopped = False
        self._alike: TextEvents | None = None  # those of the text that was added to last
        self._tries_left = _TRIES_MAX
        self.collecting: TextEvents | None = None  # the same, if the next event may be one of them

    def feed(self, content: bytes) -> None:
        collecting = self.collecting
        if collecting is not None:
            if collecting.add(content):
                return
            self.collecting = None
            self._read_collected(collecting)
        builder = self._builder
        builder.has_spoken = builder.has_reasoned = False
        super().feed(content)
        if not self._events.between:
            return
        if self._tries_left and (builder.has_spoken or builder.has_reasoned):
            self._learn(content)
        alike = self._alike
        if alike is not None and alike.has_same_start(content):
            text = alike.text
            alike.allow(self._listener.room(text.choice, text.part, is_reasoning=text.is_reasoning))
            self.collecting = alike

    def _learn(self, event: bytes) -> None:
        """Find out whether the next events may be like the one that was just read."""
        data = only_data(event)
        if not data or (self._alike is not None and self._alike.has_same_start(event)):
            return
        self._tries_left -= 1
        try:
            text = self._builder.text_piece(data)
        except _BAD:
            return
        if text is not None:
            self._alike = text_events(event, data, text) or self._alike

    def read_collected(self) -> None:
        """Read the text that was collected."""
        collecting, self.collecting = self.collecting, None
        if collecting is not None:
            self._read_collected(collecting)

    def _read_collected(self, collecting: TextEvents) -> None:
        pieces = collecting.take()
        if not pieces:
            return
        text = decoded(pieces)
        if text is None:
            for piece in pieces:
                super().feed(collecting.event(piece))
            return
        self._state.last = collecting.data
        number = collecting.text.number
        if collecting.text.is_reasoning:
            self._builder.add_reasoning(number, text)
        else:
            self._builder.add_text(number, text)

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
        self._alike, self._tries_left = None, 0

    def answer(self, status: int, *, complete: bool) -> Answer:
        self.read_collected()
        return super().answer(status, complete=complete)

    def ending(self, choices: Sequence[int], chars: int) -> bytes:
        """Return the events that would end the stream now; b"" if that is impossible, or it has ended.

        `choices` are the answers that are still open, `chars` is the length of all text and reasoning.
        """
        end = self._end_at(choices, chars)
        return b"" if end is None else self._dialect.end_stream(end)

    def resuming(self, choices: Sequence[int], chars: int) -> tuple[bytes, Rewrite] | None:
        """Return `Dialect.resume_stream` for this point of the stream."""
        end = self._end_at(choices, chars)
        return None if end is None else self._dialect.resume_stream(end)

    def _end_at(self, choices: Sequence[int], chars: int) -> StreamEnd | None:
        builder = self._builder
        if self._stopped or builder.ended or builder.error or not choices or (builder.SINGLE and builder.finish):
            return None
        usage = None if builder.usage is None else builder.read_usage(builder.usage)
        return StreamEnd(self._state, builder.current_text(), usage, choices, chars)


class WholeAnswerReader:
    """Collects a body and reads it at its end. If it is too large, its token counts may still be found."""

    __slots__ = ("_body", "_builder", "_dialect", "_max_bytes", "_size", "_tail", "unreadable")

    def __init__(self, dialect: Dialect, max_bytes: int = BODY_MAX_BYTES, builder: AnswerBuilder | None = None) -> None:
        self._dialect = dialect
        self._builder = builder  # of an answer that does not have the usual form
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
        body, builder = bytes(self._body), self._builder
        if builder is None:
            ordinary = self._dialect.read_answer(body, status, complete=complete) if body else None
            if ordinary is not None:
                return ordinary
            builder = self._builder = self._dialect.answer_builder()
        self._body = b""
        if body.startswith((b"data:", b"event:")):  # a stream, whatever its content type
            events = StreamReader(builder, self._max_bytes)
            events.feed(body)
            return events.answer(status, complete=complete)
        try:
            if self._size > self._max_bytes:
                self.unreadable = 1
                self._read_usage_from_tail(builder)
            elif body and not builder.read_body(body):
                self.unreadable = 1
                if is_dense(body):
                    self._tail = body[-_TAIL_BYTES:]
                    self._read_usage_from_tail(builder)
                else:
                    complete = False
        except _BAD:
            self.unreadable = 1
        failed = bool(builder.error) and builder.FAILS and status < 400
        return builder.build(status, complete=complete and not failed)

    def _read_usage_from_tail(self, builder: AnswerBuilder) -> None:
        # Quotes inside a text are escaped, so this is a field.
        _, found, after = self._tail.rpartition(b'"%s":' % builder.USAGE.encode())
        if found:
            fields, _ = json.JSONDecoder().raw_decode(after.decode("utf-8", "replace").lstrip())
            builder.usage = fields if isinstance(fields, dict) else None


AnswerReader = StreamReader | WholeAnswerReader


def reader_for(dialect: Dialect, form: Form) -> AnswerReader:
    return WholeAnswerReader(dialect) if form == BODY else StreamReader(dialect.answer_builder(), form=form)


def read_whole(dialect: Dialect, body: bytes, status: int, give_up: GiveUp) -> Answer:
    """Return the answer of a complete body, as a `PassingAnswer` reads it; one of the usual form without a reader."""
    try:
        answer = dialect.read_answer(body, status, complete=True) if len(body) <= BODY_MAX_BYTES else None
        if answer is None:
            reader = WholeAnswerReader(dialect, builder=dialect.answer_builder())
            reader.feed(body)
            answer = reader.answer(status, complete=True)
            if reader.unreadable:
                give_up("unreadable")
        return answer
    except Exception:  # noqa: BLE001 - as in `PassingAnswer.feed`
        give_up("fault")
        return Answer(status, complete=True)
