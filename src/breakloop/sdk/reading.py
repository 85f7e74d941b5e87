"""Reads an answer along while it passes to whoever asked for it, and settles the request when it ends, once. Bytes are
never held back, changed, or lost to a fault of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from breakloop.model.answer import CLIENT_LEFT, Answer
from breakloop.model.decision import Decision
from breakloop.sdk.core import chat_of
from breakloop.wire.answer import AnswerReader, reader
from breakloop.wire.encoding import EncodingError, Unpacker

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard

UNPACKED_MAX: Final = 64 * 1024 * 1024


class Reading:
    """One answer on its way. `feed` takes bytes as they came over the wire, packed as they are."""

    __slots__ = ("_decision", "_guard", "_over", "_reader", "_status", "_unpacker")

    def __init__(self, guard: Guard, decision: Decision, status: int, content_type: bytes, encoding: bytes) -> None:
        self._guard = guard
        self._decision = decision
        self._status = status
        self._over = False
        self._unpacker: Unpacker | None = None
        self._reader: AnswerReader | None = None
        chat = chat_of(decision.call) if decision.call is not None else None
        if chat is None:
            return
        try:
            if encoding and encoding.strip().lower() != b"identity":
                self._unpacker = Unpacker(encoding, UNPACKED_MAX)
            self._reader = reader(chat.dialect, content_type, streamed=chat.stream)
        except EncodingError:
            return

    def feed(self, content: bytes) -> None:
        """Take what has just passed."""
        if self._reader is None:
            return
        try:
            self._reader.feed(content if self._unpacker is None else self._unpacker.feed(content))
        except Exception:  # noqa: BLE001 - the outermost edge: a fault in reading must not end an answer
            self._reader = None

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
        status = self._status if complete else CLIENT_LEFT
        if self._reader is None:
            return Answer(status, complete=complete)
        try:
            answer = self._reader.answer(self._status, complete=complete)
        except Exception:  # noqa: BLE001 - as in `feed`
            return Answer(status, complete=complete)
        return answer if complete or answer.complete else answer._replace(status=CLIENT_LEFT)
