"""The kinds of loops that `similarity: steps` detects: one row each, from which evaluation, thresholds, the checks of a
bundle, `breakloop schema --presets` and the reference pages follow.

To add a kind, write a function that counts a step and returns findings, and add a row to `KINDS`. If it needs a counter
of its own, add a field to `SessionWindow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from breakloop.detect.stateful import BLOCK, NOTHING, NOTICE, STOP
from breakloop.detect.steps import effects, ends, novelty, repeats, streaks, texts, waiting
from breakloop.detect.steps.findings import Finding, StepState
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.window import COUNT_MAX

NEVER: Final = float("inf")

# What may be in a step, or counted in its window (`LoopKind.needs`).
CALLS: Final = 1
TROUBLE: Final = 2  # a call failed or was refused, now or lately
EFFECT: Final = 4  # a call with an effect, or of a tool with a limit
TEXT: Final = 8  # an answer without calls, or with calls written as text, or texts that are counted
HIDDEN: Final = 16  # calls whose results are not in requests
DRY: Final = 32  # a turn without anything new
WAIT: Final = 64  # a call that may wait, now or lately
EXEMPT: Final = 128  # the calls are exempt
USERS: Final = 256  # text of the user

Levels = tuple[float, float, float]  # counts at which a kind is notice, block, stop
Thresholds = Mapping[str, Levels]  # by kind


class LoopKind(NamedTuple):
    """One kind of loop."""

    id: int  # persisted in every window: never change or reuse one
    name: str
    meaning: str
    counted: str  # what its thresholds are numbers of
    normal: Levels
    evaluate: Callable[[StepState], Sequence[Finding]] | None = None  # None: evaluated by another row or detector
    of_calls: bool = True  # not evaluated for calls that are exempt
    of_users: bool = False  # only evaluated for steps with text of the user
    needs: int = 0  # one of these has to be in a step, or it would find and change nothing; 0: always evaluated
    relaxed: Levels | None = None  # if not derived from `normal`
    most: float = COUNT_MAX  # the highest count
    stops: bool = True  # it has the level stop
    fixed: bool = False  # the same at each sensitivity
    of_teams: bool = False  # evaluated for several unnamed conversations together, too: agents that talk to each other
    adds_up: str = ""  # a group of kinds whose shares of a block add up, because they observe different things


# Groups of kinds that add up. `dry` and `stagnation` do not: a sweep without a hit is both.
_TEXTS: Final = "texts"
_ERRORS: Final = "errors"  # a call that fails again, and calls with other arguments that fail the same way

# In order of evaluation and of trust: if a step matches several kinds at the same level, the first one is reported.
# `storm` depends on the counts of `cycle`, and `thrash` sets the size that the kinds before it compare with.
KINDS: Final[tuple[LoopKind, ...]] = (
    LoopKind(
        22, "tool_limit", "more calls of a tool in a run than `max_per_run` allows",
        "calls, from the last allowed one on", (2, 2, NEVER), effects.findings, needs=EFFECT, fixed=True,
        # and `side_effect`
    ),
    LoopKind(
        21, "side_effect", "the same effect outside again: a mail, an order, an issue", "times", (2, 3, 5), fixed=True,
    ),
    LoopKind(
        1, "repeat", "the same call with the same result, one after the other", "times", (3, 5, 8),
        repeats.count_calls, needs=CALLS,  # and `failure`, `interleaved` and `drift`
    ),
    LoopKind(
        2, "cycle", "the same 2 to 16 steps in the same order, repeatedly", "laps", (3, 5, 8),
        repeats.cycle,
    ),
    LoopKind(
        3, "failure", "the same call fails each time; a different error counts half", "errors", (2, 4, 7),
        adds_up=_ERRORS,
    ),
    LoopKind(
        4, "unknown_tool", "calls to tools that do not exist", "calls in a row", (2, 4, 8),
        streaks.unknown_tool, needs=TROUBLE,
    ),
    LoopKind(5, "interleaved", "the same call with the same result, with other work in between", "times", (4, 7, 12)),
    LoopKind(
        19, "unmoved", "the same call ends the same way, whatever is changed in between", "more times", (5, 7, 14),
        ends.unmoved, needs=TROUBLE,
    ),
    LoopKind(
        20, "stubborn", "the same error or verdict for other commands or drafts, despite changes", "more times",
        (6, 14, 28), ends.stubborn, needs=TROUBLE,
    ),
    LoopKind(
        25, "drift", "the same call with the same result but for times, ids and counters", "times", (8, 12, 24),
    ),
    LoopKind(
        6, "stagnation", "new arguments or other tools, and the same informative result",
        "results in a row, twice if of another tool", (5, 9, NEVER),
        streaks.stagnation, needs=CALLS, adds_up=_ERRORS,
    ),
    LoopKind(
        7, "nested", "each prompt contains the whole previous prompt", "times", (3, 5, 8),
        lambda s: texts.nested(s.window, s.step, s.fingerprinter, s.weight), of_calls=False, of_users=True,
    ),
    LoopKind(
        8, "continue", 'the same "go on" from the user or the harness, without tool calls', "times", (3, 5, 8),
        texts.continued, of_calls=False, needs=TEXT,
    ),
    LoopKind(
        9, "rejected", "the same text from the user or the harness, whatever happens in between", "times", (3, 5, 12),
        texts.rejected,
        of_calls=False, of_users=True, adds_up=_TEXTS,
    ),
    LoopKind(
        10, "monologue", "the same answer again, without tool calls", "times", (3, 5, 8),
        texts.monologue, of_calls=False, needs=TEXT,
    ),
    LoopKind(
        11, "storm", "the same request again after its response", "more times in 60 s", (5, 10, 20),
        streaks.call_storm, needs=HIDDEN,  # requests that are no step: `streaks.storm`
    ),
    LoopKind(
        12, "cascade", "errors, from any tool", "of the last 10", (5, 8, NEVER),
        streaks.cascade, needs=TROUBLE, relaxed=(6, 10, NEVER), most=10,
    ),
    LoopKind(
        13, "reword", "the same instruction in other words, without new input", "of the last 13 texts",
        (4, 6, NEVER), repeats.reword, of_calls=False, needs=TEXT, most=13, of_teams=True, adds_up=_TEXTS,
    ),
    LoopKind(
        14, "dry", "turns without new external input; new input halves the count", "turns, up to 1.5 each", (5, 8, 16),
        novelty.findings, needs=DRY, of_teams=True, adds_up=_TEXTS,  # and `novelty`
    ),
    LoopKind(15, "novelty", "results with almost no new lines", "results in a row", (8, 16, NEVER)),
    LoopKind(
        16, "near", "the same call except for its numbers, without new results", "calls in a row", (5, NEVER, NEVER),
        repeats.near,
    ),
    LoopKind(
        17, "thrash", "the context fills up again right after it was cut", "cuts, few steps apart", (3, 10, 20),
        streaks.thrash, of_calls=False,
    ),
    LoopKind(
        18, "spawn", "agents start agents for the same task", "agents deep, or with the same task", (4, 8, NEVER),
        stops=False,  # `detect.trees`
    ),
    LoopKind(
        24, "rerun", "the same run again, with the same outcome", "runs in 4 hours", (8, 16, NEVER),
        stops=False,  # `detect.rerun`
    ),
    LoopKind(
        23, "waiting", "the same look with the same answer for hours", "hours", (2, 6, 12),
        waiting.hours, needs=WAIT,
    ),
)  # fmt: skip
BY_NAME: Final[Mapping[str, LoopKind]] = {kind.name: kind for kind in KINDS}
NAMES: Final[Mapping[int, str]] = {0: "", **{kind.id: kind.name for kind in KINDS}}
Evaluate = Callable[[StepState], Sequence[Finding]]


class _Evaluated(dict[int, tuple[Evaluate, ...]]):
    """The functions to evaluate, by what is in a step."""

    def __missing__(self, found: int) -> tuple[Evaluate, ...]:
        exempt, users = found & EXEMPT, found & USERS
        made = self[found] = tuple(
            kind.evaluate
            for kind in KINDS
            if kind.evaluate
            and not (exempt and kind.of_calls)
            and (users or not kind.of_users)
            and (not kind.needs or kind.needs & found)
        )
        return made


EVALUATED: Final = _Evaluated()
_GROUPS: Final[Mapping[str, str]] = {kind.name: kind.adds_up for kind in KINDS if kind.adds_up}
ENOUGH: Final = 1.25  # shares of a block, together
_RANKS: Final[Mapping[str, int]] = {kind.name: rank for rank, kind in enumerate(KINDS)}

NORMAL: Final[Thresholds] = {kind.name: kind.normal for kind in KINDS}


_RELAXED: Final = 1.2


def _relaxed(kind: LoopKind) -> Levels:
    notice, block, stop = kind.normal
    if kind.fixed:
        return kind.normal
    return kind.relaxed or (notice + 1, _later(block), _later(stop))


def _later(count: float) -> float:
    return count if count == NEVER else round(count * _RELAXED)


def _strict(kind: LoopKind) -> Levels:
    notice, block, stop = kind.normal
    if kind.fixed:
        return kind.normal
    return max(2, notice - 1), block - 1, stop - 2


PRESETS: Final[Mapping[str, Thresholds]] = {
    "relaxed": {kind.name: _relaxed(kind) for kind in KINDS},
    "normal": NORMAL,
    "strict": {kind.name: _strict(kind) for kind in KINDS},
}


@dataclass(frozen=True, slots=True)
class StepsSettings:
    """What a policy sets for the evaluation of steps."""

    thresholds: Thresholds = field(default_factory=lambda: NORMAL)
    tools: Mapping[str, ToolOptions] = field(default_factory=dict)  # by name, or by prefix ("job_*")

    @classmethod
    def preset(
        cls, sensitivity: str, thresholds: Thresholds | None = None, tools: Mapping[str, ToolOptions] | None = None
    ) -> StepsSettings:
        """Return the settings of a sensitivity (`relaxed`, `normal` or `strict`), with some thresholds replaced."""
        return cls({**PRESETS[sensitivity], **(thresholds or {})}, dict(tools or {}))

    def of_teams(self) -> StepsSettings:
        """Return the settings for steps of several conversations in one window."""
        never = (NEVER, NEVER, NEVER)
        thresholds = {name: levels if BY_NAME[name].of_teams else never for name, levels in self.thresholds.items()}
        return StepsSettings(thresholds, self.tools)


class KindChoice(NamedTuple):
    """The finding that is reported for a step, and its level."""

    level: int
    finding: Finding | None


NO_CHOICE: Final = KindChoice(NOTHING, None)


def level(thresholds: Thresholds, finding: Finding) -> int:
    """Return the level that a finding has reached."""
    notice, block, stop = thresholds[finding.kind]
    hits = finding.hits
    if hits < notice:
        return NOTHING
    return NOTICE if hits < block else BLOCK if hits < stop else STOP


def choose(thresholds: Thresholds, findings: Sequence[Finding], *, told: bool = False) -> KindChoice:
    """Return the finding with the highest level; of equals the one whose kind comes first in `KINDS`. `told`: there was
    a notice, and a step after it, so that several findings may be a block together."""
    best = NO_CHOICE
    for finding in findings:
        now = level(thresholds, finding)
        before = best.finding
        if now > best.level or (now and now == best.level and before and _RANKS[finding.kind] < _RANKS[before.kind]):
            best = KindChoice(now, finding)
    if told and best.level == NOTICE and len(findings) > 1:
        return _together(thresholds, findings) or best
    return best


def _together(thresholds: Thresholds, findings: Sequence[Finding]) -> KindChoice | None:
    """Return a block if findings of several kinds of a group, none of which has reached its threshold, are enough
    together."""
    shares: dict[str, dict[str, tuple[float, Finding]]] = {}
    for finding in findings:
        kind = finding.kind
        group = _GROUPS.get(kind)
        if group is not None:
            share, of_group = finding.hits / thresholds[kind][1], shares.setdefault(group, {})
            if kind not in of_group or share > of_group[kind][0]:
                of_group[kind] = share, finding
    for of_group in shares.values():
        if sum([share for share, _ in of_group.values()]) >= ENOUGH:
            (_, first), (_, second), *_ = sorted(of_group.values(), key=lambda one: one[0], reverse=True)
            return KindChoice(BLOCK, first._replace(evidence=f"{first.evidence}; {second.evidence}"))
    return None


Level = Literal["notice", "block", "stop"]

LEVELS: Final[tuple[Level, ...]] = ("notice", "block", "stop")


def number(value: float) -> str:
    return "never" if value == NEVER else f"{value:g}"


def as_json(levels: Iterable[float]) -> list[float | None]:
    """Return thresholds as JSON has them: None for a level that is never reached."""
    return [None if one == NEVER else float(one) for one in levels]


def presets() -> dict[str, dict[str, list[float | None]]]:
    """Return the thresholds of each sensitivity by kind, for JSON."""
    return {name: {kind: as_json(levels) for kind, levels in preset.items()} for name, preset in PRESETS.items()}
