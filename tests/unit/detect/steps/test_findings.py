"""How evidence names tools and counts (A-3, Y-1)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.findings import times, tool_name


def test_tool_names_are_short_and_plain() -> None:
    """A name cannot carry a text, a line break or a back-tick into evidence (Y-1)."""
    assert tool_name("search_files") == "`search_files`"
    assert tool_name("a`b\nc" + "x" * 100) == "`abc" + "x" * 45 + "`"
    assert tool_name("a\nb") == tool_name("a`b") == "`ab`"
    assert tool_name("`") == "`?`"
    assert tool_name("") == "an action"


@pytest.mark.parametrize(("count", "words"), [(0.5, "once"), (1.9, "once"), (2.0, "2 times"), (9.75, "9 times")])
def test_times(count: float, words: str) -> None:
    """Whole numbers (A-3)."""
    assert times(count) == words
