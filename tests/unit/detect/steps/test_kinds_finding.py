"""How evidence names tools and counts (A-3, Y-1)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.kinds import times, tool


def test_tool_names_are_short_and_plain() -> None:
    """A name cannot carry a text, a line break or a back-tick into evidence (Y-1)."""
    assert tool("search_files") == "`search_files`"
    assert tool("a`b\nc" + "x" * 100) == "`abc" + "x" * 45 + "`"
    assert tool("`") == "`?`"
    assert tool("") == "an action"


@pytest.mark.parametrize(("count", "words"), [(0.5, "once"), (1.9, "once"), (2.0, "2 times"), (9.75, "9 times")])
def test_times(count: float, words: str) -> None:
    """Whole numbers (A-3)."""
    assert times(count) == words
