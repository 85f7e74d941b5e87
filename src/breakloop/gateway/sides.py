"""The two sides that an exchange stands between: the client's connection, and the door that judged the request."""

from __future__ import annotations

from typing import Protocol

from breakloop.gateway.answer_head import AnswerHead
from breakloop.gateway.head import Reply, Request
from breakloop.gateway.reading import Reading
from breakloop.model.answer import Answer
from breakloop.model.call import Call


class Client(Protocol):
    """What an exchange needs of the client's connection."""

    def relay(self, data: bytes) -> None:
        """Send these bytes of the answer."""
        ...

    def relayed(self, *, close: bool) -> None:
        """The answer is complete."""
        ...

    def answer(self, request: Request, reply: Reply) -> None:
        """Send a whole reply in the place of the answer."""
        ...

    def abort(self) -> None:
        """End the connection so that the client cannot take what it has for the whole."""
        ...

    def reset(self) -> None:
        """The same where the end of the connection would be the end of the answer."""
        ...

    def hold(self, *, hold: bool) -> None:
        """Stop reading the upload, or go on."""
        ...


class Door(Protocol):
    """What an exchange needs of the door that forwards."""

    def reading(self, call: Call, head: AnswerHead) -> Reading | None:
        """Return what reads along, or None when nobody wants to know."""
        ...

    def settle(self, call: Call, answer: Answer) -> None:
        """Tell the engine how it ended."""
        ...

    def failed(self, call: Call, status: int, why: str) -> Reply:
        """Return what the client gets when the upstream gave no answer."""
        ...
