"""Ends a streamed answer well, while it is read: where it repeats itself (SPEC LD-8), and where it is longer than a
rule lets it be (L-3). Nothing is held back here either: what has come passes, and what comes after it does not.

What repeats itself is known to `repeats`, how much was said to `spoken`; how a dialect ends a stream is
`wire.stream_end`'s business, and whether an answer is watched at all the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from breakloop.detect.step_loop import CUTS
from breakloop.gateway.answer_body import Joint
from breakloop.gateway.answer_head import AnswerHead
from breakloop.gateway.answer_out import can_follow, ended_with
from breakloop.gateway.reading import GiveUp, Reading, reading_for
from breakloop.gateway.repeats import Repeats, Tell
from breakloop.gateway.sides import Client
from breakloop.gateway.spoken import Capped, Spoken, TellCap
from breakloop.gateway.upstream import UpstreamConnection
from breakloop.model.answer import Answer
from breakloop.model.call import Chat
from breakloop.model.completion_cap import CompletionCap
from breakloop.wire.encoding import Unpacker
from breakloop.wire.overheard import Listener, Overheard
from breakloop.wire.stream_end import can_end

# How the content ends between two events, and with which line ends ours go on.
_BETWEEN_EVENTS: Final = {b"\n\n": b"\n", b"\n\r\n": b"\r\n", b"\r\r": b"\r"}

_NO_STREAM: Final = b"application/"  # as most answers are that are none
CUT, WARN = "cut", "warn"  # what became of it: it was ended (in shadow: would have been), or only told


class Matter(Protocol):
    """Something for which a stream is ended, or which is only told."""

    told: str  # as what it is told, and nothing else is done; empty: the answer is cut

    @property
    def is_told(self) -> bool:
        """Whether it has been told."""
        ...

    def say(self, what: str) -> None:
        """Tell what became of it; once at the most."""
        ...


class Ear(Listener, Protocol):
    """Who listens to one stream."""

    @property
    def found(self) -> bool:
        """Whether there is something to be done about it."""
        ...

    @property
    def open(self) -> list[int]:
        """The answers in it that have not ended."""
        ...

    @property
    def chars(self) -> int:
        """About how much was said and thought."""
        ...

    def matters(self) -> Sequence[Matter]:
        """Return what there is something to be done about."""
        ...


class Watch(NamedTuple):
    """What is looked for in the streamed answer to one request, and who is told of it."""

    repeated: Tell
    capped: TellCap
    guards: int = 0  # `Call.guards_stream`
    caps: Sequence[CompletionCap] = ()

    def ear(self, answers: int, *, possible: bool) -> Ear:
        """Return who listens; without `possible` the answer cannot be cut, and everything is only told."""
        repeats = Repeats(self.repeated, _told(self.guards == CUTS, possible)) if self.guards else None
        if repeats is not None and not self.caps:
            return repeats
        return Spoken([Capped(cap, answers, self.capped, _told(cap.cuts, possible)) for cap in self.caps], repeats)


def _told(cuts: bool, possible: bool) -> str:  # noqa: FBT001 - two words of one question
    return ("" if cuts else CUT) if possible else WARN


class Guarded(Reading):
    """One answer that is read and watched. What is done about each matter is told once at the most."""

    __slots__ = ("_ear", "_overheard", "_tail")

    def __init__(self, dialect: str, unpacker: Unpacker | None, give_up: GiveUp, ear: Ear) -> None:
        self._ear = ear
        self._overheard = Overheard(dialect, ear, calls=isinstance(ear, Spoken))
        super().__init__(self._overheard, unpacker, give_up)
        self._tail = b""  # of the content, the last three bytes at least

    def feed(self, content: list[bytes]) -> bool:
        """Take what has just been passed on; return whether the answer is to be cut."""
        Reading.feed(self, content)
        if content:
            last = content[-1]
            self._tail = last if len(last) > 2 else self._tail[-3:] + b"".join(content)
        return self._ear.found and self._look()

    def _look(self) -> bool:
        cuts = False
        for matter in self._ear.matters():
            if not matter.told:
                cuts = True
            elif not matter.is_told and self._final():
                matter.say(matter.told)
        return cuts and self._reader is not None

    def end(self, framing: int, joint: Joint | None) -> bytes:
        """Return what the client gets as the rest of the answer; nothing where it cannot be ended here."""
        line_end = next((_BETWEEN_EVENTS[end] for end in _BETWEEN_EVENTS if self._tail.endswith(end)), b"")
        if not line_end or not can_follow(framing, joint):
            return b""
        final = self._final().replace(b"\n", line_end)
        if final:
            due = [matter for matter in self._ear.matters() if not matter.told]
            super().feed([final])
            for matter in due:
                matter.say(CUT)
        return final and ended_with(final, framing, joint)

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what was read; tell of what could not be ended."""
        for matter in self._ear.matters():
            if not matter.is_told and self._final():
                matter.say(matter.told or WARN)
        answer, ear = super().answer(status, complete=complete), self._ear
        if isinstance(ear, Spoken) and ear.thought_chars:  # nobody keeps thoughts, but they are paid for
            answer = answer._replace(unkept_chars=answer.unkept_chars + ear.thought_chars)
        return answer

    def _final(self) -> bytes:
        """What would end the stream now."""
        if self._reader is None:
            return b""
        try:
            return self._overheard.ending(self._ear.open, self._ear.chars)
        except Exception:  # noqa: BLE001 - the outermost edge: a fault in writing an end must not end an answer
            self._stop("fault")
            return b""


def guarded_reading(chat: Chat, head: AnswerHead, give_up: GiveUp, watch: Watch) -> Reading | None:
    """Return what reads an answer and watches it if it is a stream."""
    kind = head.headers.get("content-type", b"")
    if kind.startswith(_NO_STREAM) or not can_end(chat.dialect):
        return reading_for(chat, head, give_up)
    return reading_for(chat, head, give_up, partial(_guard, chat, head.length >= 0, watch))


def _guard(
    chat: Chat,
    has_length: bool,  # noqa: FBT001 - called by `reading_for`
    watch: Watch,
    unpacker: Unpacker | None,
    give_up: GiveUp,
) -> Reading:
    """An answer whose length the client knows already, and one that is compressed, cannot be cut."""
    ear = watch.ear(chat.answers, possible=unpacker is None and not has_length)
    return Guarded(chat.dialect, unpacker, give_up, ear)


def cut(reading: Reading, framing: int, upstream: UpstreamConnection, client: Client) -> bool:
    """End an answer for its client if that can be done at this place; look at every line that follows if not."""
    rest = reading.end(framing, upstream.joint)
    if not rest:
        upstream.by_line = True
        return False
    client.relay(rest)
    upstream.reusable = False
    return True
