"""A conversation in the items of its own API, from which each request is rebuilt; and telling OpenAI and Anthropic
bodies apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from breakloop.dialects import anthropic
from breakloop.dialects.content import json_text
from breakloop.model.call import Answer
from breakloop.replay.sessions import RecordedBody, RecordedTurn

CHAT_PATH = "/v1/chat/completions"
RESPONSES_PATH = "/v1/responses"
COMPLETIONS_PATH = "/v1/completions"


def is_openai(body: Mapping[str, Any]) -> bool:
    """Return whether this can be a request body of OpenAI."""
    if isinstance(body.get("messages"), list):
        return True
    # `input` or `prompt` alone can be anything; with a model it is a request.
    return isinstance(body.get("model"), str) and isinstance(body.get("input", body.get("prompt")), str | list)


def path_of(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        return CHAT_PATH
    return RESPONSES_PATH if "input" in body else COMPLETIONS_PATH


DIALECT: Final = anthropic.NAME
PATH: Final = "/v1/messages"
_BLOCKS: Final = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"))
_LOOKED_AT: Final = 20  # number of messages at either end that are inspected


def is_anthropic(body: Mapping[str, Any]) -> bool:
    """Return whether this can be a request body of Anthropic."""
    return isinstance(body.get("messages"), list)


def is_theirs(body: Mapping[str, Any], response: object) -> bool:
    """Return whether a request without a path was sent to Anthropic."""
    if isinstance(response, dict):
        if "choices" in response:
            return False
        if response.get("type") == "message":
            return True
    if isinstance(response, list) and response and isinstance(response[0], dict):
        return response[0].get("type") == "message_start"
    if "anthropic_version" in body or any(kind in _BLOCKS for kind in _kinds(body)):
        return True
    return "system" in body and "max_tokens" in body


def _kinds(body: Mapping[str, Any]) -> Iterator[object]:
    """Return the types of the blocks in the messages."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    for message in messages[:_LOOKED_AT] + messages[-_LOOKED_AT:]:
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                yield block.get("type")


Item = Mapping[str, Any]


class Form(NamedTuple):
    """The path of requests and the field with the conversation."""

    path: str
    field: str


CHAT_FORM = Form(CHAT_PATH, "messages")
RESPONSES_FORM = Form(RESPONSES_PATH, "input")
ANTHROPIC = Form(PATH, "messages")


class Dialogue:
    """One conversation. Input that arrives during a response (results of its first calls) is placed after it."""

    __slots__ = ("_answering", "_asked_at", "_began_at", "_behind", "_form", "_items")

    def __init__(self, form: Form) -> None:
        self._form = form
        self._items: list[tuple[str, bytes]] = []  # each with a name by which it can be removed
        self._behind: list[tuple[str, bytes]] = []
        self._answering = False
        self._asked_at: float | None = None  # time of the last input, which is when the request was sent
        self._began_at: float | None = None

    def hear(self, item: Item, at_s: float | None = None, name: str = "") -> None:
        """Add an item to the next request."""
        (self._behind if self._answering else self._items).append((name, json_text(item)))
        if at_s is not None:
            self._asked_at = at_s

    def begin(self, at_s: float | None) -> None:
        """Start a response: the request is complete."""
        self._answering = True
        self._began_at = at_s if self._asked_at is None else self._asked_at
        self._asked_at = None

    def answered(
        self, items: Iterable[Item], answer: Answer, model: str, key: str = "", name: str = ""
    ) -> RecordedTurn:
        """End a response and return the turn."""
        turn = RecordedTurn(RecordedBody(self._form.path, self._body(model)), answer, at_s=self._began_at, key=key)
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
