"""Reads an answer along while it passes to the program that asked for it, and settles the request once, when the answer
ends. Bytes are never held back, changed, or lost to a fault of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from breakloop.model.answer import CLIENT_LEFT, Answer
from breakloop.model.decision import Decision
from breakloop.sdk.core import chat_of
from breakloop.wire.answer import PassingAnswer, reader, unpacker
from breakloop.wire.encoding import EncodingError

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard


class SettlingReader:
    """One answer on its way. `feed` takes bytes as they came over the wire, packed as they are."""

    __slots__ = ("_decision", "_guard", "_over", "_passing", "_status")

    def __init__(self, guard: Guard, decision: Decision, status: int, content_type: bytes, encoding: bytes) -> None:
        self._guard = guard
        self._decision = decision
        self._status = status
        self._over = False
        self._passing = _passing(decision, content_type, encoding)

    def feed(self, content: bytes) -> None:
        """Take what has just passed."""
        if self._passing is not None:
            self._passing.feed([content])

    def end(self, *, complete: bool) -> None:
        """Settle: the answer is through, or was given up."""
        if not self._over:
            self._over = True
            self._guard.settle(self._decision, self._answer(complete=complete))

    async def aend(self, *, complete: bool) -> None:
        """The same, without blocking the event loop."""
        if not self._over:
            self._over = True
            await self._guard.asettle(self._decision, self._answer(complete=complete))

    def _answer(self, *, complete: bool) -> Answer:
        if self._passing is None:
            answer = Answer(self._status, complete=complete)
        else:
            answer = self._passing.answer(self._status, complete=complete)
        return answer if complete or answer.complete else answer._replace(status=CLIENT_LEFT)


def _passing(decision: Decision, content_type: bytes, encoding: bytes) -> PassingAnswer | None:
    chat = chat_of(decision.call) if decision.call is not None else None
    found = reader(chat.dialect, content_type, streamed=chat.stream) if chat is not None else None
    try:
        return PassingAnswer(found, unpacker(encoding), _unread) if found is not None else None
    except EncodingError:
        return None


def _unread(_why: str) -> None:
    """An answer that cannot be read is settled by its status."""
