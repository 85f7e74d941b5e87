"""What each kind of loop is, in one line: the one source for `breakloop schema --presets`, the reference page and the
checks of a bundle. Thresholds are `ladder`'s matter, finding loops its neighbours'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from breakloop.detect.steps.ladder import KINDS, NEVER, PRESETS
from breakloop.detect.steps.window import COUNT_MAX

Level = Literal["notice", "block", "stop"]

LEVELS: Final[tuple[Level, ...]] = ("notice", "block", "stop")


class Kind(NamedTuple):
    """One kind of loop."""

    meaning: str
    counted: str  # what its thresholds are numbers of
    most: float = COUNT_MAX  # no count is higher
    stops: bool = True  # it knows the level stop


ABOUT: Final[Mapping[str, Kind]] = {
    "repeat": Kind("the same call with the same result, one after the other", "times"),
    "cycle": Kind("a round of 2 to 16 steps again and again", "laps"),
    "failure": Kind("the same call, an error each time; a different error counts half", "errors"),
    "unknown_tool": Kind("calls of tools that there are not", "calls in a row"),
    "interleaved": Kind("the same call with the same result, other work between", "times"),
    "stagnation": Kind("one tool, new arguments, the same informative result", "results in a row"),
    "nested": Kind("each prompt holds the one before it whole", "times"),
    "continue": Kind('the same "go on" of the user or the harness, and nothing called', "times"),
    "rejected": Kind("the same text of the user or the harness, whatever is done between", "times"),
    "monologue": Kind("the same answer again, and nothing called", "times"),
    "storm": Kind("the same request after it was answered", "more times in 60 s"),
    "cascade": Kind("bad results, whatever the tool", "of the last 10", most=10),
    "reword": Kind("the same instruction in other words, while nothing new comes", "of the last 13 texts", most=13),
    "dry": Kind("turns since anything new came from outside; news halve the count", "turns"),
    "novelty": Kind("results that hold hardly a line not seen before", "results in a row"),
    "near": Kind("the same call but for its numbers, and nothing new from it", "calls in a row"),
    "thrash": Kind("the context fills up again right after it was cut", "cuts, few steps apart"),
    "spawn": Kind("agents start agents for the same task", "agents deep, or with the same task", stops=False),
}
SETTABLE: Final = tuple(kind for kind in KINDS if kind in PRESETS["normal"])  # in order of trust


def number(value: float) -> str:
    """Return a threshold for people; what is never reached is said in a word."""
    return "never" if value == NEVER else f"{value:g}"


def said(levels: Iterable[float]) -> list[float | None]:
    """Return thresholds as a bundle says them: None for a level that is never reached."""
    return [None if one == NEVER else float(one) for one in levels]


def presets() -> dict[str, dict[str, list[float | None]]]:
    """Return the thresholds of each sensitivity by kind, as a bundle says them."""
    return {name: {kind: said(levels[kind]) for kind in SETTABLE} for name, levels in PRESETS.items()}
