"""`Dialogue`: a conversation as the program that holds it keeps it, in the items of its own API. Each request is made
again from it. Transcripts tell what came in and what was answered; which record is which is the readers' business."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from breakloop.model.answer import Answer
from breakloop.replay.readers import anthropic_log, openai_log
from breakloop.replay.sessions import Body, Turn
from breakloop.wire.content import json_text

Item = Mapping[str, Any]


class Form(NamedTuple):
    """Where requests go, and the field that holds the conversation."""

    path: str
    field: str


CHAT = Form(openai_log.CHAT, "messages")
RESPONSES = Form(openai_log.RESPONSES, "input")
ANTHROPIC = Form(anthropic_log.PATH, "messages")


class Dialogue:
    """One conversation. What comes in while an answer is under way (results of its first calls) stands behind it."""

    __slots__ = ("_answering", "_asked_at", "_began_at", "_behind", "_form", "_items")

    def __init__(self, form: Form) -> None:
        self._form = form
        self._items: list[tuple[str, bytes]] = []  # each with the name that it may be forgotten by
        self._behind: list[tuple[str, bytes]] = []
        self._answering = False
        self._asked_at: float | None = None  # when something came in last: then the request was sent
        self._began_at: float | None = None

    def hear(self, item: Item, at_s: float | None = None, name: str = "") -> None:
        """Take something that goes into the next request."""
        (self._behind if self._answering else self._items).append((name, json_text(item)))
        if at_s is not None:
            self._asked_at = at_s

    def begin(self, at_s: float | None) -> None:
        """An answer begins: what was asked is complete."""
        self._answering = True
        self._began_at = at_s if self._asked_at is None else self._asked_at
        self._asked_at = None

    def answered(self, items: Iterable[Item], answer: Answer, model: str, key: str = "", name: str = "") -> Turn:
        """The answer is complete; return the call of the model."""
        turn = Turn(Body(self._form.path, self._body(model)), answer, at_s=self._began_at, key=key)
        self._items += [(name, json_text(item)) for item in items]
        self._items += self._behind
        self._behind = []
        self._answering = False
        return turn

    def restart(self, items: Iterable[Item] = ()) -> None:
        """Forget everything but these: the conversation was compacted."""
        self._items = [("", json_text(item)) for item in items]

    def forget(self, names: Collection[str], instead: Item | None, at: int) -> None:
        """Forget items by their names, and put a summary in their place."""
        self._items = [pair for pair in self._items if not pair[0] or pair[0] not in names]
        if instead is not None:
            self._items.insert(at, ("", json_text(instead)))

    def _body(self, model: str) -> bytes:
        items = b",".join([item for _, item in self._items])
        return b'{"model":%s,"%s":[%s]}' % (json_text(model), self._form.field.encode(), items)
