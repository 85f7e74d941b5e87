"""Takes a request body apart in steps (SPEC C-9): typed, then tolerant, then None, which means plain HTTP.

A dialect says where its fields are and how a message is flattened. Only the newest messages are decoded; folding case
and white space, and hashing, is left to `detect`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import orjson

from breakloop.model.call import Chat, Message
from breakloop.wire.content import clean, clean_message, content, decode, load

# A list of a million tiny items is eight times as slow as list[Raw] (a new object each) as it is as plain values; with
# items of 32 bytes and more it is the other way round. There are at most as many items as there are commas.
_ANY_RAW_MAX_BYTES: Final = 64 * 1024
_RAW_ITEM_MIN_BYTES: Final = 32
_OPENING_MESSAGES_MAX: Final = 100  # the user speaks among these, or the conversation has no name

Raw = msgspec.Raw
NULL: Final = Raw(b"null")
_decode_raw_list = msgspec.json.Decoder(list[Raw]).decode


class Parts(msgspec.Struct, gc=False):
    """A body taken apart; items may still be undecoded. (A struct is made three times as fast as a named tuple.)"""

    model: str
    items: list[Any]
    stream: bool = False
    max_tokens: int | None = None
    system: Any = None  # what stands outside the messages; part of the opening, never of the tail


Typed = Callable[[bytes], Parts]
Tolerant = Callable[[dict[str, Any]], Parts | None]
Flatten = Callable[[Any], Message | None]
Newest = Callable[[list[Any], int], Iterable[Message]]


class Conversation:
    """Reads one dialect. `typed` raises ValueError for what it does not expect; `tolerant` takes decoded fields."""

    __slots__ = ("_flatten", "_name", "_newest", "_tolerant", "_typed")

    def __init__(
        self, name: str, typed: Typed, tolerant: Tolerant, flatten: Flatten, newest: Newest | None = None
    ) -> None:
        self._name = name
        self._typed = typed
        self._tolerant = tolerant
        self._flatten = flatten
        self._newest = newest or self._last

    def read(self, body: bytes, tail: int) -> Chat | None:
        """Read a request body, or return None when it is none of this dialect."""
        try:
            parts = self._typed(body)
            items = parts.items
            newest = tuple(self._newest(items, tail))
            return Chat(self._name, parts.model, newest, len(items), parts.stream, parts.max_tokens)
        except RecursionError:
            return None
        except ValueError:  # of msgspec and orjson too: broken JSON, or a type that is not expected
            return self._read_tolerantly(body, tail)

    def opening(self, body: bytes) -> str:
        """Return the system prompt and the messages up to the first of the user, which name a conversation; else ""."""
        try:
            try:
                parts: Parts | None = self._typed(body)
                return self._up_to_user(parts)
            except ValueError:
                parts = self._loaded(body)
            return self._up_to_user(parts)
        except RecursionError:
            return ""

    def _loaded(self, body: bytes) -> Parts | None:
        fields = load(body)
        return self._tolerant(fields) if isinstance(fields, dict) else None

    def _read_tolerantly(self, body: bytes, tail: int) -> Chat | None:
        try:
            parts = self._loaded(body)
            if parts is None:
                return None
            newest = tuple([clean_message(message) for message in self._newest(parts.items, tail)])
        except RecursionError:
            return None
        model, size = clean(parts.model), len(parts.items)
        return Chat(self._name, model, newest, size, parts.stream, parts.max_tokens, "tolerant")

    def _last(self, items: list[Any], tail: int) -> list[Message]:
        if tail <= 0:
            return []
        flatten = self._flatten
        return [message for item in items[-tail:] if (message := flatten(decoded(item))) is not None]

    def _up_to_user(self, parts: Parts | None) -> str:
        if parts is None:
            return ""
        texts: list[str] = []
        system = content(decode(parts.system) if isinstance(parts.system, Raw) else parts.system)
        if system:
            texts.append(f"system\n{system}")
        for item in parts.items[:_OPENING_MESSAGES_MAX]:
            message = self._flatten(decoded(item))
            if message is None:
                continue
            texts.append(f"{message.role}\n{message.text}")
            if message.role == "user":
                return clean("\n".join(texts))
        return ""


def decoded(item: Any) -> Any:
    """Return an item's value, whether it was decoded before or not; ValueError where an object was expected."""
    if not isinstance(item, Raw):
        return item
    value = decode(item)
    if isinstance(value, dict):
        return value
    raise ValueError("not an object")


def undecoded_items(items: Raw, body: bytes) -> list[Any]:
    """Split a list without decoding its items, unless there are too many small ones; ValueError if it is no list."""
    size = len(body)
    if size <= _ANY_RAW_MAX_BYTES or body.count(b",") * _RAW_ITEM_MIN_BYTES < size:
        return _decode_raw_list(items)
    value = orjson.loads(memoryview(items))
    if not isinstance(value, list):
        raise ValueError("not a list of messages")  # noqa: TRY004 (as the decoders say it)
    return value
