"""Paths and problems as people read them."""

from __future__ import annotations

from breakloop.errors import Problem
from breakloop.policy.documents import in_order, path_text, readable


def test_paths_as_people_write_them() -> None:
    assert path_text(("policies", 0, "spec", "match", "jwt:sub", 3)) == 'policies[0].spec.match["jwt:sub"][3]'
    assert path_text(()) == ""


def test_nothing_unprintable_reaches_a_terminal() -> None:
    """A file's text cannot drive the terminal of whoever reads the message (Y-1)."""
    assert readable("a\x1b[31m\n\ud800") == "a\\x1b[31m\\n\\ud800"
    assert len(readable("x" * 10_000)) == 503


def test_problems_are_sorted_and_cut() -> None:
    """By place; after 50 only how many more there are (B-2)."""
    problems = [Problem("f", line, 1, "", "m") for line in range(80, 0, -1)]
    ordered = in_order([*problems, problems[0]])
    assert [p.line for p in ordered] == list(range(1, 52))
    assert ordered[-1].message == "and 30 more problems"
