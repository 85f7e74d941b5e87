"""Kinds of loops: rows that are complete, thresholds that can be reached, and from counts to levels (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.stateful import BLOCK, NOTHING, NOTICE, STOP
from breakloop.detect.steps.findings import Finding
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import (
    BY_NAME,
    KINDS,
    LEVELS,
    NAMES,
    NEVER,
    NORMAL,
    PRESETS,
    StepsSettings,
    as_json,
    choose,
    level,
    number,
    presets,
)


def test_every_kind_has_its_line() -> None:
    """One source for what is printed, documented and checked (LD-4)."""
    assert len(BY_NAME) == len(KINDS)
    for kind in KINDS:
        assert 20 < len(kind.meaning) < 80, kind
        assert kind.meaning[-1] not in ".,;", kind
        assert "|" not in kind.meaning + kind.counted, kind
        assert kind.counted


@pytest.mark.parametrize("sensitivity", PRESETS)
def test_every_threshold_of_a_preset_can_be_reached(sensitivity: str) -> None:
    """Levels rise, and none lies above what its kind counts to (LD-4)."""
    for kind, levels in PRESETS[sensitivity].items():
        assert list(levels) == sorted(levels), kind
        assert all(one == NEVER or 1 <= one <= BY_NAME[kind].most for one in levels), kind
        assert BY_NAME[kind].stops or levels[2] == NEVER, kind


def test_a_stricter_preset_is_never_later() -> None:
    """Relaxed, normal and strict are in order, kind by kind (LD-4)."""
    for kind in BY_NAME:
        relaxed, normal, strict = (PRESETS[name][kind] for name in ("relaxed", "normal", "strict"))
        assert all(a >= b >= c for a, b, c in zip(relaxed, normal, strict, strict=True)), kind
        assert strict[0] >= 2, kind


def test_thresholds_in_words() -> None:
    assert [number(one) for one in (3, 7.5, NEVER)] == ["3", "7.5", "never"]
    assert as_json((3, 7.5, NEVER)) == [3, 7.5, None]
    assert presets()["normal"]["repeat"] == [3, 5, 8]
    assert presets()["normal"]["near"] == [5, None, None]
    assert set(presets()) == {"relaxed", "normal", "strict"}
    assert all(len(levels) == len(LEVELS) for kinds in presets().values() for levels in kinds.values())


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


def test_findings_of_different_kinds_add_up_after_a_notice() -> None:
    """Five quarters of a block together are a block: nothing new, and the same in other words (LD-4)."""
    both = [Finding("reword", 4, b"r", "said before"), Finding("dry", 5, b"d", "nothing new")]
    assert choose(NORMAL, both).level == NOTICE
    level, found = choose(NORMAL, both, told=True)
    assert (level, found) == (BLOCK, Finding("reword", 4, b"r", "said before; nothing new"))
    assert choose(NORMAL, [finding("reword", 4), finding("dry", 4.5)], told=True).level == NOTICE
    assert choose(NORMAL, [finding("rejected", 3), finding("rejected", 4), finding("dry", 4)], told=True).level == BLOCK
    assert choose(NORMAL, [finding("rejected", 4), finding("rejected", 4)], told=True).level == NOTICE


def test_a_finding_that_implies_another_does_not_add_up() -> None:
    """The same call or answer again is nothing new by itself; a level that is turned off adds nothing (LD-4)."""
    for kind in ("repeat", "interleaved", "monologue", "continue", "failure", "stagnation"):
        most = NORMAL[kind][1] - 1
        assert choose(NORMAL, [finding(kind, most), finding("dry", 7)], told=True).level == NOTICE, kind
    quiet = {**NORMAL, "reword": (4, NEVER, NEVER)}
    assert choose(quiet, [finding("reword", 12), finding("dry", 7)], told=True).level == NOTICE


def test_a_call_that_fails_again_adds_to_others_that_fail_the_same_way() -> None:
    """The error does not depend on what is asked. A sweep in which all fail makes no call again (LD-4)."""
    both = [finding("failure", 3), finding("stagnation", 5)]
    assert choose(NORMAL, both).level == NOTICE
    assert choose(NORMAL, both, told=True).level == BLOCK
    assert choose(NORMAL, [finding("failure", 2), finding("stagnation", 6)], told=True).level == NOTICE
    assert choose(NORMAL, [finding("failure", 3), finding("reword", 5)], told=True).level == NOTICE


@pytest.mark.parametrize("sensitivity", PRESETS)
def test_presets_are_whole_and_rise(sensitivity: str) -> None:
    """Each preset names every kind, and no level comes before the one below it (LD-4)."""
    table = PRESETS[sensitivity]
    assert list(table) == [kind.name for kind in KINDS]
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
    assert {kind.name: kind.id for kind in KINDS} == {
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
        "unmoved": 19,
        "stubborn": 20,
        "side_effect": 21,
        "tool_limit": 22,
        "waiting": 23,
        "rerun": 24,
        "drift": 25,
    }
    assert {0: "", **{kind.id: kind.name for kind in KINDS}} == NAMES
