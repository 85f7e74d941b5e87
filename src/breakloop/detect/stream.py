"""Kind `stream`: detects that one streamed answer repeats itself: its text word for word, paragraphs that are almost
the same (`ParagraphProbe`), or equal tool calls. Only prose is cut: tables, code, JSON, base64, grids and dot leaders
repeat for good reasons.

The last 8 KB are checked every 256 characters. Each answer of a stream (`n` > 1) needs a probe of its own.

`watch_stream` returns the listener of one stream, with a probe for each of its texts and the caps on its length. The
gateway cuts the stream.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from breakloop.detect.steps.detector import REPORT_STREAM
from breakloop.detect.steps.findings import tool_name
from breakloop.model.call import CHARS_A_TOKEN, WIDE, CompletionCap, chars_of

PROBE_CHARS: Final = 256
REPEATS: Final = 8
REPEATED_CHARS: Final = 1200
_KEEP_CHARS: Final = 8 * 1024
_PERIOD_MAX: Final = _KEEP_CHARS // REPEATS
_SUFFIX_CHARS: Final = 64
_GUESSES: Final = 16  # at a period: the end of a text may occur within the period too
_SAMPLE_CHARS: Final = 400
_PROSE_CHARS: Final = 40  # that a loop must have outside code blocks
_CODE_EVERY: Final = 60  # characters: prose about code mentions a function now and then
_FENCE: Final = "```"

_spans: Final = re.compile(r"`[^`\n]*`").sub
# With these, models mark their own thoughts, answers and turns. They are no markup of a document.
_own_marks: Final = re.compile(
    r"</?(?:think|thinking|thought|reasoning|reflection|analysis|scratchpad|answer|final_answer|final|response)>"
    r"|<\|[\w/]{1,30}\|>|</s>|</?(?:start|end)_of_turn>|\[/?INST\]"
).sub
# What prose does not have: the ends of JSON's keys and items; cells between bars, tabs or blanks.
_data: Final = re.compile(r'"\s*[:\]}]|"\s*,\s*"|\|[^|\n]*\||\t|\S {2,}\S+ {2,}\S').search
_code: Final = re.compile(r"[{}<>=\\]|[)\w];|\w\(").findall
_word: Final = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*").fullmatch
_MARKS: Final = ".,!?;:\u2026'\"\u2018\u2019\u201c\u201d()*_#"
_SENTENCE_ENDS: Final = tuple('.!?\u2026"\u201d')
_VALUES: Final = frozenset(("true", "false", "null", "none", "nan", "inf", "nil", "na", "undefined"))
_HEX_AND_BASES: Final = frozenset("abcdefgtun")  # hex digits, and the letters of DNA and RNA
_NO_BLANKS: Final = "\u0e00"  # scripts from Thai to Chinese have no spaces between words


BREAK: Final = "\n\n"
NEAR: Final = 0.6  # of the trigrams
_MIN_CHARS: Final = 60  # a shorter paragraph is a heading or an interjection
_MAX_CHARS: Final = 1000  # of a paragraph; its end is compared
_COMPARED: Final = 8  # paragraphs
_FIRST: Final = 6  # trigrams


class ParagraphProbe:
    """Counts paragraphs in a row that are almost the same as earlier ones: a model words one thought over and over.

    A paragraph counts if all its words are in the last paragraphs, and most of its word trigrams are in one of them. A
    paragraph with a new word brings something: templates with other names, numbers or items in each paragraph are work.
    """

    __slots__ = ("_last", "_rest", "chars", "times")

    def __init__(self) -> None:
        self._rest = ""
        self._last: deque[str] = deque(maxlen=_COMPARED)
        self.times = 0
        self.chars = 0  # of these paragraphs

    def feed(self, text: str) -> bool:
        """Add a piece; return whether it completed a paragraph that is almost the same as an earlier one."""
        if BREAK not in text and not (text[:1] == "\n" == self._rest[-1:]):
            self._rest = (self._rest + text)[-_MAX_CHARS:]
            return False
        *complete, self._rest = (self._rest + text).split(BREAK)
        self._rest = self._rest[-_MAX_CHARS:]
        found = False
        for paragraph in complete:
            found = self._add(paragraph[-_MAX_CHARS:]) or found
        return found

    def _add(self, paragraph: str) -> bool:
        is_long = len(paragraph) >= _MIN_CHARS
        if not (is_long or self.times):
            return False
        words = paragraph.lower().split()
        near = is_long and self._is_near(words)
        if near:
            self.times += 1
            self.chars += len(paragraph)
        elif is_long or self._has_new(words):
            self.times = self.chars = 0
        if is_long:
            self._last.append(" ".join(words))
        return near

    def _is_near(self, words: list[str]) -> bool:
        """Tell whether no word is new, and most trigrams are in one of the last paragraphs. A few are tried first: most
        paragraphs have none that is known."""
        trigrams = list(map(" ".join, zip(words, words[1:], words[2:], strict=False)))
        if not trigrams or not self._last:
            return False
        some = trigrams[:: len(trigrams) // _FIRST + 1]
        together = "\n".join(self._last)
        if 2 * sum([one in together for one in some]) < len(some) or self._has_new(words):
            return False
        return any(sum([one in other for one in trigrams]) >= NEAR * len(trigrams) for other in self._last)

    def _has_new(self, words: list[str]) -> bool:
        return not {word for other in self._last for word in other.split()}.issuperset(words)


class StreamProbe:
    """Checks one answer. `feed` only collects pieces until there are 256 characters."""

    __slots__ = ("_fenced", "_new", "_new_chars", "_paragraphs", "_tail", "chars", "found", "period", "times", "what")

    def __init__(self) -> None:
        self._tail = ""
        self._new: list[str] = []
        self._new_chars = 0
        self._fenced = False  # a code block is open
        self._paragraphs = ParagraphProbe()
        self.chars = 0  # checked so far
        self.found = False
        self.period = 0  # once found: length of what is repeated
        self.times = 0  # and how often it was repeated by then
        self.what = ""  # and what it is, for the evidence

    def feed(self, text: str) -> bool:
        """Add the next piece; return whether the answer should be cut."""
        self._new.append(text)
        self._new_chars += len(text)
        return self._check() if self._new_chars >= PROBE_CHARS else self.found

    @property
    def room(self) -> int:
        """How many characters are missing until the next check; 0 once a repetition was found."""
        return 0 if self.found else PROBE_CHARS - self._new_chars

    def _check(self) -> bool:
        new = "".join(self._new)
        self._new.clear()
        self.chars += self._new_chars
        self._new_chars = 0
        if (self._tail[1 - len(_FENCE) :] + new).count(_FENCE) % 2:  # a fence may be split between pieces
            self._fenced = not self._fenced
        tail = self._tail = (self._tail + new)[-_KEEP_CHARS:]
        if not self.found:
            period = _period(tail)
            if period and self._is_prose(tail[-max(period, _SAMPLE_CHARS) :]):
                self._find(f"the same {period} characters", period, _times(tail, period))
            elif self._paragraphs.feed(new) and self._is_reworded(tail):
                period = self._paragraphs.chars // self._paragraphs.times
                self._find(f"paragraphs of {period} characters, almost the same,", period, self._paragraphs.times)
        return self.found

    def _find(self, what: str, period: int, times: int) -> None:
        self.found, self.what, self.period, self.times = True, what, period, times

    def _is_reworded(self, tail: str) -> bool:
        near = self._paragraphs
        if near.times < REPEATS or near.chars < REPEATED_CHARS:
            return False
        return self._is_prose(tail[-near.chars :])

    def _is_prose(self, sample: str) -> bool:
        """Check the text outside code blocks. Counted from the end, every second part is inside one."""
        outside = "\n".join(sample.split(_FENCE)[-1 - self._fenced :: -2])
        if len(outside) < _PROSE_CHARS:
            return False
        said = _own_marks("", outside)
        return is_prose(said) or (len(said) < len(outside) and len("".join(said.split())) < _PROSE_CHARS)


def _period(tail: str) -> int:
    """Return the length of what is repeated at the end of the text, often and long enough; 0 for nothing."""
    end = len(tail)
    if end < REPEATED_CHARS:
        return 0
    suffix = tail[-_SUFFIX_CHARS:]
    at = end - _SUFFIX_CHARS
    for _ in range(_GUESSES):
        at = tail.rfind(suffix, 0, at + _SUFFIX_CHARS - 1)
        period = end - _SUFFIX_CHARS - at
        if at < 0 or period > _PERIOD_MAX:
            return 0
        needed = max(REPEATS * period, REPEATED_CHARS)
        if needed <= end and tail[end - needed : end - period] == tail[end - needed + period :]:
            return period
    return 0


def _times(tail: str, period: int) -> int:
    unit, times = tail[-period:], 1
    while (end := len(tail) - times * period) >= period and tail.endswith(unit, 0, end):
        times += 1
    return times


def is_prose(sample: str) -> bool:
    """Tell whether a text consists of sentences, not of code, a table, JSON or data."""
    letters = sum(map(str.isalpha, sample))
    if 5 * letters < 3 * (len(sample) - sum(map(str.isspace, sample))):
        return False
    if _data(sample) or len(_code(_spans("code", sample))) * _CODE_EVERY > len(sample):
        return False
    if sum([letter >= _NO_BLANKS and letter.isalpha() for letter in sample]) * 3 > letters:
        return True
    lines = sample.split("\n")
    if len(lines) > 2:
        lines = lines[1:-1]  # the first and the last may be incomplete
    lines = [line for line in lines if line.strip()]
    return 2 * sum(map(_is_sentence, lines)) >= len(lines) > 0


def _is_sentence(line: str) -> bool:
    """Tell whether a line is a sentence or a large part of one."""
    words = line.split()
    plain = [word.lower() for given in words if _word(word := given.strip(_MARKS))]
    if len(words) < 3 or 10 * len(plain) < 7 * len(words):
        return False
    if not 2 * len(plain) <= sum(map(len, plain)) <= 15 * len(plain):
        return False
    if _HEX_AND_BASES.issuperset("".join(plain)) or _VALUES.issuperset(plain):
        return False
    if line.rstrip(" *_").endswith(_SENTENCE_ENDS):
        return True
    return len(words) >= 5 and 3 * line.count(",") <= len(words)


MAX_PROBED_CHOICES: Final = 16  # a stream with more choices at once is not cut
MAX_OPEN_CHOICES: Final = 1000
MAX_COUNTED_CALLS: Final = 100  # different ones of a stream

CUT, WARN = "cut", "warn"  # the reported action: the stream was ended (in shadow mode: would be), or only reported

ReportRepetition = Callable[[str, str, int], None]  # action, what is repeated, times
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
        if not self.reported:
            self.reported = True
            self._tell(action)

    def _tell(self, action: str) -> None:
        raise NotImplementedError


class CapReached(StreamFinding):
    """A cap on the length of a completion."""

    __slots__ = ("_cap", "_report", "chars")

    def __init__(self, cap: CompletionCap, choices: int, report: ReportCap, action: str) -> None:
        super().__init__(action)
        self._cap = cap
        self._report = report
        self.chars = cap.tokens * max(1, choices) * CHARS_A_TOKEN  # more exceeds the cap

    def _tell(self, action: str) -> None:
        self._report(self._cap, action)


class RepetitionWatch(StreamFinding):
    """Finds out whether all open choices of a stream repeat themselves, in text, in reasoning or in equal calls."""

    __slots__ = ("_calls", "_chars", "_open", "_reasoning", "_report", "_texts", "found", "probe", "times", "what")

    def __init__(self, report: ReportRepetition, action: str = "") -> None:
        super().__init__(action)
        self._report = report
        self._open: dict[int, bool] = {}  # choices that have not ended, and whether they repeat themselves
        self._texts: dict[int, _Probe] = {}  # by choice
        self._reasoning: dict[int, _Probe] = {}
        self._calls: dict[tuple[int, int], int] = {}  # how often, by choice and hash
        self._chars = 0  # of parts that are complete
        self.found = False
        self.probe: StreamProbe | None = None  # the one that found a repetition in a text
        self.what = ""  # is repeated, for the evidence
        self.times = 0

    @property
    def open(self) -> list[int]:
        """The choices that have not ended."""
        return sorted(self._open)

    @property
    def chars(self) -> int:
        """The approximate number of characters of text and reasoning."""
        return self._chars + sum([probe.chars for _, probe in (*self._texts.values(), *self._reasoning.values())])

    @property
    def reasoning_chars(self) -> int:
        """The approximate number of characters of the thoughts that are open, or were the last."""
        return sum([probe.chars for _, probe in self._reasoning.values()])

    @property
    def only_thinks(self) -> bool:
        """Whether all there is so far is one thought, and it repeats itself."""
        return self.found and list(self._reasoning) == list(self._open) == [0] and not self._texts and not self._calls

    def findings(self) -> Sequence[StreamFinding]:
        return (self,) if self.found else ()

    def _tell(self, action: str) -> None:
        if self.what:
            self._report(action, self.what, self.times)

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

    def on_call(self, choice: int, name: str, arguments: str) -> None:
        if len(self._open) < MAX_OPEN_CHOICES:
            self._open.setdefault(choice, False)
        key = choice, hash((name, arguments))
        times = self._calls.get(key, 0) + 1
        if times > 1 or len(self._calls) < MAX_COUNTED_CALLS:
            self._calls[key] = times
        if times >= REPEATS:
            self.what, self.times = f"the same call of {tool_name(name)}", times
            self._mark(choice)

    def on_finish(self, choice: int) -> None:
        """A choice is complete. The others may all be repeating themselves."""
        self._open.pop(choice, None)
        self.found = bool(self._open) and all(self._open.values())

    def room(self, choice: int, part: int, *, is_reasoning: bool) -> int:
        """Return how many characters of a text are missing until its next check; 0 if its probe is not kept, or the
        stream is to be cut.
        """
        text = (self._reasoning if is_reasoning else self._texts).get(choice)
        return 0 if self.found or text is None or text[0] != part else text[1].room

    def _repeats(self, choice: int, probe: StreamProbe) -> None:
        if self.probe is not probe:
            self.probe, self.what, self.times = probe, probe.what, probe.times
        self._mark(choice)

    def _mark(self, choice: int) -> None:
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

    @property
    def only_thinks(self) -> bool:
        """Whether all there is so far is one thought, and it repeats itself, below all caps."""
        return not self._reached and self._repetition is not None and self._repetition.only_thinks

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

    def on_call(self, choice: int, name: str, arguments: str) -> None:
        """Pass a complete call on: its arguments were counted as they came."""
        if self._repetition is not None:
            self._repetition.on_call(choice, name, arguments)

    def on_finish(self, choice: int) -> None:
        self._open.discard(choice)
        if self._repetition is not None:
            self._repetition.on_finish(choice)

    def room(self, choice: int, part: int, *, is_reasoning: bool) -> int:
        """Return at how many more characters a cap may be exceeded, or the text is checked; 0 if the stream is to be
        cut.
        """
        if self._reached:
            return 0
        room = min(PROBE_CHARS, (self._next_chars - self.chars) / WIDE + 1)  # a byte may count as a wide one
        if self._repetition is not None:
            room = min(room, self._repetition.room(choice, part, is_reasoning=is_reasoning))
        return int(room)

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
    repetition = RepetitionWatch(repeated, _action(guards != REPORT_STREAM, can_cut)) if guards else None
    if repetition is not None and not caps:
        return repetition
    return CompletionWatch([CapReached(cap, choices, capped, _action(cap.cuts, can_cut)) for cap in caps], repetition)


def _action(cuts: bool, can_cut: bool) -> str:  # noqa: FBT001 - see `StreamFinding.action`
    if not can_cut:
        return WARN
    return "" if cuts else CUT
