"""Takes a request body apart once (SPEC C-9): typed, then tolerant, then None, which means plain HTTP.

One pass finds the fields and splits the messages; a message is decoded when somebody asks for it, and once. A dialect
says where its fields are and how a message is flattened. Steps and ids of sessions are read from the same parts by
`steps` and `session_ids`; folding case and white space, and hashing, is left to `detect`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from breakloop.model.call import UNREAD, Chat, Message
from breakloop.wire.content import clean, clean_message, content, decode, load

_OPENING_MESSAGES_MAX: Final = 100  # the user speaks among these, or the conversation has no name

_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes

T = TypeVar("T")
Raw = msgspec.Raw
NULL: Final = Raw(b"null")


class Body(msgspec.Struct, gc=False, kw_only=True):
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


class Named(msgspec.Struct, gc=False):
    """A tool that a request declares, as far as it is read."""

    name: str = ""


class Parts(msgspec.Struct, gc=False):
    """A body taken apart. (A struct is made three times as fast as a named tuple.)"""

    model: str
    items: list[Any]  # undecoded until `item_at` is asked for one
    stream: bool = False
    max_tokens: int | None = None
    system: Any = None  # what stands outside the messages; part of the opening, never of the tail
    fields: Any = None  # all that was found: a `Body`, or a dict of values where it had to be read tolerantly
    lead: int = 0  # how many of the items stand before the conversation
    answers: int = 1  # how many are asked for at once


Typed = Callable[[bytes], Parts]
Tolerant = Callable[[dict[str, Any]], Parts | None]
Flatten = Callable[[Any], Message | None]
Newest = Callable[[list[Any], int], list[Message]]
InPath = Callable[[str], tuple[str, bool]]


class Conversation:
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

    def take(self, body: bytes, path: str = "") -> Taken | None:
        """Take a request body apart, or return None when it is none of this dialect."""
        try:
            try:
                return Taken(self, body, self._typed(body), path)
            except ValueError:  # of msgspec too: broken JSON, or a type that is not expected
                parts = self.loaded(body)
                return None if parts is None else Taken(self, body, parts, path, tolerant=True)
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

    def loaded(self, body: bytes) -> Parts | None:
        """Take a body apart tolerantly."""
        fields = load(body)
        return self._tolerant(fields) if isinstance(fields, dict) else None

    def _last(self, items: list[Any], tail: int) -> list[Message]:
        flatten, size = self.flatten, len(items)
        newest = range(max(0, size - tail), size)
        return [message for at in newest if (message := flatten(item_at(items, at))) is not None]


class Taken:
    """One request body, taken apart. Its parts become the tolerant ones where a message is not as expected."""

    __slots__ = ("_opened", "_path", "_reader", "body", "dialect", "parts", "tolerant")

    def __init__(self, reader: Conversation, body: bytes, parts: Parts, path: str, *, tolerant: bool = False) -> None:
        self._reader = reader
        self.dialect = reader.name
        self.body = body
        self._path = path
        self._opened: list[str] | None = None
        self.parts = parts
        self.tolerant = tolerant  # texts may hold lone surrogates then

    def view(self, read: Callable[[Parts], T]) -> T | None:
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

    def _up_to_user(self, parts: Parts) -> list[str]:
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
