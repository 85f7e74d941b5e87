"""From counts to levels: the thresholds of each kind at each sensitivity, which finding speaks for a step, the identity
of a loop, and whether it is told afresh. What a level leads to (warn, reject, kill) is the policy's matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from breakloop.detect.steps.finding import Finding

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


class Choice(NamedTuple):
    """The finding that speaks for a step, and its level."""

    level: int
    finding: Finding | None


NO_CHOICE: Final = Choice(NOTHING, None)


def level(thresholds: Thresholds, finding: Finding) -> int:
    """Return how serious a finding is."""
    notice, block, stop = thresholds[finding.kind]
    hits = finding.hits
    if hits < notice:
        return NOTHING
    return NOTICE if hits < block else BLOCK if hits < stop else STOP


def choose(thresholds: Thresholds, findings: Sequence[Finding]) -> Choice:
    """Return the most serious finding; of equals the one whose kind stands first in `KINDS`."""
    best = NO_CHOICE
    for finding in findings:
        now = level(thresholds, finding)
        if now > best.level or (now and now == best.level and best.finding and _rank(finding) < _rank(best.finding)):
            best = Choice(now, finding)
    return best


def _rank(finding: Finding) -> int:
    return KINDS.index(finding.kind)
