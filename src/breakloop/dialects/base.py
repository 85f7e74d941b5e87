"""Takes a request body apart once (SPEC C-9): typed, then tolerant, then None, which means plain HTTP.

One pass finds the fields and splits the messages; a message is decoded when somebody asks for it, and once. A dialect
says where its fields are and how a message is flattened. Steps and ids of sessions are read from the same parts by
`steps` and `session_ids`; folding case and white space, and hashing, is left to `detect`.

What the dialects share: the text of contents, media as `<type:digest>`, arguments in one spelling, tolerant loading.

Which fields a dialect has is its own file's business; taking a body apart in steps is `conversation`'s.

One spelling for equal JSON bodies, so that `exact` fingerprints see what was said and not how it was written.

What counts as the same request beyond that (ids, time stamps) is the detectors' business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
import orjson
import xxhash

from breakloop.model.call import UNREAD, Chat, Message, ToolCall

_BOM = b"\xef\xbb\xbf"
# How orjson writes 1.0, and numbers from 1e16 on. Two searches with a literal prefix are quicker than `in` on bytes.
_WHOLE_FLOAT = re.compile(rb"\.0(?:[,\]}]|\Z)").search
_LARGE_FLOAT = re.compile(rb"e\+\d").search
_DEPTH_MAX = 200
# Values one by one cost 0.15 us a byte: a larger body would hold up everybody else, so it is taken as the decoder gives
# it, or as it was sent. Whoever repeats himself to the byte is recognised all the same.
_ONE_BY_ONE_MAX_BYTES = 256 * 1024
_BAD_JSON = (ValueError, RecursionError)  # msgspec's and orjson's decode errors are ValueErrors


def canonical(body: bytes) -> bytes:
    """Return sorted-key, compact JSON where `body` is JSON, else `body` itself."""
    if not body:
        return body
    if body.startswith(_BOM):
        body = body[3:]
    try:
        value = orjson.loads(body)
    except ValueError:
        return _tolerant(body)
    try:
        spelled = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # nested deeper than orjson writes
        return body
    if _WHOLE_FLOAT(spelled) or _LARGE_FLOAT(spelled):
        return _with_one_spelling_of_numbers(body, spelled)
    return spelled


def _with_one_spelling_of_numbers(body: bytes, spelled: bytes) -> bytes:
    """1, 1.0 and 1e0 are one number, and orjson rounds integers over 64 bits, which would make two bodies one."""
    if len(body) > _ONE_BY_ONE_MAX_BYTES:
        return body if _LARGE_FLOAT(spelled) else spelled
    try:
        value = _whole(msgspec.json.decode(body))
    except _BAD_JSON:
        return spelled
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer over 64 bits
        return msgspec.json.encode(value, order="sorted")


def _whole(value: object, depth: int = 0) -> object:
    # A bound of our own: Python's depends on how deep the caller stands, and every door must come to the same result.
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deep")
    if isinstance(value, dict):
        return {key: _whole(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item, depth + 1) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _tolerant(body: bytes) -> bytes:
    """Lone surrogates and NaN: the standard library reads them, the fast decoders do not."""
    if len(body) > _ONE_BY_ONE_MAX_BYTES:
        return body
    try:
        return json.dumps(_whole(json.loads(body)), sort_keys=True, separators=(",", ":")).encode()
    except _BAD_JSON:
        return body


_TEXT_PARTS: Final = frozenset(("text", "input_text", "output_text"))
# The model's own thinking is worded anew each time, and signatures and encrypted forms of it are as good as ids.
_SILENT_PARTS: Final = frozenset(("thinking", "redacted_thinking", "reasoning"))
# A cache mark moves along the conversation, and a retry carries new ids: the same content with other ones is the same.
_NOT_IDENTITY: Final = frozenset(("id", "call_id", "tool_use_id", "cache_control"))
_NESTING: Final = ("{", "[")
_DIGITS_MAX: Final = 400
_KIND_MAX: Final = 64
# Parts of one content, and calls of one message, that are read one by one; what follows stands as one digest, so that
# three million of them hold nobody up and still tell requests apart.
ITEMS_MAX: Final = 1000
# Characters of arguments that are spelled anew, and those that are with every number looked at: a thousand calls may
# come in one request. Longer ones count as they were sent.
_RESPELLED_MAX: Final = 64 * 1024
_THOROUGH_MAX: Final = 1024


def as_list(value: object) -> list[Any]:
    """Return a list as it is, null as an empty one, anything else as the only item."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def load(body: bytes) -> Any:
    """Decode JSON that a strict decoder refused (BOM, UTF-16, lone surrogates, NaN); None when it is no JSON."""
    try:
        return orjson.loads(body)
    except ValueError:
        try:
            return json.loads(body.decode(json.detect_encoding(body), "replace"), parse_int=_integer)
        except (ValueError, RecursionError):
            return None


def _integer(digits: str) -> int | float:
    # int() refuses thousands of digits, and one absurd number must not hide the conversation.
    return int(digits) if len(digits) <= _DIGITS_MAX else float(digits)


def truth(value: object) -> bool:
    """Read a flag that may have been sent as a number or a word."""
    return bool(value) and value not in ("false", "False", "0")


def count(value: object) -> int | None:
    """Read a number of tokens; None where it is none."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def at_least_one(value: object) -> int:
    """Read how many answers a request wants; 1 where it does not say, or nonsense."""
    return max(1, count(value) or 1)


def content(value: object) -> str:
    """Return the text of a content: a string, or a list of parts, joined by line breaks."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [part(item) for item in value[:ITEMS_MAX] if not is_silent(item)]
        if len(value) > ITEMS_MAX:
            texts.append(more(value))
        return "\n".join(texts)
    return text(value)


def more(items: list[Any]) -> str:
    """Return what stands for the items of a list beyond `ITEMS_MAX`."""
    return f"<more:{xxhash.xxh3_64_hexdigest(json_text(items[ITEMS_MAX:]))}>"


def prompts(value: object) -> str:
    """Return the text of a prompt or a batch of them, which is one request and no history; tokens as a digest."""
    if not isinstance(value, list):
        return text(value)
    try:
        return "\n".join(value)
    except TypeError:
        return f"<tokens:{xxhash.xxh3_64_hexdigest(json_text(value))}>"


def is_silent(item: object) -> bool:
    """Say whether a part is the model's thinking, which is not said to anybody."""
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    return isinstance(kind, str) and kind in _SILENT_PARTS


def part(item: object) -> str:
    """Return the text of one part; media and kinds we do not know stand as `<type:digest>`."""
    if not isinstance(item, dict):
        return text(item)
    kind = item.get("type", "text")
    if not isinstance(kind, str):
        return media(text(kind), item)
    if kind in _TEXT_PARTS and "text" in item:
        return text(item["text"])
    if kind == "refusal":
        return text(item.get("refusal"))
    return media(kind, item)


def media(kind: str, item: dict[str, Any]) -> str:
    """Return `<kind:digest>`: the same for the same bytes, whatever ids and cache marks go with them."""
    if not _NOT_IDENTITY.isdisjoint(item):
        item = without_ids(item)
    return f"<{kind[:_KIND_MAX]}:{xxhash.xxh3_64_hexdigest(json_text(item))}>"


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that say something."""
    return {key: value for key, value in item.items() if key not in _NOT_IDENTITY}


def arguments(value: object) -> str:
    """Return arguments in one spelling where they are JSON, as a value or as a text: key order does not count."""
    if isinstance(value, str):
        return _respelled(value) if value.startswith(_NESTING) or value.lstrip().startswith(_NESTING) else value
    if value is None:
        return ""
    spelled = json_text(value)
    return (canonical(spelled) if b".0" in spelled else spelled).decode()


def _respelled(value: str) -> str:
    if len(value) > _RESPELLED_MAX:
        return value
    long = len(value) > _THOROUGH_MAX
    try:
        spelled = orjson.dumps(orjson.loads(value), option=orjson.OPT_SORT_KEYS)
        if long or (spelled.find(b".0") < 0 and spelled.find(b"e+") < 0):  # `in` takes twice the time
            return spelled.decode()
    except (ValueError, TypeError):  # no JSON, or deeper than orjson writes
        if long:
            return value
    # Three times as slow, and thorough: one spelling of numbers, and what the fast decoder does not take.
    return canonical(value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def text(value: object) -> str:
    """Return a string as it is, null as nothing, anything else as its JSON text."""
    if isinstance(value, str):
        return value
    return "" if value is None else json_text(value).decode()


def json_text(value: object) -> bytes:
    """Return sorted, compact JSON of a decoded value."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate, an integer over 64 bits, or nested too deep
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def clean(value: str) -> str:
    """Replace lone surrogates, so that every text that leaves here can be encoded."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def clean_message(message: Message) -> Message:
    """Replace lone surrogates in all that a message says."""
    calls = tuple([ToolCall(clean(call.name), clean(call.arguments)) for call in message.calls])
    return Message(clean(message.role), clean(message.text), calls)


decode: Final = msgspec.json.Decoder().decode
"""Decode strictly; `ValueError` sends the body to the tolerant step."""


def named_tools(fields: dict[str, Any]) -> list[str]:
    """Return the names of tools that are declared with their names at the top, where a body is odd elsewhere."""
    tools = as_list(fields.get("tools"))[:ITEMS_MAX]
    return [name for tool in tools if isinstance(tool, dict) and (name := text(tool.get("name")))]


_OPENING_MESSAGES_MAX: Final = 100  # the user speaks among these, or the conversation has no name

_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes

T = TypeVar("T")
Raw = msgspec.Raw
NULL: Final = Raw(b"null")


class BodyModel(msgspec.Struct, gc=False, kw_only=True):
    """What every dialect's body may hold: ids, undecoded, so that a wrong type in one hides none of the others.

    A dialect adds the fields it reads; anything of another type in these sends the whole body to the tolerant step.
    """

    conversation: Raw = NULL
    conversation_id: Raw = NULL
    thread_id: Raw = NULL
    litellm_session_id: Raw = NULL
    session_id: Raw = NULL
    sessionId: Raw = NULL  # noqa: N815 - as it is sent
    langfuse_session_id: Raw = NULL
    litellm_trace_id: Raw = NULL
    litellm_metadata: Raw = NULL
    metadata: Raw = NULL
    previous_response_id: Raw = NULL
    prompt_cache_key: Raw = NULL
    user: Raw = NULL
    safety_identifier: Raw = NULL


class NamedTool(msgspec.Struct, gc=False):
    """A tool that a request declares, as far as it is read."""

    name: str = ""


class BodyFields(msgspec.Struct, gc=False):
    """A body taken apart. (A struct is made three times as fast as a named tuple.)"""

    model: str
    items: list[Any]  # undecoded until `item_at` is asked for one
    stream: bool = False
    max_tokens: int | None = None
    system: Any = None  # what stands outside the messages; part of the opening, never of the tail
    fields: Any = None  # all that was found: a `BodyModel`, or a dict of values where it had to be read tolerantly
    lead: int = 0  # how many of the items stand before the conversation
    answers: int = 1  # how many are asked for at once


Typed = Callable[[bytes], BodyFields]
Tolerant = Callable[[dict[str, Any]], BodyFields | None]
Flatten = Callable[[Any], Message | None]
Newest = Callable[[list[Any], int], list[Message]]
InPath = Callable[[str], tuple[str, bool]]


class ConversationReader:
    """Reads one dialect. `typed` raises ValueError for what it does not expect; `tolerant` takes decoded fields."""

    __slots__ = ("_tolerant", "_typed", "flatten", "in_path", "name", "newest")

    def __init__(
        self,
        name: str,
        typed: Typed,
        tolerant: Tolerant,
        flatten: Flatten,
        newest: Newest | None = None,
        in_path: InPath | None = None,
    ) -> None:
        self.name = name
        self._typed = typed
        self._tolerant = tolerant
        self.flatten = flatten
        self.newest = newest or self._last
        self.in_path = in_path  # where model and stream flag are no fields

    def take(self, body: bytes, path: str = "") -> ParsedBody | None:
        """Take a request body apart, or return None when it is none of this dialect."""
        try:
            try:
                return ParsedBody(self, body, self._typed(body), path)
            except ValueError:  # of msgspec too: broken JSON, or a type that is not expected
                parts = self.loaded(body)
                return None if parts is None else ParsedBody(self, body, parts, path, tolerant=True)
        except RecursionError:
            return None

    def read(self, body: bytes, tail: int) -> Chat | None:
        """Read a request body with its last `tail` messages, or return None when it is none of this dialect."""
        taken = self.take(body)
        return None if taken is None else taken.chat(tail)

    def opening(self, body: bytes) -> str:
        """Return the system prompt and the messages up to the first of the user, which name a conversation; else ""."""
        taken = self.take(body)
        return "" if taken is None else taken.opening()

    def loaded(self, body: bytes) -> BodyFields | None:
        """Take a body apart tolerantly."""
        fields = load(body)
        return self._tolerant(fields) if isinstance(fields, dict) else None

    def _last(self, items: list[Any], tail: int) -> list[Message]:
        flatten, size = self.flatten, len(items)
        newest = range(max(0, size - tail), size)
        return [message for at in newest if (message := flatten(item_at(items, at))) is not None]


class ParsedBody:
    """One request body, taken apart. Its parts become the tolerant ones where a message is not as expected."""

    __slots__ = ("_opened", "_path", "_reader", "body", "dialect", "parts", "tolerant")

    def __init__(
        self, reader: ConversationReader, body: bytes, parts: BodyFields, path: str, *, tolerant: bool = False
    ) -> None:
        self._reader = reader
        self.dialect = reader.name
        self.body = body
        self._path = path
        self._opened: list[str] | None = None
        self.parts = parts
        self.tolerant = tolerant  # texts may hold lone surrogates then

    def view(self, read: Callable[[BodyFields], T]) -> T | None:
        """Return what `read` finds in the parts; None where nothing can be read. `read` raises ValueError for oddities,
        and is called again with tolerant parts then.
        """
        try:
            if not self.tolerant:
                try:
                    return read(self.parts)
                except ValueError:
                    parts = self._reader.loaded(self.body)
                    if parts is None:
                        return None
                    self.parts, self.tolerant = parts, True
            return read(self.parts)
        except RecursionError:
            return None

    def chat(self, tail: int) -> Chat | None:
        """Return what the request says, with its last `tail` messages; None where it cannot be read after all."""
        newest = self._reader.newest
        if not self.tolerant:  # as most: without a function made for it
            try:
                return self._chat(tuple(newest(self.parts.items, tail)))
            except (ValueError, RecursionError):
                pass
        found = self.view(lambda parts: tuple(newest(parts.items, tail)))
        return None if found is None else self._chat(found)

    def head(self) -> Chat:
        """Return the same without decoding any message, for a third of the cost: its tail is `UNREAD`."""
        return self._chat(UNREAD)

    def _chat(self, found: tuple[Message, ...]) -> Chat:
        parts, in_path = self.parts, self._reader.in_path
        model, stream = (parts.model, parts.stream) if in_path is None else in_path(self._path)
        size, limit = len(parts.items), parts.max_tokens
        if not self.tolerant:
            return _new(Chat, (self.dialect, model, found, size, stream, limit, "", parts.answers))
        if found is not UNREAD:
            found = tuple([clean_message(message) for message in found])
        return Chat(self.dialect, clean(model), found, size, stream, limit, "tolerant", parts.answers)

    def opening(self) -> str:
        """Return the system prompt and the messages up to the first of the user, which name a conversation; else ""."""
        text = "\n".join(self._opening_texts())
        return text if text.isascii() else clean(text)

    def system(self) -> str:
        """Return what an opening has before the user speaks: the system prompt; "" where nobody speaks."""
        return clean("\n".join(self._opening_texts()[:-1]))

    def _opening_texts(self) -> list[str]:
        known = self._opened
        if known is None:
            known = self._opened = self.view(self._up_to_user) or []
        return known

    def _up_to_user(self, parts: BodyFields) -> list[str]:
        texts: list[str] = []
        if parts.system is not None:
            system = content(value(parts.system))
            if system:
                texts.append(f"system\n{system}")
        flatten, items = self._reader.flatten, parts.items
        for at in range(min(len(items), _OPENING_MESSAGES_MAX)):
            item = items[at]
            message = flatten(item if type(item) is dict else item_at(items, at))
            if message is None:
                continue
            role = message.role
            texts.append(f"{role}\n{message.text}")
            if role == "user":
                return texts
        return []


def item_at(items: list[Any], at: int) -> Any:
    """Return an item's value, which is decoded in its place; ValueError where an object was expected."""
    found = items[at]
    if type(found) is Raw:
        found = decode(found)
        if type(found) is not dict:
            raise ValueError("not an object")
        items[at] = found
    return found


def value(field: Any) -> Any:
    """Return the value of a field that may be undecoded."""
    return decode(field) if type(field) is Raw else field
