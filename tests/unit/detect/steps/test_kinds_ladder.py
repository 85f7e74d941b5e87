"""From counts to levels (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.kinds import (
    BLOCK,
    KIND_IDS,
    KIND_NAMES,
    KINDS,
    NEVER,
    NORMAL,
    NOTHING,
    NOTICE,
    PRESETS,
    STOP,
    Finding,
    StepsSettings,
    ToolOptions,
    choose,
    level,
)


def finding(kind: str, hits: float) -> Finding:
    return Finding(kind, hits, b"", "")


@pytest.mark.parametrize(
    ("hits", "expected"), [(2.75, NOTHING), (3, NOTICE), (4.9, NOTICE), (5, BLOCK), (7.5, BLOCK), (8, STOP)]
)
def test_level(hits: float, expected: int) -> None:
    """Notice, block, stop at their counts (LD-4)."""
    assert level(NORMAL, finding("repeat", hits)) == expected


def test_the_most_serious_finding_speaks() -> None:
    """Of equals the kind that is trusted most; nothing when none is serious (LD-4)."""
    assert choose(NORMAL, [finding("dry", 5), finding("repeat", 5), finding("dry", 9)]).finding == finding("repeat", 5)
    assert choose(NORMAL, [finding("repeat", 5), finding("dry", 16)]).finding == finding("dry", 16)
    assert choose(NORMAL, [finding("repeat", 2)]) == (NOTHING, None)


@pytest.mark.parametrize("sensitivity", PRESETS)
def test_presets_are_whole_and_rise(sensitivity: str) -> None:
    """Each preset names every kind, and no level comes before the one below it (LD-4)."""
    table = PRESETS[sensitivity]
    assert set(table) == set(KINDS) - {""}
    for notice, block, stop in table.values():
        assert 1 < notice <= block <= stop


def test_relaxed_is_later_and_strict_earlier() -> None:
    """Presets differ in the direction their names say (LD-4)."""
    for kind, (notice, block, stop) in NORMAL.items():
        assert all(one >= other for one, other in zip(PRESETS["relaxed"][kind], (notice, block, stop), strict=True))
        assert all(one <= other for one, other in zip(PRESETS["strict"][kind], (notice, block, stop), strict=True))
    assert PRESETS["strict"]["near"][1] == NEVER
    assert PRESETS["strict"] != PRESETS["relaxed"]


def test_settings_from_a_preset() -> None:
    """Sensitivity expands to thresholds (LD-4)."""
    assert StepsSettings() == StepsSettings.preset("normal")
    own = StepsSettings.preset("strict", {"dry": (6, 9, 17)}, {"wait": ToolOptions(poll=True)})
    assert own.thresholds == {**PRESETS["strict"], "dry": (6, 9, 17)}
    assert own.tools["wait"].poll


def test_persisted_numbers() -> None:
    """Windows in Redis and in the state file hold these numbers; another version must read the same meaning (S-1)."""
    assert (NOTHING, NOTICE, BLOCK, STOP) == (0, 1, 2, 3)
    assert KIND_IDS == {
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
    assert {KIND_NAMES[number]: number for number in KIND_NAMES} == KIND_IDS
    assert set(KINDS) == set(KIND_IDS)
