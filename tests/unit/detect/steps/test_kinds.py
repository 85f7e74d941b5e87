"""Kinds of loops: rows that are complete, thresholds that can be reached, and from counts to levels (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.stateful import BLOCK, NOTHING, NOTICE, STOP
from breakloop.detect.steps import repeats, streaks
from breakloop.detect.steps.findings import Finding
from breakloop.detect.steps.fingerprints import ToolOptions
from breakloop.detect.steps.kinds import (
    BY_NAME,
    CALLS,
    DRY,
    EFFECT,
    EVALUATED,
    EXEMPT,
    HIDDEN,
    KINDS,
    LEVELS,
    NAMES,
    NEVER,
    NORMAL,
    PRESETS,
    TEXT,
    TROUBLE,
    USERS,
    WAIT,
    StepsSettings,
    as_json,
    choose,
    level,
    number,
    presets,
)
from breakloop.detect.steps.window import load
from breakloop.policy.schema.loops import StepsLoop
from tests.unit.detect.steps.stepping import called, hits, spoken, state


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


def test_of_one_kind_at_one_level_the_first_finding_is_reported() -> None:
    """So that a loop keeps its identity. A lower level never replaces a higher one (LD-4)."""
    first, second = Finding("repeat", 5, b"a", ""), Finding("repeat", 6, b"b", "")
    assert choose(NORMAL, [first, second]) == (BLOCK, first)
    assert choose(NORMAL, [second, first]) == (BLOCK, second)
    assert choose(NORMAL, [finding("dry", 8), finding("repeat", 3)]) == (BLOCK, finding("dry", 8))
    assert choose(NORMAL, [finding("repeat", 5), finding("dry", 8)]) == (BLOCK, finding("repeat", 5))
    assert choose(NORMAL, [finding("dry", 5), finding("repeat", 2)]) == (NOTICE, finding("dry", 5))
    assert choose(NORMAL, []) == (NOTHING, None)


@pytest.mark.parametrize(("dry", "expected"), [(5.9, NOTICE), (6, BLOCK), (6.1, BLOCK)])
def test_shares_that_are_exactly_enough(dry: float, expected: int) -> None:
    """A half and three quarters of a block are five quarters (LD-4)."""
    assert choose(NORMAL, [finding("reword", 3), finding("dry", dry)], told=True).level == expected


def test_what_adds_up_is_the_larger_finding_of_each_kind() -> None:
    """In whichever order they are; of equals the first. The evidence names the two largest shares (LD-4)."""
    less, more, same = (Finding("rejected", hits, b"", f"came back {hits}") for hits in (3, 4, 4.0))
    dry, reword = Finding("dry", 4, b"", "nothing new"), Finding("reword", 1, b"", "said before")
    for found in ([less, more, dry], [more, less, dry], [dry, reword, less, more]):
        level, chosen = choose(NORMAL, found, told=True)
        assert (level, chosen and chosen.evidence) == (BLOCK, "came back 4; nothing new")
    assert choose(NORMAL, [same, more, dry], told=True).finding == same._replace(evidence="came back 4.0; nothing new")
    assert choose(NORMAL, [less, dry, finding("dry", 5)], told=True).level == NOTICE


def test_each_flag_is_a_bit_of_its_own() -> None:
    """Or a kind would be evaluated for steps that it has nothing to do with (LD-4)."""
    flags = (CALLS, TROUBLE, EFFECT, TEXT, HIDDEN, DRY, WAIT, EXEMPT, USERS)
    assert [flag.bit_count() for flag in flags] == [1] * len(flags)
    assert len({*flags}) == len(flags)


ALL = CALLS | TROUBLE | EFFECT | TEXT | HIDDEN | DRY | WAIT | USERS
ALWAYS = {"cycle", "near", "thrash"}


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        (0, ALWAYS),
        (CALLS, ALWAYS | {"repeat", "stagnation"}),
        (TROUBLE, ALWAYS | {"unknown_tool", "unmoved", "stubborn", "cascade"}),
        (EFFECT, ALWAYS | {"tool_limit"}),
        (TEXT, ALWAYS | {"continue", "monologue", "reword"}),
        (HIDDEN, ALWAYS | {"storm"}),
        (DRY, ALWAYS | {"dry"}),
        (WAIT, ALWAYS | {"waiting"}),
        (USERS, ALWAYS | {"nested", "rejected"}),
        (CALLS | DRY, ALWAYS | {"repeat", "stagnation", "dry"}),
        (EXEMPT, {"thrash"}),
        (EXEMPT | ALL, {"thrash", "nested", "rejected", "continue", "monologue", "reword"}),
        (ALL, {kind.name for kind in KINDS if kind.evaluate}),
    ],
    ids=[
        "nothing", "calls", "trouble", "effect", "text", "hidden", "dry", "wait", "users", "dry calls", "exempt",
        "all, exempt", "all",
    ],
)  # fmt: skip
def test_kinds_are_evaluated_for_what_is_in_a_step(found: int, kinds: set[str]) -> None:
    """Each for what it needs, in the order of the table; beside calls that are exempt, only texts (LD-4)."""
    expected = [kind.evaluate for kind in KINDS if kind.name in kinds]
    assert [*EVALUATED[found]] == expected
    assert len(expected) == len(kinds)


def test_the_highest_counts_of_kinds_are_reached() -> None:
    """A threshold above the highest count is refused as one that is never reached (LD-4)."""
    window, fails = load(b""), called(text="boom", error=True)
    window.dry, errors, texts = 9.0, 0.0, 0.0
    words = spoken("the same words about the same subject again and again")
    for _ in range(20):
        window.steps += 1
        errors = hits(streaks.cascade(state(window, step=fails)), "cascade")
        texts = hits(repeats.reword(state(window, step=words)), "reword")
    assert errors == BY_NAME["cascade"].most
    assert texts == BY_NAME["reword"].most


def test_kinds_for_several_conversations() -> None:
    """Only what agents tell each other is compared between them; the thresholds stay those of the policy (LD-4)."""
    team = StepsSettings.preset("strict", tools={"wait": ToolOptions(poll=True)}).of_teams()
    assert {name: one for name, one in team.thresholds.items() if one != (NEVER, NEVER, NEVER)} == {
        name: PRESETS["strict"][name] for name in ("reword", "dry")
    }
    assert team.tools["wait"].poll


def test_the_same_at_each_sensitivity() -> None:
    """How often an effect may be repeated, and how often a tool may be called, does not depend on it (LD-4)."""
    for kind, levels in NORMAL.items():
        is_fixed = kind in {"side_effect", "tool_limit"}
        assert (PRESETS["relaxed"][kind] == levels) is is_fixed, kind
        assert (PRESETS["strict"][kind] == levels) is is_fixed, kind


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_a_policy_may_set_a_stop_where_a_kind_reaches_it(kind: str) -> None:
    """Trees of agents and runs that are repeated are never more than blocked: a stop is refused (LD-4)."""
    bundle = {"similarity": "steps", "thresholds": {kind: [2, 4, 9]}}
    if kind in {"spawn", "rerun"}:
        with pytest.raises(ValueError, match="never more than block"):
            StepsLoop.model_validate(bundle)
    else:
        assert StepsLoop.model_validate(bundle).thresholds[kind] == (2, 4, 9)
