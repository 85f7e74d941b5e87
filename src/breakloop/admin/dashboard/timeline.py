"""The timeline of an incident: one mark per step, in order of time.

Equal steps have the same letter and colour, the repeating part has a bracket, denied steps are crossed out. This
module computes the layout; templates/parts/timeline.html draws it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from breakloop.admin.dashboard import words
from breakloop.formatting import duration, plural
from breakloop.model.records import StepMark

COLOURS: Final = 8
MARKS_MAX: Final = 240  # steps in one picture; the number of older ones is shown
PERIOD_MAX: Final = 16
_COLUMNS: Final = 30
_STEP, _SIZE, _TOP, _ROW, _MARGIN = 30, 24, 26, 78, 6
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_VERDICTS: Final = {
    "pass": "passed",
    "warn": "passed with a warning",
    "steer": "passed, with a note to the model",
    "throttle": "slowed down",
    "land": "passed without tools, to finish",
    "pause": "held until a person answers",
    "deny": "denied",
}


@dataclass(frozen=True, slots=True)
class TimelineMark:
    x: int
    y: int
    letter: str
    colour: str  # "c0" to "c7", or "once" for a step that occurs once
    verdict: str
    failed: bool
    title: str


@dataclass(frozen=True, slots=True)
class TimelineBracket:
    """The bracket of the repeating part in one row."""

    x: int
    y: int
    width: int
    label: str


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """A kind of step, for the legend."""

    letter: str
    colour: str
    tools: str
    times: int
    denied: int


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    width: int
    height: int
    size: int
    marks: tuple[TimelineMark, ...]
    brackets: tuple[TimelineBracket, ...]
    labels: tuple[tuple[int, int, str, str], ...]  # x, y, anchor, text
    key: tuple[TimelineStep, ...]
    said: str
    left_out: int


def repeating(steps: Sequence[str]) -> tuple[int, int, int]:
    """Return begin and end of the longest repeating part, and the number of steps per round; (0, 0, 0) for none.

    A part repeats if each step equals the one a round before; it has at least two rounds.
    """
    best = (0, 0, 0)
    for period in range(1, min(PERIOD_MAX, len(steps) // 2) + 1):
        start = 0
        for at in range(period, len(steps) + 1):
            if at < len(steps) and steps[at] == steps[at - period]:
                continue
            if at - start >= 2 * period and at - start > best[1] - best[0]:
                best = (start, at, period)
            start = at - period + 1
    return best


def picture(steps: Sequence[StepMark], columns: int = _COLUMNS) -> TimelinePicture | None:
    """Return the picture of these steps; None if there are none."""
    if not steps:
        return None
    drawn = list(steps[-MARKS_MAX:])
    names = _names(drawn)
    first, end, period = repeating([one.step for one in drawn])
    rows = (len(drawn) + columns - 1) // columns
    marks = tuple(_mark(at, one, names, columns, drawn[0].at) for at, one in enumerate(drawn))
    return TimelinePicture(
        width=2 * _MARGIN + _STEP * min(columns, max(len(drawn), 10)),
        height=rows * _ROW + 2,
        size=_SIZE,
        marks=marks,
        brackets=tuple(_brackets(first, end, period, columns)),
        labels=tuple(_labels(drawn, columns)),
        key=_key(drawn, names),
        said=_said(drawn, first, end, period),
        left_out=len(steps) - len(drawn),
    )


def _names(steps: Sequence[StepMark]) -> dict[str, tuple[str, str]]:
    """Assign a letter to each kind of step in order of appearance, and colours to the frequent ones."""
    often = [step for step, times in Counter(one.step for one in steps).most_common(COLOURS) if times > 1]
    found: dict[str, tuple[str, str]] = {}
    for one in steps:
        if one.step not in found:
            number = len(found)
            letter = _LETTERS[number % 26] + (str(number // 26) if number >= 26 else "")
            found[one.step] = (letter, f"c{often.index(one.step)}" if one.step in often else "once")
    return found


def _place(at: int, columns: int) -> tuple[int, int]:
    return _MARGIN + at % columns * _STEP, _TOP + at // columns * _ROW


def _mark(at: int, one: StepMark, names: dict[str, tuple[str, str]], columns: int, start: float) -> TimelineMark:
    x, y = _place(at, columns)
    letter, colour = names[one.step]
    verdict = one.verdict if one.verdict in _VERDICTS else "pass"
    told = [
        f"Step {at + 1}: {words.shortened(one.tools or 'text only', 80)}",
        _VERDICTS[verdict],
        f"{duration(one.at - start)} after the first",
        f"{words.count(one.size)} bytes of results" + (", an error" if one.failed else ""),
    ]
    return TimelineMark(x, y, letter, colour, verdict, one.failed, " \N{MIDDLE DOT} ".join(told))


def _brackets(first: int, end: int, period: int, columns: int) -> list[TimelineBracket]:
    """One bracket per row; the first one has a label."""
    found: list[TimelineBracket] = []
    for row in range(first // columns, (end + columns - 1) // columns if end else 0):
        begin, stop = max(first, row * columns), min(end, (row + 1) * columns)
        if begin < stop:
            x, y = _place(begin, columns)
            width = (stop - begin - 1) * _STEP + _SIZE
            label = _rounds(first, end, period) if not found else ""
            found.append(TimelineBracket(x, y - 8, width, label))
    return found


def _rounds(first: int, end: int, period: int) -> str:
    times = (end - first) // period
    return f"same step {times} times" if period == 1 else f"same {period} steps, {times} rounds"


def _labels(steps: Sequence[StepMark], columns: int) -> list[tuple[int, int, str, str]]:
    """The time since the first step, at both ends of each row."""
    found = []
    for begin in range(0, len(steps), columns):
        last = min(begin + columns, len(steps)) - 1
        x, y = _place(begin, columns)
        found.append((x, y + _SIZE + 19, "start", f"+{duration(steps[begin].at - steps[0].at)}"))
        if last - begin >= 5:
            end_x, _ = _place(last, columns)
            found.append((end_x + _SIZE, y + _SIZE + 19, "end", f"+{duration(steps[last].at - steps[0].at)}"))
    return found


def _key(steps: Sequence[StepMark], names: dict[str, tuple[str, str]]) -> tuple[TimelineStep, ...]:
    times = Counter(one.step for one in steps)
    denied = Counter(one.step for one in steps if one.verdict == "deny")
    tools = {one.step: one.tools for one in reversed(steps)}
    return tuple(
        TimelineStep(letter, colour, words.shortened(tools[step] or "text only", 60), times[step], denied[step])
        for step, (letter, colour) in names.items()
    )


def _said(steps: Sequence[StepMark], first: int, end: int, period: int) -> str:
    """Describe the picture in words, for screen readers."""
    parts = [plural(len(steps), "step")]
    if end:
        parts.append(f"steps {first + 1} to {end} repeat: {_rounds(first, end, period)}")
    denied = [at + 1 for at, one in enumerate(steps) if one.verdict == "deny"]
    if denied:
        parts.append(f"{plural(len(denied), 'step')} denied, the first of them step {denied[0]}")
    return "; ".join(parts) + "."
