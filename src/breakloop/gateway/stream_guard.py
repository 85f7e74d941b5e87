"""Reads LLM responses while they pass, and ends a streamed one that repeats itself or exceeds a cap on its length.

Nothing is held back: what has arrived is passed on, and what follows the cut is not. A response that cannot be read is
counted and passes unread. What a repetition is, `detect.stream` defines; how a dialect ends a stream,
`Dialect.end_stream`; whether a response is watched at all, the engine decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from breakloop.detect.steps.detector import CUT_STREAM
from breakloop.detect.stream import StreamProbe
from breakloop.dialects import registry
from breakloop.dialects.encoding import EncodingError, Unpacker
from breakloop.dialects.reader import STREAM, GiveUp, ListeningReader, PassingAnswer, form_of, reader_of, unpacker
from breakloop.gateway.http_response import ChunkBoundary, ResponseHead, can_append, final_bytes
from breakloop.model.call import CHARS_A_TOKEN, Answer, Chat, CompletionCap, chars_of

MAX_PROBED_CHOICES: Final = 16  # a stream with more choices at once is not cut
MAX_OPEN_CHOICES: Final = 1000

CUT, WARN = "cut", "warn"  # the reported action: the stream was ended (in shadow mode: would be), or only reported

# How content ends between two events, and the line break with which the final events continue.
_BETWEEN_EVENTS: Final = {b"\n\n": b"\n", b"\n\r\n": b"\r\n", b"\r\r": b"\r"}

ReportRepetition = Callable[[str, int, int], None]  # action, characters of the repeated part, times
ReportCap = Callable[[CompletionCap, str], None]  # cap, action
_Probe = tuple[int, StreamProbe]  # the part of a choice that the text belongs to, and its probe


class StreamFinding:
    """A reason to cut a stream. `action` is empty, or what is reported instead of cutting: `CUT` in shadow mode, `WARN`
    where the stream cannot be cut. Reported once at most."""

    __slots__ = ("action", "reported")

    def __init__(self, action: str) -> None:
        self.action = action
        self.reported = False

    def report(self, action: str) -> None:
        """Report what was done about it."""
        raise NotImplementedError


class CapReached(StreamFinding):
    """A cap on the length of a completion."""

    __slots__ = ("_cap", "_report", "chars")

    def __init__(self, cap: CompletionCap, choices: int, report: ReportCap, action: str) -> None:
        super().__init__(action)
        self._cap = cap
        self._report = report
        self.chars = cap.tokens * max(1, choices) * CHARS_A_TOKEN  # more exceeds the cap

    def report(self, action: str) -> None:
        """Report it, unless that was done."""
        if not self.reported:
            self.reported = True
            self._report(self._cap, action)


class RepetitionWatch(StreamFinding):
    """Finds out whether all open choices of a stream repeat themselves, in their text or in their reasoning."""

    reasoning_chars = 0  # only caps need it
    __slots__ = ("_chars", "_open", "_reasoning", "_report", "_texts", "found", "probe")

    def __init__(self, report: ReportRepetition, action: str = "") -> None:
        super().__init__(action)
        self._report = report
        self._open: dict[int, bool] = {}  # choices that have not ended, and whether they repeat themselves
        self._texts: dict[int, _Probe] = {}  # by choice
        self._reasoning: dict[int, _Probe] = {}
        self._chars = 0  # of parts that are complete
        self.found = False
        self.probe: StreamProbe | None = None  # the one that found a repetition

    @property
    def open(self) -> list[int]:
        """The choices that have not ended."""
        return sorted(self._open)

    @property
    def chars(self) -> int:
        """The approximate number of characters of text and reasoning."""
        return self._chars + sum([probe.chars for _, probe in (*self._texts.values(), *self._reasoning.values())])

    def findings(self) -> Sequence[StreamFinding]:
        return (self,) if self.found else ()

    def report(self, action: str) -> None:
        """Report it, unless that was done."""
        if not self.reported:
            self.reported = True
            if self.probe is not None:
                self._report(action, self.probe.period, self.probe.times)

    def on_text(self, choice: int, part: int, piece: str) -> None:
        """Examine the next piece of a text."""
        text = self._texts.get(choice)
        if text is None or text[0] != part:
            text = self._begin(self._texts, choice, part)
        if text[1].feed(piece):
            self._repeats(choice, text[1])

    def on_reasoning(self, choice: int, part: int, piece: str) -> None:
        """Examine the next piece of reasoning, apart from the text."""
        text = self._reasoning.get(choice)
        if text is None or text[0] != part:
            text = self._begin(self._reasoning, choice, part)
        if text[1].feed(piece):
            self._repeats(choice, text[1])

    def on_arguments(self, choice: int, piece: str) -> None:
        """Ignore arguments of tool calls: they repeat for good reasons."""

    def on_finish(self, choice: int) -> None:
        """A choice is complete. The others may all be repeating themselves."""
        self._open.pop(choice, None)
        self.found = bool(self._open) and all(self._open.values())

    def _repeats(self, choice: int, probe: StreamProbe) -> None:
        self.probe = probe
        self._open[choice] = True
        self.found = all(self._open.values())

    def _begin(self, texts: dict[int, _Probe], choice: int, part: int) -> _Probe:
        """Start a new probe: texts in different parts of a choice are separate."""
        before, begun = texts.get(choice), (part, StreamProbe())
        if len(self._open) < MAX_OPEN_CHOICES:
            self._open.setdefault(choice, False)
        if before is not None:
            self._chars += before[1].chars
        if before is not None or len(texts) < MAX_PROBED_CHOICES:
            texts[choice] = begun
        return begun


class CompletionWatch:
    """Counts text, reasoning and arguments of tool calls against caps. Passes them to a `RepetitionWatch`, if any."""

    __slots__ = ("_next_chars", "_open", "_pending", "_reached", "_repetition", "chars", "reasoning_chars")

    def __init__(self, caps: Iterable[CapReached], repetition: RepetitionWatch | None = None) -> None:
        self._pending = sorted(caps, key=lambda cap: cap.chars, reverse=True)  # the next one is the last
        self._next_chars: float = self._pending[-1].chars if self._pending else math.inf
        self._reached: list[CapReached] = []
        self._repetition = repetition
        self._open: set[int] = set()
        self.chars = 0
        self.reasoning_chars = 0  # part of `chars`

    @property
    def found(self) -> bool:
        """Whether there is a reason to cut the stream."""
        return bool(self._reached) or (self._repetition is not None and self._repetition.found)

    @property
    def open(self) -> list[int]:
        """The choices that have not ended."""
        return sorted(self._open)

    def findings(self) -> Sequence[StreamFinding]:
        """Return the reasons to cut the stream."""
        return self._reached if self._repetition is None else [*self._reached, *self._repetition.findings()]

    def on_text(self, choice: int, part: int, piece: str) -> None:
        self._count(choice, piece)
        if self._repetition is not None:
            self._repetition.on_text(choice, part, piece)

    def on_reasoning(self, choice: int, part: int, piece: str) -> None:
        """Count reasoning, which is billed like text."""
        before = self.chars
        self._count(choice, piece)
        self.reasoning_chars += self.chars - before
        if self._repetition is not None:
            self._repetition.on_reasoning(choice, part, piece)

    def on_arguments(self, choice: int, piece: str) -> None:
        """Count the arguments of a tool call."""
        self._count(choice, piece)

    def on_finish(self, choice: int) -> None:
        self._open.discard(choice)
        if self._repetition is not None:
            self._repetition.on_finish(choice)

    def _count(self, choice: int, piece: str) -> None:
        self.chars += len(piece) if piece.isascii() else chars_of(piece)
        if choice not in self._open and len(self._open) < MAX_OPEN_CHOICES:
            self._open.add(choice)
        if self.chars > self._next_chars:
            self._reach()

    def _reach(self) -> None:
        pending = self._pending
        while pending and self.chars > pending[-1].chars:
            self._reached.append(pending.pop())
        self._next_chars = pending[-1].chars if pending else math.inf


StreamWatch = RepetitionWatch | CompletionWatch


def watch_stream(
    guards: int,
    caps: Sequence[CompletionCap],
    choices: int,
    *,
    can_cut: bool,
    repeated: ReportRepetition,
    capped: ReportCap,
) -> StreamWatch:
    """Return the watch for a stream. `guards` is `Call.guards_stream`; without `can_cut` findings are only reported."""
    repetition = RepetitionWatch(repeated, _action(guards == CUT_STREAM, can_cut)) if guards else None
    if repetition is not None and not caps:
        return repetition
    return CompletionWatch([CapReached(cap, choices, capped, _action(cap.cuts, can_cut)) for cap in caps], repetition)


def _action(cuts: bool, can_cut: bool) -> str:  # noqa: FBT001 - see `StreamFinding.action`
    if not can_cut:
        return WARN
    return "" if cuts else CUT


class GuardedAnswer(PassingAnswer):
    """A streamed response that is read and watched."""

    __slots__ = ("_stream", "_tail", "_watch")

    def __init__(self, dialect: str, unpacker: Unpacker | None, give_up: GiveUp, watch: StreamWatch) -> None:
        self._watch = watch
        self._stream = ListeningReader(dialect, watch)
        super().__init__(self._stream, unpacker, give_up)
        self._tail = b""  # at least the last three bytes of the content

    def feed(self, content: list[bytes]) -> bool:
        """Read what was just passed on; return whether the stream is to be cut."""
        PassingAnswer.feed(self, content)
        if content:
            last = content[-1]
            self._tail = last if len(last) > 2 else self._tail[-3:] + b"".join(content)
        return self._watch.found and self._check()

    def _check(self) -> bool:
        """Report findings that cut nothing; return whether there is one that does."""
        cuts = False
        for finding in self._watch.findings():
            if not finding.action:
                cuts = True
            elif not finding.reported and self._final_events():
                finding.report(finding.action)
        return cuts and self._reader is not None

    def end(self, framing: int, boundary: ChunkBoundary | None) -> bytes:
        """Return the bytes that end the response for the client; nothing where it cannot be ended at this point."""
        line_end = next((_BETWEEN_EVENTS[end] for end in _BETWEEN_EVENTS if self._tail.endswith(end)), b"")
        if not line_end or not can_append(framing, boundary):
            return b""
        final = self._final_events().replace(b"\n", line_end)
        if not final:
            return b""
        findings = [finding for finding in self._watch.findings() if not finding.action]
        super().feed([final])
        for finding in findings:
            finding.report(CUT)
        return final_bytes(final, framing, boundary)

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what was read, and report findings where the stream could not be cut."""
        watch = self._watch
        for finding in watch.findings():
            if not finding.reported and self._final_events():
                finding.report(finding.action or WARN)
        answer = super().answer(status, complete=complete)
        if watch.reasoning_chars:  # reasoning is not stored, but billed
            answer = answer._replace(unkept_chars=answer.unkept_chars + watch.reasoning_chars)
        return answer

    def _final_events(self) -> bytes:
        """Return the events that would end the stream now."""
        if self._reader is None:
            return b""
        try:
            return self._stream.ending(self._watch.open, self._watch.chars)
        except Exception:  # noqa: BLE001 - fail-safe edge: a fault here must not end a response
            self._stop("fault")
            return b""


def read_response(
    chat: Chat, head: ResponseHead, give_up: GiveUp, watch: Callable[[bool], StreamWatch] | None = None
) -> PassingAnswer | None:
    """Return the reader of a response; None where it has no content to read.

    `watch` makes the watch of a streamed response; its argument is whether the stream can be cut. It cannot where the
    client already knows its length, or where it is compressed.
    """
    form = form_of(chat.dialect, head.headers.get("content-type", b""), streamed=chat.stream)
    if form is None:
        return None
    try:
        decoder = unpacker(head.headers.get("content-encoding", b""))
    except EncodingError as error:
        give_up(error.reason)
        return None
    if watch is not None and form == STREAM and registry.DIALECTS[chat.dialect].ends_streams:
        return GuardedAnswer(chat.dialect, decoder, give_up, watch(decoder is None and head.length < 0))
    return PassingAnswer(reader_of(chat.dialect, form), decoder, give_up)
