"""What the readers of all formats share: their base class, values that they look for in a record, and a conversation
from which each request is rebuilt.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple

from breakloop.dialects.content import arguments, json_text, text
from breakloop.model.call import Answer, ToolCall, Usage
from breakloop.replay.sessions import RecordedBody, RecordedTurn, SessionSlice

TIMES = ("timestamp", "start_time", "startTime", "time", "ts", "created_at", "date")
SESSIONS = ("session_id", "sessionId", "conversation_id", "thread_id", "run_id", "session", "litellm_session_id")
TRACES = ("trace_id", "traceId", "litellm_trace_id")
AGENTS = ("agent", "agent_id", "agent_name")
_MILLISECONDS_FROM = 1e11  # in seconds, the year 5138
_NANOSECONDS_FROM = 1e17
_COUNT_MAX = 1e15
_LATEST = 1e21  # in nanoseconds; a larger number is not a time


class FormatReader(ABC):
    """Reader of one format, which its first record decides."""

    format: ClassVar[str]

    def __init__(self, name: str) -> None:
        self._name = name  # of the file
        self._count = 0  # sessions so far

    @staticmethod
    @abstractmethod
    def fits(record: Mapping[str, Any]) -> bool:
        """Return whether a record has this format."""

    @abstractmethod
    def take(self, record: Mapping[str, Any]) -> Iterable[SessionSlice]:
        """Read one record. Raises ValueError if it cannot be read."""

    def end(self) -> Iterable[SessionSlice]:
        """Return what is left after the last record."""
        return ()


def decoded(value: object) -> Any:
    """Parse a JSON string. Other values, and strings that are not JSON, are returned as they are."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def mapping(value: object) -> dict[str, Any]:
    """Return a map, given as such or as a JSON string; an empty map for anything else."""
    found = decoded(value)
    return found if isinstance(found, dict) else {}


def first(record: Mapping[str, Any], names: Iterable[str]) -> Any:
    """Return the first of these fields that is not empty."""
    return next((record[name] for name in names if record.get(name) not in (None, "", {}, [])), None)


def named(record: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of these names in a record or its metadata, as text, or ""."""
    listed = tuple(names)
    found = first(record, listed)
    if not isinstance(found, str | int):
        found = first(mapping(record.get("metadata")), listed)
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""


def seconds(value: object) -> float | None:
    """Return a time in seconds, from a number of seconds, milliseconds or nanoseconds, or from an ISO 8601 date."""
    if isinstance(value, str) and value.replace(".", "", 1).isdigit():
        value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or abs(value) > _LATEST:
            return None
        if value >= _NANOSECONDS_FROM:
            return value / 1e9
        return value / 1e3 if value >= _MILLISECONDS_FROM else float(value)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def count(value: object) -> int:
    """Return a count, or 0 for anything that is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _COUNT_MAX:
        return 0
    return int(value)


def tool_call(call: Mapping[str, Any]) -> ToolCall:
    """Return a call of a function or of a custom tool, in the form of OpenAI, or only its name and arguments."""
    made = mapping(call.get("function")) or mapping(call.get("custom")) or call
    return ToolCall(text(made.get("name")), arguments(made.get("arguments", made.get("input"))))


def usage_of(said: Mapping[str, Any]) -> Usage | None:
    """Return recorded token counts, by the names of OpenAI or Anthropic; None if there are none."""
    asked = count(first(said, ("prompt_tokens", "input_tokens")))
    answered = count(first(said, ("completion_tokens", "output_tokens")))
    if not asked and not answered:
        return None
    cached = count(mapping(said.get("prompt_tokens_details")).get("cached_tokens"))
    return Usage(asked, answered, cached, count(said.get("cache_creation_input_tokens")))


Item = Mapping[str, Any]


class Form(NamedTuple):
    """The path of requests and the field with the conversation."""

    path: str
    field: str


CHAT = Form("/v1/chat/completions", "messages")
RESPONSES = Form("/v1/responses", "input")
ANTHROPIC = Form("/v1/messages", "messages")


class Dialogue:
    """One conversation. Input that arrives during a response (results of its first calls) is placed after it."""

    __slots__ = ("_answered_at", "_answering", "_asked_at", "_began_at", "_behind", "_form", "_items")

    def __init__(self, form: Form) -> None:
        self._form = form
        self._items: list[tuple[str, bytes]] = []  # each with a name by which it can be removed
        self._behind: list[tuple[str, bytes]] = []
        self._answering = False
        self._asked_at: float | None = None  # time of the last input, which is when the request was sent
        self._began_at: float | None = None
        self._answered_at: float | None = None

    def hear(self, item: Item, at_s: float | None = None, name: str = "") -> None:
        """Add an item to the next request."""
        (self._behind if self._answering else self._items).append((name, json_text(item)))
        if at_s is not None:
            self._asked_at = at_s

    def begin(self, at_s: float | None) -> None:
        """Start a response: the request is complete."""
        self._answering = True
        self._began_at = at_s if self._asked_at is None else self._asked_at
        self._answered_at = at_s
        self._asked_at = None

    def answered(
        self, items: Iterable[Item], answer: Answer, model: str, key: str = "", name: str = ""
    ) -> RecordedTurn:
        """End a response and return the turn."""
        sent = RecordedBody(self._form.path, self._body(model))
        turn = RecordedTurn(sent, answer, at_s=self._began_at, key=key, answered_at_s=self._answered_at)
        self._items += [(name, json_text(item)) for item in items]
        self._items += self._behind
        self._behind = []
        self._answering = False
        return turn

    def restart(self, items: Iterable[Item] = ()) -> None:
        """Replace the conversation: it was compacted."""
        self._items = [("", json_text(item)) for item in items]

    def forget(self, names: Collection[str], instead: Item | None, at: int) -> None:
        """Remove items by name and insert a summary in their place."""
        self._items = [pair for pair in self._items if not pair[0] or pair[0] not in names]
        if instead is not None:
            self._items.insert(at, ("", json_text(instead)))

    def _body(self, model: str) -> bytes:
        items = b",".join([item for _, item in self._items])
        return b'{"model":%s,"%s":[%s]}' % (json_text(model), self._form.field.encode(), items)
