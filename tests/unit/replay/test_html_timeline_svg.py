"""The picture of a timeline."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from breakloop.replay.report import CELLS_MAX, Heading, colours, described, page, visible
from breakloop.replay.timeline import Timeline
from tests.unit.replay.test_timeline import line

COMMANDS = ["ls", "x", "y", *["x", "y"] * 4, "pwd"]
FOUND = line(".....nnnbbb.", COMMANDS, kind="cycle")


def picture(found: Timeline) -> str:
    """Return the SVG of one session in a report."""
    drawn = re.search(r'<svg class="timeline" role=.*?</svg>', page(Heading("", 1, 1, ""), [found]), re.DOTALL)
    assert drawn
    return drawn[0]


def test_what_comes_often_has_a_colour() -> None:
    """The commonest first; what comes once has none (X-6)."""
    hues = colours(FOUND.cells)
    assert len(hues) == 2
    assert FOUND.cells[0].identity not in hues
    assert hues[FOUND.cells[1].identity] == 0


def test_the_loop_and_some_turns_around_it() -> None:
    """A long session is drawn where it loops (X-6)."""
    long = line("." * 100 + "b" * 10 + "." * 100)
    assert [cell.number for cell in visible(long)] == list(range(94, 117))
    assert len(visible(line("b" * (CELLS_MAX + 50)))) == CELLS_MAX


def test_every_turn_is_a_cell_with_a_tooltip() -> None:
    """Well-formed, with its number, call, level and evidence; digests and no arguments (X-6)."""
    root = ET.fromstring(picture(FOUND))
    cells = list(root.iter("g"))
    assert len(cells) == len(FOUND.cells)
    titles = [group.findtext("title") or "" for group in cells]
    assert titles[0].startswith("turn 1: Bash #")
    assert "noticed \N{MIDDLE DOT} cycle: 6 times" in titles[5]
    assert "blocked \N{MIDDLE DOT} cycle: 9 times" in titles[8]
    assert "the same call as before" in titles[3]
    assert root.get("role") == "img"
    assert {element.get("id") for element in root} >= set((root.get("aria-labelledby") or "").split())


def test_marks_by_shape_and_word() -> None:
    """Not by colour alone: one diamond, one octagon, a frame a row (X-6)."""
    drawn = picture(FOUND)
    assert len(re.findall(r'<path class="notice"[^>]*><title>first notice: turn 6<', drawn)) == 1
    assert len(re.findall(r'<path class="block"[^>]*><title>first block: turn 9<', drawn)) == 1
    assert drawn.count('class="frame"') == 1
    assert picture(line("b" * 100)).count('class="frame"') == 2


def test_a_gap_where_turns_are_left_out() -> None:
    """Two loops far apart (X-6)."""
    assert 'class="gap"' in picture(line("bb" + "." * 40 + "bb"))
    assert 'class="gap"' not in picture(FOUND)


def test_the_axis_tells_turns_and_time() -> None:
    """The axis tells turns and time (X-6)."""
    labels = re.findall(r'<text class="axis"[^>]*>([^<]*)<', picture(FOUND))
    assert labels == ["turn 1 \N{MIDDLE DOT} 0 s", "turn 12 \N{MIDDLE DOT} 11 s"]


def test_the_picture_in_words() -> None:
    """For those who do not see it (X-6)."""
    assert described(FOUND) == "12 turns; turns 2 to 11 repeat (cycle), noticed at turn 6, blocked at turn 9."
