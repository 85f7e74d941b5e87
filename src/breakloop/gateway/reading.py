"""Reads an answer along while it passes: unpacks it if it is compressed and hands it to the dialect's reader. Nothing
here may stop, delay or change what passes; an answer that cannot be read is counted and passes unread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.gateway.answer_body import Joint
from breakloop.gateway.answer_head import AnswerHead
from breakloop.model.answer import Answer
from breakloop.model.call import Chat
from breakloop.wire import answer as answers
from breakloop.wire.encoding import EncodingError, Unpacker

UNPACKED_MAX: Final = 64 * 1024 * 1024

GiveUp = Callable[[str], None]  # told why


class Reading:
    """One answer being read."""

    __slots__ = ("_give_up", "_reader", "_unpacker")

    def __init__(self, reader: answers.AnswerReader, unpacker: Unpacker | None, give_up: GiveUp) -> None:
        self._reader: answers.AnswerReader | None = reader
        self._unpacker = unpacker
        self._give_up = give_up

    def feed(self, content: list[bytes]) -> bool:
        """Take what has just been passed on; return whether the answer is to be cut, which is `cutting`'s business."""
        reader = self._reader
        if reader is None:
            return False
        try:
            for piece in content:
                reader.feed(piece if self._unpacker is None else self._unpacker.feed(piece))
        except EncodingError as error:
            self._stop(error.reason)
        except Exception:  # noqa: BLE001 - the outermost edge: a fault in reading must not end an answer
            self._stop("fault")
        return False

    def end(self, _framing: int, _joint: Joint | None) -> bytes:
        """Return what ends an answer that is to be cut."""
        return b""

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what was read, as far as it was."""
        if self._reader is not None:
            try:
                answer = self._reader.answer(status, complete=complete)
                if self._reader.gave_up:
                    self._give_up("unreadable")
                return answer
            except Exception:  # noqa: BLE001 - as in `feed`
                self._stop("fault")
        return Answer(status, complete=complete)

    def _stop(self, why: str) -> None:
        self._reader = self._unpacker = None
        self._give_up(why)


Guard = Callable[[Unpacker | None, GiveUp], Reading]


def reading_for(chat: Chat, head: AnswerHead, give_up: GiveUp, guard: Guard | None = None) -> Reading | None:
    """Return what reads the answer to a request, or None when there is nothing in it to read.

    Where it comes as a stream, `guard` makes it.
    """
    form = answers.form_of(chat.dialect, head.headers.get("content-type", b""), streamed=chat.stream)
    if form is None:
        return None
    encoding = head.headers.get("content-encoding")
    unpacker: Unpacker | None = None
    if encoding and encoding.lower() != b"identity":
        try:
            unpacker = Unpacker(encoding, UNPACKED_MAX)
        except EncodingError as error:
            give_up(error.reason)
            return None
    if guard is not None and form == answers.STREAM:
        return guard(unpacker, give_up)
    return Reading(answers.reader_of(chat.dialect, form), unpacker, give_up)
