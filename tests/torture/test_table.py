"""The table of `make torture`: what is red, and how it gets into the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.scenarios import SECTIONS, names
from tests.torture.table import PAGE, Row, markdown, write


def row(*, held: bool = True, fast: bool = True) -> Row:
    made = Row("Connections", "idle", "1,000 idle connections")
    made.expect("new clients are served", held, "10 x 200")
    made.expect_time("p99 below 20 ms", fast, "p99 31 ms")
    return made


def test_what_does_not_hold_is_red() -> None:
    """A missed time is red in the table, and no failure of a test."""
    assert (row().result, row().failures(times=True)) == ("green", [])
    slow, broken = row(fast=False), row(held=False)
    assert (slow.result, slow.failures(times=False)) == ("red", [])
    assert (broken.result, broken.failures(times=False)) == ("red", ["new clients are served: 10 x 200"])


def test_what_was_not_checked_is_red() -> None:
    empty, ended = Row("Clock", "back"), row()
    ended.error = "broke off: OSError"
    assert empty.result == "red"
    assert (ended.result, ended.failures(times=False)) == ("red", ["broke off: OSError"])


def test_the_page_is_rewritten_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    for seen in (row(held=False), row()):
        write([seen], ["two cores"], page)
    text = page.read_text(encoding="utf-8")
    assert "- two cores\n\n### Connections\n" in text
    assert text.count("(`idle`)") == 1
    assert "| 10 x 200<br>p99 31 ms | green |" in text
    assert text.startswith("# Attack and fault tests\n")
    assert "## How to repeat it" in text
    with pytest.raises(ValueError, match="no place for the table"):
        write([row()], [], Path(__file__))


def test_the_page_has_every_scenario() -> None:
    """Run `make torture ARGS=--write` after a scenario was added or renamed."""
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in names() if f"(`{name}`)" not in text] == []
    assert [section for section in SECTIONS if f"### {section}\n" not in text] == []


def test_cells_do_not_break_the_table() -> None:
    odd = Row("Connections", "odd", "done")
    odd.expect("a | b", True, "c | d")
    assert "| a \\| b | c \\| d | green |" in markdown([odd], [])
