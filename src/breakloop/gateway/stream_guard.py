"""Reads an answer along while it passes (`wire.answer`). Nothing here may stop, delay or change what passes; an answer
that cannot be read is counted and passes unread.

The two sides that an exchange stands between: the client's connection, and the door that judged the request.

Ends a streamed answer well, while it is read: where it repeats itself (SPEC LD-8), and where it is longer than a
rule lets it be (L-3). Nothing is held back here either: what has come passes, and what comes after it does not.

What repeats itself is known to `repeats`, how much was said to `spoken`; how a dialect ends a stream is
`wire.stream_end`'s business, and whether an answer is watched at all the engine's.

What the stream guard knows of the texts in one stream (SPEC LD-8): which answers are open, and whether all of them
repeat themselves. What a repetition is, is `detect.stream`'s business, what is done about it `cutting`'s.

How much one stream has said, thought and called so far, and whether that is more than rules let it (SPEC L-3). A
token is four characters, as everywhere. The stream guard may listen to the same stream; it is told on from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from breakloop.detect.steps.block import CUTS
from breakloop.detect.stream import StreamProbe
from breakloop.dialects import reader as answers
from breakloop.dialects.encoding import EncodingError, Unpacker
from breakloop.dialects.stream_watch import ListeningReader, StreamListener, can_end
from breakloop.gateway.http_request import Reply, Request
from breakloop.gateway.http_response import ChunkBoundary, ResponseHead, can_follow, ended_with
from breakloop.gateway.upstream import UpstreamConnection
from breakloop.model.call import CHARS_A_TOKEN, Answer, Call, Chat, CompletionCap, chars_of

GiveUp = answers.GiveUp


class AnswerTap(answers.PassingAnswer):
    """One answer being read."""

    __slots__ = ()

    def end(self, _framing: int, _joint: ChunkBoundary | None) -> bytes:
        """Return what ends an answer that is to be cut."""
        return b""


Guard = Callable[[Unpacker | None, GiveUp], AnswerTap]


def reading_for(chat: Chat, head: ResponseHead, give_up: GiveUp, guard: Guard | None = None) -> AnswerTap | None:
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
    return AnswerTap(answers.reader_of(chat.dialect, form), unpacker, give_up)


class ExchangeClient(Protocol):
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


class ExchangeHandler(Protocol):
    """What an exchange needs of the door that forwards."""

    def reading(self, call: Call, head: ResponseHead) -> AnswerTap | None:
        """Return what reads along, or None when nobody wants to know."""
        ...

    def settle(self, call: Call, answer: Answer) -> None:
        """Tell the engine how it ended."""
        ...

    def failed(self, call: Call, status: int, why: str) -> Reply:
        """Return what the client gets when the upstream gave no answer."""
        ...


ANSWERS_MAX: Final = 16  # a stream with more of them at once is not cut
OPEN_MAX: Final = 1000  # and with so many, nobody asked for them

Tell = Callable[[str, int, int], None]  # what became of it, how many characters were repeated, and how often

_Text = tuple[int, StreamProbe]  # which part of its answer it is, and what looks at it


class StreamRepetition:
    """Hears what is said and thought in one stream, and knows whether all that goes on in it repeats itself."""

    __slots__ = ("_chars", "_open", "_tell", "_texts", "_thoughts", "found", "probe", "told")

    def __init__(self, tell: Tell | None = None, told: str = "") -> None:
        self._tell = tell
        self.told = told  # as what a repetition is told, and nothing else is done; empty: the answer is cut
        self._open: dict[int, bool] = {}  # the answers that have not ended, and whether they repeat themselves
        self._texts: dict[int, _Text] = {}  # by answer
        self._thoughts: dict[int, _Text] = {}
        self._chars = 0  # of texts that are over
        self.found = False
        self.probe: StreamProbe | None = None  # the one that found something

    @property
    def open(self) -> list[int]:
        """The answers that have not ended."""
        return sorted(self._open)

    @property
    def chars(self) -> int:
        """About how much was said and thought."""
        return self._chars + sum([probe.chars for _, probe in (*self._texts.values(), *self._thoughts.values())])

    @property
    def is_told(self) -> bool:
        """Whether it has been told: once at the most."""
        return self._tell is None

    def matters(self) -> Sequence[StreamRepetition]:
        """Return itself while there is something to be done about it."""
        return (self,) if self.found else ()

    def say(self, what: str) -> None:
        """Tell what became of it."""
        tell, self._tell = self._tell, None
        probe = self.probe
        if tell is not None and probe is not None:
            tell(what, probe.period, probe.times)

    def said(self, choice: int, part: int, piece: str) -> None:
        """Look at what is said."""
        text = self._texts.get(choice)
        if text is None or text[0] != part:
            text = self._begin(self._texts, choice, part)
        if text[1].feed(piece):
            self._saw(choice, text[1])

    def thought(self, choice: int, part: int, piece: str) -> None:
        """Look at what is thought, apart from what is said."""
        text = self._thoughts.get(choice)
        if text is None or text[0] != part:
            text = self._begin(self._thoughts, choice, part)
        if text[1].feed(piece):
            self._saw(choice, text[1])

    def argued(self, choice: int, piece: str) -> None:
        """Leave out the arguments of calls: they repeat themselves for good reasons."""

    def ended(self, choice: int) -> None:
        """Leave an answer that came to its end: it may have been the last one that was worth waiting for."""
        self._open.pop(choice, None)
        self.found = bool(self._open) and all(self._open.values())

    def _saw(self, choice: int, probe: StreamProbe) -> None:
        self.probe = probe
        self._open[choice] = True
        self.found = all(self._open.values())

    def _begin(self, texts: dict[int, _Text], choice: int, part: int) -> _Text:
        """Begin a text: what stands in another part of an answer is no part of it."""
        before, begun = texts.get(choice), (part, StreamProbe())
        if len(self._open) < OPEN_MAX:
            self._open.setdefault(choice, False)
        if before is not None:
            self._chars += before[1].chars
        if before is not None or len(texts) < ANSWERS_MAX:
            texts[choice] = begun
        return begun


TellCap = Callable[[CompletionCap, str], None]  # whose cap, and what became of it


class CapReached:
    """One cap of one stream."""

    __slots__ = ("_cap", "_tell", "chars", "told")

    def __init__(self, cap: CompletionCap, answers: int, tell: TellCap, told: str) -> None:
        self._cap = cap
        self._tell: TellCap | None = tell
        self.chars = cap.tokens * max(1, answers) * CHARS_A_TOKEN  # more is too much
        self.told = told  # as what it is told, and nothing else is done; empty: the answer is cut

    @property
    def is_told(self) -> bool:
        """Whether it has been told: once at the most."""
        return self._tell is None

    def say(self, what: str) -> None:
        """Tell what became of it."""
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(self._cap, what)


class CompletionCounter:
    """Hears everything in one stream."""

    __slots__ = ("_due", "_open", "_reached", "_repeats", "_waiting", "chars", "thought_chars")

    def __init__(self, caps: Iterable[CapReached], repeats: StreamRepetition | None = None) -> None:
        self._waiting = sorted(caps, key=lambda one: one.chars, reverse=True)  # the next one is the last
        self._due: float = self._waiting[-1].chars if self._waiting else math.inf
        self._reached: list[CapReached] = []
        self._repeats = repeats
        self._open: set[int] = set()
        self.chars = 0
        self.thought_chars = 0  # of them: thought aloud

    @property
    def found(self) -> bool:
        """Whether there is something to be done about it."""
        return bool(self._reached) or (self._repeats is not None and self._repeats.found)

    @property
    def open(self) -> list[int]:
        """The answers that have not ended."""
        return sorted(self._open)

    def matters(self) -> Sequence[CapReached | StreamRepetition]:
        """Return what there is something to be done about."""
        return self._reached if self._repeats is None else [*self._reached, *self._repeats.matters()]

    def said(self, choice: int, part: int, piece: str) -> None:
        """Count what is said."""
        self._count(choice, piece)
        if self._repeats is not None:
            self._repeats.said(choice, part, piece)

    def thought(self, choice: int, part: int, piece: str) -> None:
        """Count what is thought: it is paid for like what is said."""
        before = self.chars
        self._count(choice, piece)
        self.thought_chars += self.chars - before
        if self._repeats is not None:
            self._repeats.thought(choice, part, piece)

    def argued(self, choice: int, piece: str) -> None:
        """Count the arguments of a call."""
        self._count(choice, piece)

    def ended(self, choice: int) -> None:
        """Leave an answer that came to its end."""
        self._open.discard(choice)
        if self._repeats is not None:
            self._repeats.ended(choice)

    def _count(self, choice: int, piece: str) -> None:
        self.chars += len(piece) if piece.isascii() else chars_of(piece)
        if choice not in self._open and len(self._open) < OPEN_MAX:
            self._open.add(choice)
        if self.chars > self._due:
            self._reach()

    def _reach(self) -> None:
        waiting = self._waiting
        while waiting and self.chars > waiting[-1].chars:
            self._reached.append(waiting.pop())
        self._due = waiting[-1].chars if waiting else math.inf


# How the content ends between two events, and with which line ends ours go on.
_BETWEEN_EVENTS: Final = {b"\n\n": b"\n", b"\n\r\n": b"\r\n", b"\r\r": b"\r"}

_NO_STREAM: Final = b"application/"  # as most answers are that are none
CUT, WARN = "cut", "warn"  # what became of it: it was ended (in shadow: would have been), or only told


class CutReason(Protocol):
    """Something for which a stream is ended, or which is only told."""

    told: str  # as what it is told, and nothing else is done; empty: the answer is cut

    @property
    def is_told(self) -> bool:
        """Whether it has been told."""
        ...

    def say(self, what: str) -> None:
        """Tell what became of it; once at the most."""
        ...


class StreamEar(StreamListener, Protocol):
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

    def matters(self) -> Sequence[CutReason]:
        """Return what there is something to be done about."""
        ...


class StreamWatch(NamedTuple):
    """What is looked for in the streamed answer to one request, and who is told of it."""

    repeated: Tell
    capped: TellCap
    guards: int = 0  # `Call.guards_stream`
    caps: Sequence[CompletionCap] = ()

    def ear(self, answers: int, *, possible: bool) -> StreamEar:
        """Return who listens; without `possible` the answer cannot be cut, and everything is only told."""
        repeats = StreamRepetition(self.repeated, _told(self.guards == CUTS, possible)) if self.guards else None
        if repeats is not None and not self.caps:
            return repeats
        return CompletionCounter(
            [CapReached(cap, answers, self.capped, _told(cap.cuts, possible)) for cap in self.caps], repeats
        )


def _told(cuts: bool, possible: bool) -> str:  # noqa: FBT001 - two words of one question
    return ("" if cuts else CUT) if possible else WARN


class GuardedTap(AnswerTap):
    """One answer that is read and watched. What is done about each matter is told once at the most."""

    __slots__ = ("_ear", "_overheard", "_tail")

    def __init__(self, dialect: str, unpacker: Unpacker | None, give_up: GiveUp, ear: StreamEar) -> None:
        self._ear = ear
        self._overheard = ListeningReader(dialect, ear, calls=isinstance(ear, CompletionCounter))
        super().__init__(self._overheard, unpacker, give_up)
        self._tail = b""  # of the content, the last three bytes at least

    def feed(self, content: list[bytes]) -> bool:
        """Take what has just been passed on; return whether the answer is to be cut."""
        AnswerTap.feed(self, content)
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

    def end(self, framing: int, joint: ChunkBoundary | None) -> bytes:
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
        if isinstance(ear, CompletionCounter) and ear.thought_chars:  # nobody keeps thoughts, but they are paid for
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


def guarded_reading(chat: Chat, head: ResponseHead, give_up: GiveUp, watch: StreamWatch) -> AnswerTap | None:
    """Return what reads an answer and watches it if it is a stream."""
    kind = head.headers.get("content-type", b"")
    if kind.startswith(_NO_STREAM) or not can_end(chat.dialect):
        return reading_for(chat, head, give_up)
    return reading_for(chat, head, give_up, partial(_guard, chat, head.length >= 0, watch))


def _guard(
    chat: Chat,
    has_length: bool,  # noqa: FBT001 - called by `reading_for`
    watch: StreamWatch,
    unpacker: Unpacker | None,
    give_up: GiveUp,
) -> AnswerTap:
    """An answer whose length the client knows already, and one that is compressed, cannot be cut."""
    ear = watch.ear(chat.answers, possible=unpacker is None and not has_length)
    return GuardedTap(chat.dialect, unpacker, give_up, ear)


def cut(reading: AnswerTap, framing: int, upstream: UpstreamConnection, client: ExchangeClient) -> bool:
    """End an answer for its client if that can be done at this place; look at every line that follows if not."""
    rest = reading.end(framing, upstream.joint)
    if not rest:
        upstream.by_line = True
        return False
    client.relay(rest)
    upstream.reusable = False
    return True
