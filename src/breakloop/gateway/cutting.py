"""The stream guard (SPEC LD-8): listens to a streamed answer while it is read, and ends it well where it repeats
itself. Nothing is held back here either: what has come passes, and what comes after it does not.

What a repetition is, is `detect.stream`'s business, how a dialect ends a stream `wire.stream_end`'s, and whether an
answer is guarded at all the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from breakloop.detect.stream import StreamProbe
from breakloop.gateway.answer_body import Joint
from breakloop.gateway.answer_head import AnswerHead
from breakloop.gateway.answer_out import can_follow, ended_with
from breakloop.gateway.reading import GiveUp, Reading, reading_for
from breakloop.gateway.sides import Client
from breakloop.gateway.upstream import UpstreamConnection
from breakloop.model.answer import Answer
from breakloop.model.call import Chat
from breakloop.wire.encoding import Unpacker
from breakloop.wire.overheard import Overheard
from breakloop.wire.stream_end import can_end

ANSWERS_MAX: Final = 16  # a stream with more of them at once is not cut
_OPEN_MAX: Final = 1000  # and with so many, nobody asked for them
# How the content ends between two events, and with which line ends ours go on.
_BETWEEN_EVENTS: Final = {b"\n\n": b"\n", b"\n\r\n": b"\r\n", b"\r\r": b"\r"}

_NO_STREAM: Final = b"application/"  # as most answers are that are none
CUT, WARN = "cut", "warn"  # what became of it: it was ended (in shadow: would have been), or only told

_Text = tuple[int, StreamProbe]  # which part of its answer it is, and what looks at it

Tell = Callable[[str, int, int], None]  # what became of it, how many characters were repeated, and how often


class Repeats:
    """Hears what is said and thought in one stream, and knows whether all that goes on in it repeats itself."""

    __slots__ = ("_chars", "_open", "_texts", "_thoughts", "found", "probe")

    def __init__(self) -> None:
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
        if len(self._open) < _OPEN_MAX:
            self._open.setdefault(choice, False)
        if before is not None:
            self._chars += before[1].chars
        if before is not None or len(texts) < ANSWERS_MAX:
            texts[choice] = begun
        return begun


class Guarded(Reading):
    """One answer that is read and watched. What it does is told once at the most."""

    __slots__ = ("_overheard", "_repeats", "_tail", "_tell", "_told")

    def __init__(self, dialect: str, unpacker: Unpacker | None, give_up: GiveUp, tell: Tell, told: str) -> None:
        self._repeats = Repeats()
        self._overheard = Overheard(dialect, self._repeats)
        super().__init__(self._overheard, unpacker, give_up)
        self._tell: Tell | None = tell
        self._told = told  # as what a repetition is told, and nothing else is done; empty: the answer is cut
        self._tail = b""  # of the content, the last three bytes at least

    def feed(self, content: list[bytes]) -> bool:
        """Take what has just been passed on; return whether the answer is to be cut."""
        Reading.feed(self, content)
        if content:
            last = content[-1]
            self._tail = last if len(last) > 2 else self._tail[-3:] + b"".join(content)
        if not self._repeats.found:
            return False
        if self._told and self._tell is not None and self._final():
            self._say(self._told)
        return not self._told and self._reader is not None

    def end(self, framing: int, joint: Joint | None) -> bytes:
        """Return what the client gets as the rest of the answer; nothing where it cannot be ended here."""
        line_end = next((_BETWEEN_EVENTS[end] for end in _BETWEEN_EVENTS if self._tail.endswith(end)), b"")
        if not line_end or not can_follow(framing, joint):
            return b""
        final = self._final().replace(b"\n", line_end)
        if final:
            super().feed([final])
            self._say(CUT)
        return final and ended_with(final, framing, joint)

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what was read; tell of a repetition that could not be ended."""
        if self._repeats.found and self._tell is not None and self._final():
            self._say(self._told or WARN)
        return super().answer(status, complete=complete)

    def _final(self) -> bytes:
        """What would end the stream now."""
        if self._reader is None:
            return b""
        try:
            return self._overheard.ending(self._repeats.open, self._repeats.chars)
        except Exception:  # noqa: BLE001 - the outermost edge: a fault in writing an end must not end an answer
            self._stop("fault")
            return b""

    def _say(self, what: str) -> None:
        tell, self._tell = self._tell, None
        probe = self._repeats.probe
        if tell is not None and probe is not None:
            tell(what, probe.period, probe.times)


def guarded_reading(chat: Chat, head: AnswerHead, give_up: GiveUp, tell: Tell, *, cuts: bool) -> Reading | None:
    """Return what reads an answer and watches it if it is a stream; without `cuts` a repetition is only told."""
    kind = head.headers.get("content-type", b"")
    if kind.startswith(_NO_STREAM) or not can_end(chat.dialect):
        return reading_for(chat, head, give_up)
    has_length = head.length >= 0
    return reading_for(chat, head, give_up, partial(_guard, chat.dialect, has_length, cuts, tell))


def _guard(
    dialect: str,
    has_length: bool,  # noqa: FBT001 - called by `reading_for`
    cuts: bool,  # noqa: FBT001
    tell: Tell,
    unpacker: Unpacker | None,
    give_up: GiveUp,
) -> Reading:
    """An answer whose length the client knows already, and one that is compressed, cannot be cut."""
    possible = unpacker is None and not has_length
    return Guarded(dialect, unpacker, give_up, tell, ("" if cuts else CUT) if possible else WARN)


def cut(reading: Reading, framing: int, upstream: UpstreamConnection, client: Client) -> bool:
    """End an answer for its client if that can be done at this place; look at every line that follows if not."""
    rest = reading.end(framing, upstream.joint)
    if not rest:
        upstream.by_line = True
        return False
    client.relay(rest)
    upstream.reusable = False
    return True
