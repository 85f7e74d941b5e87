"""Writing the HTML report."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from breakloop.cli.replay import write_html
from breakloop.replay.report import Heading
from breakloop.replay.run import SessionOutcome
from tests.unit.replay.test_timeline import SESSION, line

HEADING = Heading("Loops", 1, 3, "the built-in protection")


def test_it_is_written_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, so that --json stays JSON (X-6)."""
    path = tmp_path / "out.html"
    write_html(str(path), HEADING, [SessionOutcome(SESSION, timeline=line("bbb"))])
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"report: {path}\n")


def test_where_it_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem, named (X-3)."""
    with click.Context(click.Command("x")), pytest.raises(click.exceptions.Exit) as raised:
        write_html(str(tmp_path), HEADING, [])
    assert raised.value.exit_code == 1
    assert "cannot be written: Is a directory" in capsys.readouterr().err
