"""What each kind is: complete, in one line, and with thresholds that can be reached."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.kinds import ABOUT, KINDS, LEVELS, NEVER, PRESETS, SETTABLE, number, presets, said


def test_every_kind_has_its_line() -> None:
    """One source for what is printed, documented and checked (LD-4)."""
    assert [kind for kind in KINDS if kind and kind not in ABOUT] == []
    assert list(SETTABLE) == [kind for kind in KINDS if kind in PRESETS["normal"]]
    assert set(SETTABLE) == set(PRESETS["normal"])
    for kind, about in ABOUT.items():
        assert 20 < len(about.meaning) < 80, kind
        assert about.meaning[-1] not in ".,;", kind
        assert "|" not in about.meaning + about.counted, kind
        assert about.counted


@pytest.mark.parametrize("sensitivity", PRESETS)
def test_every_threshold_of_a_preset_can_be_reached(sensitivity: str) -> None:
    """Levels rise, and none lies above what its kind counts to (LD-4)."""
    for kind, levels in PRESETS[sensitivity].items():
        assert list(levels) == sorted(levels), kind
        assert all(one == NEVER or 1 <= one <= ABOUT[kind].most for one in levels), kind
        assert ABOUT[kind].stops or levels[2] == NEVER, kind


def test_a_stricter_preset_is_never_later() -> None:
    """Relaxed, normal and strict are in order, kind by kind (LD-4)."""
    for kind in SETTABLE:
        relaxed, normal, strict = (PRESETS[name][kind] for name in ("relaxed", "normal", "strict"))
        assert all(a >= b >= c for a, b, c in zip(relaxed, normal, strict, strict=True)), kind
        assert strict[0] >= 2, kind


def test_thresholds_in_words() -> None:
    assert [number(one) for one in (3, 7.5, NEVER)] == ["3", "7.5", "never"]
    assert said((3, 7.5, NEVER)) == [3, 7.5, None]
    assert presets()["normal"]["repeat"] == [3, 5, 8]
    assert presets()["normal"]["near"] == [5, None, None]
    assert set(presets()) == {"relaxed", "normal", "strict"}
    assert all(len(levels) == len(LEVELS) for kinds in presets().values() for levels in kinds.values())
