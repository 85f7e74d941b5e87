"""`Dialect`: the API format of one provider, and everything breakloop does with its requests and answers.

To add a dialect, write a module with a subclass and add an instance to `registry.DIALECTS`. Only `read_fields`,
`read_fields_leniently`, `flatten` and `answer_builder` are required; a dialect without the others is still limited and
watched for identical requests.

A request body is decoded once. One pass finds its fields and splits the messages (`read_fields`); a message is decoded
when it is needed, and once. A body of an unexpected shape is read again leniently (`read_fields_leniently`); if that
fails too, the request is plain HTTP. `ParsedBody` holds the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from breakloop.dialects import clients, denial, session_ids, text_actions
from breakloop.dialects.answers import AnswerBuilder, Rewrite, StreamEnd, StreamListener
from breakloop.dialects.body_changes import JsonBody
from breakloop.dialects.content import (
    COUNTED_FROM_BYTES,
    DECODED_UNCOUNTED_BYTES,
    ITEMS_MAX,
    LONG_TEXT_CHARS,
    DenseError,
    as_list,
    clean,
    content,
    decode,
    decode_bounded,
    has_too_many_values,
    load,
    shortened,
    text,
)
from breakloop.dialects.prompt import PromptTexts
from breakloop.dialects.session_ids import BodyIds
from breakloop.dialects.steps import StepBuilder, clean_step
from breakloop.model.call import UNREAD, Answer, Call, Chat, Message, Step, ToolCall
from breakloop.model.decision import marked
from breakloop.model.verdict import Verdict

if TYPE_CHECKING:
    from breakloop.dialects.known_history import KnownHistory, Opening, ShortBody

SMALL_BODY: Final = 4096  # bytes; all messages of a smaller body are decoded at once
_OBJECTS: Final = frozenset((dict,))
KNOWN_FROM_BYTES: Final = 8 * 1024  # a smaller body is decoded without the history of its caller
COUNTED_UNKNOWN_BYTES: Final = 256 * 1024  # of a larger one, the values are counted unless the history has most of them
_OPENING_MESSAGES_MAX: Final = 100  # the first message of the user has to be among these
_new: Final = tuple.__new__  # creates a named tuple in half the time of calling its class

T = TypeVar("T")
Raw = msgspec.Raw


class NamedTool(msgspec.Struct, gc=False):
    name: str = ""


class _Earlier:
    __slots__ = ()


EARLIER: Final = _Earlier()
"""Stands for a message that was not decoded, because an earlier request had it (`known_history`)."""


class EarlierMessageError(ValueError):
    """A message was asked for that was not decoded."""


class BodyFields(msgspec.Struct, gc=False):
    """The fields of a request body. (A struct is created three times as fast as a named tuple.)"""

    model: str
    items: list[Any]  # the messages, undecoded until `item_at` is called
    stream: bool = False
    max_tokens: int | None = None
    system: Any = None  # a system prompt outside the messages
    fields: Any = None  # all fields: the dialect's `BodyModel`, or a dict if the body was read leniently
    lead: int = 0  # how many of the items precede the conversation
    answers: int = 1  # how many the request asks for
    newest_calls: tuple[int, Message] | None = None  # the last answer with calls and its position, if it is kept
    # An answer, the id of its only call, and its result with its id, if these are the last messages, and kept.
    newest_turn: tuple[Message, object, Message, object] | None = None
    tools: tuple[str, ...] = ()  # the names of declared tools that were not decoded

    def calls_at(self, at: int) -> Message | None:
        """Return the answer at a position if it is the last one with calls, and kept."""
        newest = self.newest_calls
        return newest[1] if newest is not None and newest[0] == at else None


class Dialect(ABC):
    """One dialect. Instances have no state."""

    name: str  # as in `Chat.dialect`
    provider: str  # for prices and the descriptor `llm:provider`
    operation: str = "chat"  # `gen_ai.operation.name` of spans
    path_endings: tuple[str, ...] = ()
    any_path: bool = False  # requests are recognised by their body (`is_likely`)
    model_in_path: bool = False  # model and streaming are not fields, see `read_path`
    is_llm: bool = True  # False: requests call tools, and cost no tokens
    links_responses: bool = False  # a request may name the answer it continues, instead of repeating the conversation
    answer_field: str = ""  # a field by which a decoded answer is recognised
    ends_streams: bool = False  # `end_stream` is implemented
    kept_events: bytes = b""  # events that contain this are kept for `end_stream`
    error_event_head: bytes = b""  # the line before the data of an error in a stream
    plain_messages: bool = False  # `flatten` takes a role and a text as they are, if a message has nothing else

    # -- requests

    def parse(self, body: bytes, path: str = "") -> ParsedBody | None:
        """Parse a request body; None if it is not of this dialect."""
        try:
            try:
                parts = self.read_fields(body)
                if parts is not None and len(body) > LONG_TEXT_CHARS:
                    _shorten(parts)
                return None if parts is None else ParsedBody(self, body, parts, path)
            except ValueError:  # broken JSON, or an unexpected type
                parts = self.load_fields(body)
                return None if parts is None else ParsedBody(self, body, parts, path, lenient=True)
        except RecursionError:
            return None

    def parse_newest(self, body: bytes, path: str, history: KnownHistory) -> ParsedBody | None:
        """Do the same without decoding messages that are in `history`."""
        short = history.shorten(body, self.name) if type(self).parse is Dialect.parse else None
        if short is not None and not _is_dense(short.body, len(body)):
            parts = self.read_short(short, body, history)
            if parts is not None:
                opening = short.beginning.opening if parts.system is None else None
                shortened = ParsedBody(self, body, parts, path, history=history)
                shortened.known_opening = opening
                return shortened
        if _is_dense(body, len(body)):
            return ParsedBody(self, body, BodyFields("", [], fields={}), path, unread=True)
        parsed = self.parse(body, path)
        if parsed is not None and not parsed.lenient:
            history.learn(body, parsed.parts.items, self.name, partial(self._names_in_tools, parsed.parts.fields))
        return parsed

    def read_short(self, short: ShortBody, body: bytes, history: KnownHistory) -> BodyFields | None:
        """Decode a body without what is known of it; None if that is impossible."""
        try:
            parts = self.read_fields(short.body)
        except (ValueError, RecursionError):
            return None
        if parts is None or parts.lead or not history.restore(body, parts.items, short):
            return None
        parts.tools = short.tools
        if len(short.body) > LONG_TEXT_CHARS:
            _shorten(parts)
        return parts

    def is_likely(self, body: bytes) -> bool:  # noqa: ARG002 - for overrides
        """Return whether a body on any path may be of this dialect, without decoding it."""
        return False

    @abstractmethod
    def read_fields(self, body: bytes) -> BodyFields | None:
        """Decode a body of the expected shape; None if it is not of this dialect. Raises ValueError otherwise."""

    @abstractmethod
    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        """Read a decoded body of any shape; None if it is not of this dialect."""

    @abstractmethod
    def flatten(self, item: Any) -> Message | None:
        """Return one decoded item as a message; None if it holds only reasoning.

        In a body that was read leniently, an item may be of any type. The role of the user is `user`: a session without
        a name is found by its first message.
        """

    def load_fields(self, body: bytes) -> BodyFields | None:
        fields = load(body)
        if not isinstance(fields, dict):
            return None
        return self.read_fields_leniently(fields if len(body) <= LONG_TEXT_CHARS else shortened(fields))

    def read_path(self, path: str) -> tuple[str, bool]:
        """Return model and streaming from the path, if `model_in_path`."""
        raise NotImplementedError

    def newest_messages(self, parts: BodyFields, tail: int) -> list[Message]:
        """Return the last `tail` messages, oldest first."""
        items = parts.items
        newest = range(max(0, len(items) - tail), len(items))
        return [message for at in newest if (message := self.flatten(item_at(items, at))) is not None]

    def newest_step(self, parsed: ParsedBody) -> Step | None:
        """Return the last answer of the model and everything after it; None if the dialect has no conversations, or
        nothing of this one can be read."""
        step = parsed.view(self.read_step)
        return step if step is None or not parsed.lenient else clean_step(step)

    def read_step(self, parsed: ParsedBody) -> Step | None:
        """Return the step of a body as it is decoded now. Raises ValueError if it has to be read leniently."""
        parts = parsed.parts
        builder = self.collect_step(parts)
        if builder is None:
            return None
        tools = (*parts.tools, *self.tool_names(parts.fields))
        step = builder.build(tools, len(parts.items) - parts.lead, len(parsed.body))
        return step if step.said or step.calls or step.results or step.users else None  # nothing that can be read

    def collect_step(self, parts: BodyFields) -> StepBuilder | None:  # noqa: ARG002 - for overrides
        """Collect the newest step, walking back from the end so that only its messages are decoded."""
        return None

    def tool_names(self, fields: Any) -> list[str]:
        """Return the names of declared tools. `fields` is the dialect's `BodyModel`, or a dict."""
        if isinstance(fields, dict):
            tools = as_list(fields.get("tools"))[:ITEMS_MAX]
            return [name for tool in tools if isinstance(tool, dict) and (name := text(tool.get("name")))]
        declared = getattr(fields, "tools", None)
        return [tool.name for tool in declared[:ITEMS_MAX] if tool.name] if declared else []

    def _names_in_tools(self, fields: Any) -> list[str] | None:
        """Return the names of declared tools if all of them are in the field `tools`."""
        if not hasattr(fields, "tools") or self.tool_names(msgspec.structs.replace(fields, tools=[])):
            return None
        return self.tool_names(fields)

    def add_prompt_texts(self, texts: PromptTexts, parsed: ParsedBody) -> None:
        """Add all texts that the model reads. Raises ValueError if the body is not of the expected shape."""
        texts.add_body(parsed.body)

    def session_ids(self, parsed: ParsedBody) -> BodyIds:
        """Return the ids by which the body names its conversation."""
        return session_ids.find_in(parsed.parts.fields)

    def append_note(self, body: bytes, note: str) -> bytes | None:
        """Return the body with a note (not empty) for the model at the end of its conversation; None if that is
        impossible."""
        try:
            return self.insert_note(JsonBody(body), marked(clean(note)))
        except (ValueError, KeyError, RecursionError):  # not JSON, an unexpected shape, or nested too deep
            return None

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:  # noqa: ARG002 - for overrides
        """Insert a marked note into a body. May raise ValueError and KeyError."""
        return None

    def land(self, body: bytes, note: str) -> bytes | None:
        """Return the body with tools switched off, and with a note (not empty) at the end of its conversation; None if
        there is no place for the note."""
        noted = self.append_note(body, note)
        if noted is None:
            return None
        try:
            return self.switch_off_tools(JsonBody(noted))
        except (ValueError, KeyError, RecursionError):  # tools of an unexpected shape
            return noted

    def switch_off_tools(self, json: JsonBody) -> bytes:
        """Return a body with its tools declared, and none of them allowed. May raise ValueError and KeyError."""
        return json.body

    def without_ended_thoughts(self, body: bytes) -> bytes:
        """Return a request without the thoughts that `resume_stream` has ended and marked."""
        return body

    def request_usage(self, body: bytes) -> bytes | None:  # noqa: ARG002 - for overrides
        """Return a streaming request that also asks for token counts; None if there is nothing to change."""
        return None

    # -- answers

    def read_answer(self, body: bytes, status: int, *, complete: bool) -> Answer | None:  # noqa: ARG002 - for overrides
        """Read an answer that came as one body, if it has the usual form; None leaves it to `answer_builder`."""
        return None

    @abstractmethod
    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        """Return a new builder for one answer."""

    def owns_usage(self, fields: dict[str, Any]) -> bool:  # noqa: ARG002 - for overrides
        """Return whether token counts of unknown origin have names that only this dialect uses."""
        return False

    def end_stream(self, end: StreamEnd) -> bytes:  # noqa: ARG002 - for overrides
        """Return the events that end a stream early, as the dialect ends one that reached its token limit, so that SDKs
        take it for a truncated answer and not for a broken connection. b"" if it has ended."""
        return b""

    def resume_stream(self, end: StreamEnd) -> tuple[bytes, Rewrite] | None:  # noqa: ARG002 - for overrides
        """Return the events that end the thought that a stream is in, and the function that makes events of another
        stream the next ones of this stream. None if the dialect has no thoughts, or the stream is not in one."""
        return None

    # -- denials

    def denial(self, verdict: Verdict, call: Call) -> tuple[int, bytes]:
        """Return status and body of a denial, as the client's SDK expects them."""
        fields = self.error_fields(verdict, call) if clients.shows_body(call) else {}
        if not fields:
            return verdict.status, self.error_body(verdict, call)
        detail = denial.detail(verdict)
        del detail["message"]  # the dialect's own fields have it
        return verdict.status, denial.dump(fields | {"detail": detail})

    def error_body(self, verdict: Verdict, call: Call) -> bytes:
        return denial.dump({"detail": denial.detail(verdict)} | self.error_fields(verdict, call))

    def error_event(self, verdict: Verdict, call: Call) -> bytes:
        """Return a denial as an event of a stream that has begun, so that the client's SDK raises it as an error."""
        return self.error_event_head + b"data: " + self.denial(verdict, call)[1] + b"\n\n"

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:  # noqa: ARG002 - for overrides
        """Return the dialect's own fields of an error body."""
        return {}


class ParsedBody:
    """One parsed request body. If a message turns out to be odd, the body is read again leniently."""

    __slots__ = ("_history", "_opening", "_path", "body", "dialect", "known_opening", "lenient", "parts", "unread")

    def __init__(
        self,
        dialect: Dialect,
        body: bytes,
        parts: BodyFields,
        path: str,
        *,
        lenient: bool = False,
        history: KnownHistory | None = None,
        unread: bool = False,
    ) -> None:
        self._history = history  # messages in it may be missing in `parts`
        self.known_opening: Opening | None = None  # that of earlier requests, unless the body turns out to be odd
        self.dialect = dialect
        self.body = body
        self._path = path
        self._opening: list[str] | None = None
        self.parts = parts
        self.lenient = lenient  # texts may contain lone surrogates
        self.unread = unread  # a message cannot be read, or holds too many values

    def view(self, read: Callable[[ParsedBody], T]) -> T | None:
        """Return the result of `read`; None if the body cannot be read. On ValueError, `read` is called again after the
        body was read leniently.
        """
        if self.unread:
            return None
        try:
            if not self.lenient:
                try:
                    return read(self) if self._history is None else self._view_all(read, self._history)
                except ValueError as error:
                    parts = None if type(error) is DenseError else self.dialect.load_fields(self.body)
                    if parts is None:
                        self.unread = True
                        return None
                    self.parts, self.lenient = parts, True
            return read(self)
        except RecursionError:
            return None

    def _view_all(self, read: Callable[[ParsedBody], T], history: KnownHistory) -> T:
        """Return the result of `read`. If it needs a message that was not decoded, all of them are."""
        try:
            return read(self)
        except EarlierMessageError:
            opening = self.known_opening
            if opening is not None and not opening.is_read:
                opening.is_read = True
                short = history.shorten(self.body, self.dialect.name)
                parts = None if short is None else self.dialect.read_short(short, self.body, history)
                if parts is not None:
                    self.parts = parts
                    return self._view_all(read, history)
            history.widen()
            if len(self.body) > COUNTED_UNKNOWN_BYTES and has_too_many_values(self.body):
                raise DenseError from None
            parts = self.dialect.read_fields(self.body)
            if parts is None:
                raise
            self.parts, self._history, self.known_opening = parts, None, None
            return read(self)

    def chat(self, tail: int) -> Chat | None:
        """Return the request with its last `tail` messages; None if it cannot be read after all."""
        if not self.lenient:
            try:
                parts, dialect = self.parts, self.dialect
                found = tuple(dialect.newest_messages(parts, tail))
                if dialect.model_in_path:
                    return self._chat(found)
                size, limit = len(parts.items), parts.max_tokens  # as in `_chat`, without the call
                return _new(Chat, (dialect.name, parts.model, found, size, parts.stream, limit, "", parts.answers))
            except (ValueError, RecursionError) as error:
                self.unread = type(error) is DenseError
        viewed = self.view(lambda parsed: tuple(parsed.dialect.newest_messages(parsed.parts, tail)))
        return None if viewed is None else self._chat(viewed)

    def head(self) -> Chat:
        """Return the request without decoding any message, for a third of the cost. Its tail is `UNREAD`."""
        return self._chat(UNREAD)

    def _chat(self, found: tuple[Message, ...]) -> Chat:
        parts, dialect = self.parts, self.dialect
        model, stream = dialect.read_path(self._path) if dialect.model_in_path else (parts.model, parts.stream)
        size, limit = len(parts.items), parts.max_tokens
        if not self.lenient:
            return _new(Chat, (dialect.name, model, found, size, stream, limit, "", parts.answers))
        if found is not UNREAD:
            found = tuple([_clean_message(message) for message in found])
        return Chat(dialect.name, clean(model), found, size, stream, limit, "tolerant", parts.answers)

    def newest_step(self) -> Step | None:
        """Return the newest step; None if the dialect has none, or it cannot be read."""
        return self.dialect.newest_step(self)

    def session_ids(self) -> BodyIds:
        try:
            return self.dialect.session_ids(self)
        except RecursionError:
            return session_ids.NONE

    def keep_session(self, agent: str, session: str) -> None:
        """Keep the session that is derived from the opening."""
        known = self.known_opening
        if known is not None and self._history is not None and not self.lenient:  # it is in the messages that are known
            known.agent, known.session, known.is_read = agent, session, False

    def opening(self) -> str:
        """Return what identifies a conversation: the system prompt and the messages up to the user's first; or ""."""
        opening = "\n".join(self._opening or self._opening_texts())
        return opening if opening.isascii() else clean(opening)

    def system(self) -> str:
        """Return the opening without the message of the user; "" if there is none."""
        return clean("\n".join(self._opening_texts()[:-1]))

    def task(self) -> str:
        """Return the first message of the user; "" if there is none."""
        return (self._opening_texts() or [""])[-1]

    def _opening_texts(self) -> list[str]:
        known = self._opening
        if known is None:
            known = self._opening = (self.view(_up_to_user) if self.dialect.is_llm else None) or []
        return known


def _shorten(parts: BodyFields) -> None:
    """Shorten the longest texts of a body that have been decoded."""
    items, fields = parts.items, parts.fields
    if items and type(items[0]) is not Raw:
        shortened(items)
    if type(parts.system) is not Raw:
        parts.system = shortened(parts.system)
    parts.model = shortened(parts.model)
    for name in fields.__struct_fields__ if isinstance(fields, msgspec.Struct) else ():
        value = getattr(fields, name)
        if type(value) is str and len(value) > LONG_TEXT_CHARS:
            setattr(fields, name, shortened(value))


def _is_dense(unknown: bytes, size: int) -> bool:
    """Tell whether what is not known of a body has too many values. Of larger bodies, the gateway has counted all."""
    return len(unknown) > COUNTED_UNKNOWN_BYTES and size <= COUNTED_FROM_BYTES and has_too_many_values(unknown)


def _up_to_user(parsed: ParsedBody) -> list[str]:
    parts, dialect = parsed.parts, parsed.dialect
    plain = dialect.plain_messages
    texts: list[str] = []
    if parts.system is not None:
        system = content(decode_bounded(parts.system) if type(parts.system) is Raw else parts.system)
        if system:
            texts.append(f"system\n{system}")
    items = parts.items
    for at in range(min(len(items), _OPENING_MESSAGES_MAX)):
        item = items[at]
        if type(item) is not dict:
            item = item_at(items, at)
        try:
            role, said = item["role"], item["content"]
        except (KeyError, TypeError):
            role = said = None
        if type(role) is not str or type(said) is not str or len(item) != 2 or not plain:  # few at the beginning
            message = dialect.flatten(item)
            if message is None:
                continue
            role, said, _ = message
        if role == "user":
            # A run that is written into the only message grows with each request.
            texts.append("user\n" + (text_actions.before_run(said) if at == len(items) - 1 else said))
            return texts
        texts.append(f"{role}\n{said}")
    return []


def _clean_message(message: Message) -> Message:
    calls = tuple([ToolCall(clean(call.name), clean(call.arguments)) for call in message.calls])
    return Message(clean(message.role), clean(message.text), calls)


def item_at(items: list[Any], at: int) -> Any:
    """Return an item, decoded in place. Raises ValueError if an undecoded item is not an object."""
    found = items[at]
    if type(found) is Raw:
        found = decode(found) if len(found) <= DECODED_UNCOUNTED_BYTES else decode_bounded(found)
        if type(found) is not dict:
            raise ValueError("not an object")
        items[at] = found
    elif found is EARLIER:
        raise EarlierMessageError
    return found


def are_objects(items: list[Any]) -> bool:
    return _OBJECTS.issuperset(map(type, items))


def follows_answer(items: list[Any]) -> bool:
    """Return whether the last item comes after one of the assistant. Then it is not a prefill."""
    before = item_at(items, -2) if len(items) > 1 else None
    return isinstance(before, dict) and before.get("role") == "assistant"
