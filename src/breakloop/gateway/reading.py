"""Reads an answer along while it passes (`wire.answer`). Nothing here may stop, delay or change what passes; an answer
that cannot be read is counted and passes unread."""

from __future__ import annotations

from collections.abc import Callable

from breakloop.gateway.answer_body import Joint
from breakloop.gateway.answer_head import AnswerHead
from breakloop.model.call import Chat
from breakloop.wire import answer as answers
from breakloop.wire.encoding import EncodingError, Unpacker

GiveUp = answers.GiveUp


class Reading(answers.PassingAnswer):
    """One answer being read."""

    __slots__ = ()

    def end(self, _framing: int, _joint: Joint | None) -> bytes:
        """Return what ends an answer that is to be cut."""
        return b""


Guard = Callable[[Unpacker | None, GiveUp], Reading]


def reading_for(chat: Chat, head: AnswerHead, give_up: GiveUp, guard: Guard | None = None) -> Reading | None:
    """Return what reads the answer to a request, or None when there is nothing in it to read.

    Where it comes as a stream, `guard` makes it.
    """
    form = answers.form_of(chat.dialect, head.headers.get("content-type", b""), streamed=chat.stream)
    if form is None:
        return None
    try:
        unpacker = answers.unpacker(head.headers.get("content-encoding", b""))
    except EncodingError as error:
        give_up(error.reason)
        return None
    if guard is not None and form == answers.STREAM:
        return guard(unpacker, give_up)
    return Reading(answers.reader_of(chat.dialect, form), unpacker, give_up)
