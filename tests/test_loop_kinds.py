"""The pages about kinds of loops: complete, and made of what the detector says."""

from __future__ import annotations

import re

import pytest

from breakloop.detect.steps.kinds import BY_NAME, NORMAL, PRESETS, number
from scripts.loop_kinds import SCENES, played, thresholds, timelines
from scripts.loop_scene import Row, Scene, table
from tests.each import each

# What no single threshold of a kind leads to: it is only told, or the gate that it stands behind opens late.
NEVER_BLOCKED = {"near"}


def test_every_kind_has_its_timeline() -> None:
    """No kind without one, and none that there is not (LD-4, LD-8, LD-12)."""
    assert set(SCENES) == {*BY_NAME, "stream", "tree"}
    page = timelines()
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(SCENES)


@each("kind", list(SCENES))
def test_a_timeline_ends_where_its_kind_can_lead(kind: str) -> None:
    """Each comes to a block, but for those that are only told; and two to four sentences say what it is (LD-4)."""
    assert played(kind).highest >= (1 if kind in NEVER_BLOCKED else 2)
    sentences = re.findall(r"[.:](?:\s|$)", " ".join((SCENES[kind].__doc__ or "").split()))
    assert 2 <= len(sentences) <= 6


@each("kind", [kind for kind in SCENES if kind in NORMAL])
def test_counts_and_levels_agree(kind: str) -> None:
    """A row's level is what its count is at the thresholds of `normal` (LD-4)."""
    rows = [row for row in played(kind).rows if row.hits]
    assert rows
    for row in rows:
        reached = sum(float(row.hits) >= one for one in NORMAL[kind])
        assert row.level == reached, row


def test_a_scene_that_shows_something_else_is_refused() -> None:
    """The page cannot be about one kind and show another."""
    scene = Scene("cycle")
    for _ in range(2):
        scene.call("look", {}, "the same as ever")
    with pytest.raises(AssertionError, match="cycle: turn 3 is repeat"):
        scene.call("look", {}, "the same as ever")


def test_rows_that_only_go_on_are_left_out() -> None:
    rows = [Row(str(turn), "does", "gets", "", int(turn >= 5), "") for turn in range(9)]
    turns = [line.split(" | ")[0].strip("| ") for line in table(rows)[2:]]
    assert turns == ["0", "1", "...", "4", "5", "...", "8"]


def test_the_reference_has_every_threshold() -> None:
    """Sensitivities expand to thresholds that can be seen (LD-4)."""
    page = thresholds()
    for kind in BY_NAME:
        cells = " | ".join(", ".join(number(one) for one in preset[kind]) for preset in PRESETS.values())
        assert re.search(rf"^\| \[`{kind}`\]\(\S+#{kind}\) \| .* \| {re.escape(cells)} \|$", page, re.MULTILINE), kind
