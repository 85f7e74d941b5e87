"""The picture of an incident: equal steps look equal, the repeating part is marked, denials are crossed (X-2)."""

from __future__ import annotations

import pytest

from breakloop.admin.dashboard.timeline import MARKS_MAX, picture, repeating
from breakloop.model.records import StepMark
from tests.admin_records import incidents


def step(name: str, at: float = 0.0, verdict: str = "pass", *, failed: bool = False) -> StepMark:
    return StepMark(at, name, name, name, 100, failed, verdict)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ("", (0, 0, 0)),
        ("abcd", (0, 0, 0)),
        ("aa", (0, 2, 1)),
        ("xyabababz", (2, 8, 2)),
        ("abcabcab", (0, 8, 3)),
        ("aabcbcbcbc", (2, 10, 2)),
        ("aaaabab", (0, 4, 1)),
    ],
)
def test_repeating(steps: str, found: tuple[int, int, int]) -> None:
    """The longest part in which each step equals the one a round before."""
    assert repeating(list(steps)) == found


def test_nothing_to_draw() -> None:
    assert picture(()) is None


def test_equal_steps_look_equal() -> None:
    """Letters in the order of coming; a colour for what comes again, none for what comes once."""
    drawn = picture([step(name, at) for at, name in enumerate("xababab")])
    assert drawn is not None
    assert [(mark.letter, mark.colour) for mark in drawn.marks[:4]] == [
        ("A", "once"),
        ("B", "c0"),
        ("C", "c1"),
        ("B", "c0"),
    ]
    assert [mark.x for mark in drawn.marks] == sorted({mark.x for mark in drawn.marks})
    assert [(one.letter, one.times, one.denied) for one in drawn.key] == [("A", 1, 0), ("B", 3, 0), ("C", 3, 0)]
    assert drawn.brackets[0].label == "same 2 steps, 3 rounds"
    assert drawn.brackets[0].x == drawn.marks[1].x


def test_denials_and_errors_are_told() -> None:
    """Each mark says in words what the picture shows."""
    drawn = picture([step("fetch", 4.0 * at, "deny" if at > 2 else "warn", failed=True) for at in range(5)])
    assert drawn is not None
    assert [mark.verdict for mark in drawn.marks] == ["warn", "warn", "warn", "deny", "deny"]
    assert drawn.marks[3].title == "Step 4: fetch · denied · 12 s after the first · 100 bytes of results, an error"
    assert drawn.said == "5 steps; steps 1 to 5 repeat: same step 5 times; 2 steps denied, the first of them step 4."


def test_rows_break_and_brackets_with_them() -> None:
    """A narrow picture has more rows; the loop is bracketed in each, and named once."""
    steps = [step("x")] + [step("a", at) for at in range(24)]
    wide, narrow = picture(steps), picture(steps, columns=10)
    assert wide is not None
    assert narrow is not None
    assert (len(wide.brackets), len(narrow.brackets)) == (1, 3)
    assert [bool(one.label) for one in narrow.brackets] == [True, False, False]
    assert narrow.width < 320
    assert narrow.height > wide.height


def test_many_steps_are_bounded() -> None:
    """The newest are drawn; the rest is told of. Letters do not run out."""
    drawn = picture([step(str(at), at) for at in range(MARKS_MAX + 60)])
    assert drawn is not None
    assert (len(drawn.marks), drawn.left_out) == (MARKS_MAX, 60)
    assert len({mark.letter for mark in drawn.marks}) == MARKS_MAX


def test_what_is_not_known_is_drawn_as_passed() -> None:
    drawn = picture([step("", verdict="odd")])
    assert drawn is not None
    assert drawn.marks[0].verdict == "pass"
    assert "text only" in drawn.marks[0].title


def test_the_incident_of_the_world_shows_its_circle() -> None:
    """Three steps of reading, then seven rounds of three."""
    drawn = picture(incidents()[1].steps)
    assert drawn is not None
    assert drawn.brackets[0].label == "same 3 steps, 7 rounds"
    assert sum(mark.verdict == "deny" for mark in drawn.marks) == 6
