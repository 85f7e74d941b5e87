"""What each kind of loop is, in one line: the one source for `breakloop schema --presets`, the reference page and the
checks of a bundle. Thresholds are `ladder`'s matter, finding loops its neighbours'.

From counts to levels: the thresholds of each kind at each sensitivity, which finding speaks for a step, the identity
of a loop, and whether it is told afresh. What a level leads to (warn, reject, kill) is the policy's matter.

`Finding`: one detector's claim about a step, before the ladder weighs it; and how tool names and counts are written
in evidence. Evidence names tools, counts and sizes, never what was asked or answered (SPEC Y-1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from breakloop.detect.steps.window import COUNT_MAX

_NAME_MAX = 48


class Finding(NamedTuple):
    """A loop of some kind, how far it has come, and what tells it from other loops."""

    kind: str
    hits: float  # how often, slow repeats weighing less
    key: bytes  # what the loop's identity is made of
    evidence: str


def tool(name: str) -> str:
    """Return a tool's name for a sentence: short, and without what could be taken for something else."""
    if not name:
        return "an action"
    plain = name
    if "`" in name or not name.isprintable():
        plain = "".join(one for one in name if one.isprintable() and one != "`")
    return f"`{plain[:_NAME_MAX] or '?'}`"


def times(count: float) -> str:
    """Return a count for a sentence; slow repeats count for less than one, hence the rounding."""
    whole = max(1, int(count))
    return "once" if whole == 1 else f"{whole} times"


NOTHING, NOTICE, BLOCK, STOP = 0, 1, 2, 3  # persisted in every window: never renumber them
NEVER: Final = float("inf")

Thresholds = Mapping[str, tuple[float, float, float]]  # kind -> count at which it is notice, block, stop

# The numbers are persisted in every window. Never change or reuse one: a new kind gets the next free number.
KIND_IDS: Final[Mapping[str, int]] = {
    "": 0,
    "repeat": 1,
    "cycle": 2,
    "failure": 3,
    "unknown_tool": 4,
    "interleaved": 5,
    "stagnation": 6,
    "nested": 7,
    "continue": 8,
    "rejected": 9,
    "monologue": 10,
    "storm": 11,
    "cascade": 12,
    "reword": 13,
    "dry": 14,
    "novelty": 15,
    "near": 16,
    "thrash": 17,
    "spawn": 18,
}
KIND_NAMES: Final[Mapping[int, str]] = {number: kind for kind, number in KIND_IDS.items()}

# In order of trust: where two kinds give the same level, the earlier one names the loop.
KINDS: Final = tuple(KIND_IDS)

NORMAL: Final[Thresholds] = {
    "repeat": (3, 5, 8),
    "cycle": (3, 5, 8),
    "failure": (2, 4, 7),
    "unknown_tool": (2, 4, 8),
    "interleaved": (4, 7, 12),
    "stagnation": (5, 9, NEVER),
    "nested": (3, 5, 8),
    "continue": (3, 5, 8),
    "rejected": (3, 5, 12),
    "monologue": (3, 5, 8),
    "storm": (5, 10, 20),
    "cascade": (5, 8, NEVER),
    "reword": (4, 6, NEVER),
    "dry": (5, 8, 16),
    "novelty": (8, 16, NEVER),
    "near": (5, NEVER, NEVER),
    "thrash": (3, NEVER, NEVER),
    "spawn": (4, 8, NEVER),
}
RELAXED: Final[Thresholds] = {
    kind: (notice + 1, block * 1.5, stop * 1.5) for kind, (notice, block, stop) in NORMAL.items()
} | {"cascade": (6, 10, NEVER)}  # it counts ten results
STRICT: Final[Thresholds] = {
    kind: (max(2, notice - 1), max(3, block - 1), max(4, stop - 2)) for kind, (notice, block, stop) in NORMAL.items()
}
PRESETS: Final[Mapping[str, Thresholds]] = {"relaxed": RELAXED, "normal": NORMAL, "strict": STRICT}


class ToolOptions(NamedTuple):
    """What a policy says of one tool."""

    exempt: bool = False  # its calls are never counted
    poll: bool = False  # made to be called again and again: a repeat weighs a quarter, however soon it comes
    include: frozenset[str] = frozenset()  # of its arguments only these tell one call from another; empty: all
    exclude: frozenset[str] = frozenset()  # these do not


@dataclass(frozen=True, slots=True)
class StepsSettings:
    """What a policy can set: how early the detector speaks up, and what it knows of tools."""

    thresholds: Thresholds = field(default_factory=lambda: NORMAL)
    tools: Mapping[str, ToolOptions] = field(default_factory=dict)  # by name, or by how names begin ("job_*")

    @classmethod
    def preset(
        cls, sensitivity: str, thresholds: Thresholds | None = None, tools: Mapping[str, ToolOptions] | None = None
    ) -> StepsSettings:
        """Return the settings of a sensitivity (`relaxed`, `normal` or `strict`), some of its thresholds replaced."""
        return cls({**PRESETS[sensitivity], **(thresholds or {})}, dict(tools or {}))


class KindChoice(NamedTuple):
    """The finding that speaks for a step, and its level."""

    level: int
    finding: Finding | None


NO_CHOICE: Final = KindChoice(NOTHING, None)


def level(thresholds: Thresholds, finding: Finding) -> int:
    """Return how serious a finding is."""
    notice, block, stop = thresholds[finding.kind]
    hits = finding.hits
    if hits < notice:
        return NOTHING
    return NOTICE if hits < block else BLOCK if hits < stop else STOP


def choose(thresholds: Thresholds, findings: Sequence[Finding]) -> KindChoice:
    """Return the most serious finding; of equals the one whose kind stands first in `KINDS`."""
    best = NO_CHOICE
    for finding in findings:
        now = level(thresholds, finding)
        if now > best.level or (now and now == best.level and best.finding and _rank(finding) < _rank(best.finding)):
            best = KindChoice(now, finding)
    return best


def _rank(finding: Finding) -> int:
    return KINDS.index(finding.kind)


Level = Literal["notice", "block", "stop"]

LEVELS: Final[tuple[Level, ...]] = ("notice", "block", "stop")


class LoopKind(NamedTuple):
    """One kind of loop."""

    meaning: str
    counted: str  # what its thresholds are numbers of
    most: float = COUNT_MAX  # no count is higher
    stops: bool = True  # it knows the level stop


ABOUT: Final[Mapping[str, LoopKind]] = {
    "repeat": LoopKind("the same call with the same result, one after the other", "times"),
    "cycle": LoopKind("a round of 2 to 16 steps again and again", "laps"),
    "failure": LoopKind("the same call, an error each time; a different error counts half", "errors"),
    "unknown_tool": LoopKind("calls of tools that there are not", "calls in a row"),
    "interleaved": LoopKind("the same call with the same result, other work between", "times"),
    "stagnation": LoopKind("one tool, new arguments, the same informative result", "results in a row"),
    "nested": LoopKind("each prompt holds the one before it whole", "times"),
    "continue": LoopKind('the same "go on" of the user or the harness, and nothing called', "times"),
    "rejected": LoopKind("the same text of the user or the harness, whatever is done between", "times"),
    "monologue": LoopKind("the same answer again, and nothing called", "times"),
    "storm": LoopKind("the same request after it was answered", "more times in 60 s"),
    "cascade": LoopKind("bad results, whatever the tool", "of the last 10", most=10),
    "reword": LoopKind("the same instruction in other words, while nothing new comes", "of the last 13 texts", most=13),
    "dry": LoopKind("turns since anything new came from outside; news halve the count", "turns"),
    "novelty": LoopKind("results that hold hardly a line not seen before", "results in a row"),
    "near": LoopKind("the same call but for its numbers, and nothing new from it", "calls in a row"),
    "thrash": LoopKind("the context fills up again right after it was cut", "cuts, few steps apart"),
    "spawn": LoopKind("agents start agents for the same task", "agents deep, or with the same task", stops=False),
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
