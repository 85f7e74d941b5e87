"""What `breakloop scan` prints for people."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from breakloop.cli import scan as scan_text
from breakloop.cli.scan import strip, summed, tell
from breakloop.replay.run import SessionOutcome
from breakloop.replay.scan import ScanResult, Summary, TranscriptFiles, scanned_json
from breakloop.replay.sessions import Spent
from tests.unit.replay import transcripts
from tests.unit.replay.test_scan import scan
from tests.unit.replay.test_timeline import line
from tests.unit.replay.transcripts import FINE, STUCK, write


def test_one_line_that_sums_up() -> None:
    """One line that sums up (X-6)."""
    after = Spent(181_000, 0, estimated=True)
    found = Summary(37, 212, 3, 2, 4, 41, after, after, after)
    assert summed(found) == (
        "37 sessions, 3 with loops: 41 of 212 turns, about 180,000 tokens after the point where breakloop would have "
        "stopped them"
    )
    priced = Summary(1, 20, 1, 0, 1, 9, after, Spent(5000, 0, money=1.5), after)
    assert summed(priced).startswith("1 session, 1 with loops: 9 of 20 turns, 5,000 tokens ($1.50) after")
    none = Summary(2, 10, 0, 1, 0, 0, Spent(), Spent(), Spent(900, 10))
    assert summed(none) == "2 sessions, no loops (10 turns, 910 tokens); 1 had a notice (--html shows them)"


def test_a_mark_a_turn() -> None:
    """New, the same again, noticed, blocked; a long session is folded, and the worst is seen (X-6)."""
    found = line("...nnbb.", ["a", "b", *["x"] * 5, "c"])
    assert (
        strip(found, 80).plain == "\N{MIDDLE DOT}" * 3 + "\N{DARK SHADE}" * 2 + "\N{FULL BLOCK}" * 2 + "\N{MIDDLE DOT}"
    )
    assert strip(found, 4).plain == "\N{MIDDLE DOT}\N{DARK SHADE}\N{FULL BLOCK}\N{FULL BLOCK}"
    assert len(strip(line("b" * 1000), 90).plain) <= 90
    again = line("..n", ["x", "x", "x"])
    assert strip(again, 9).plain[1] == "\N{LIGHT SHADE}"


def test_terminals_that_have_no_such_characters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Plain ones, and no crash (X-6)."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    write(tmp_path / "a.jsonl", transcripts.claude([*FINE, *STUCK]))
    scanned, made = scan(tmp_path)
    tell(scanned, made.files, ["a"])
    stream.seek(0)
    said = stream.read()
    assert "# would have been blocked" in said
    assert "......o!!###" in said


def test_few_of_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of twenty and eight pictures are enough; the rest is counted (X-6)."""
    for number in range(23):
        write(tmp_path / f"{number}.jsonl", transcripts.claude(STUCK, f"s-{number:02}"))
    scanned, made = scan(tmp_path)
    tell(scanned, made.files, ["x"])
    said = capsys.readouterr().out
    assert "and 3 more (--json and --html list them)" in said
    assert said.count("stopped at turn") == scan_text._DRAWN


def test_notices_alone_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing would have been stopped, so there is no table (X-6)."""
    write(tmp_path / "a.jsonl", transcripts.claude([*FINE, *STUCK[:3]]))
    scanned, made = scan(tmp_path)
    tell(scanned, made.files, ["x"])
    said = capsys.readouterr().out
    assert "1 had a notice" in said
    assert "session  " not in said
    tell([*scanned, *_stuck(tmp_path / "b")], made.files, ["x"])
    assert "1 other session had a notice and no block" in capsys.readouterr().out


def _stuck(path: Path) -> list[ScanResult]:
    write(path / "b.jsonl", transcripts.claude(STUCK, "b"))
    return scan(path)[0]


def test_excerpts_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And not otherwise; a timeline without them has none to show (Y-1)."""
    scanned = _stuck(tmp_path)
    tell(scanned, TranscriptFiles(), ["x"], excerpts=True)
    assert "pytest tests/parser" not in capsys.readouterr().out


def test_nothing_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Teaches where to look (X-6)."""
    tell([], TranscriptFiles(), ["logs"])
    said = capsys.readouterr().out
    assert said.startswith("no sessions in logs")
    assert "~/.codex/sessions" in said
    assert "breakloop scan ~/.claude/projects" in said


def test_what_would_have_been_landed(capsys: pytest.CaptureFixture[str]) -> None:
    """A mark of its own, in words and in the sum (X-6, LD-10)."""
    found = line("...nnll", ["a", *["x"] * 6])
    outcome = SessionOutcome(found.session, 7, first_land=6, timeline=found)
    tell([ScanResult(outcome, "f", "claude")], TranscriptFiles(), ["a"])
    said = capsys.readouterr().out
    assert "1 with loops, of which 1 landed: " in said
    assert "\N{LOWER HALF BLOCK} would have been landed" in said
    assert "; landed at turn 6" in said
    loop = scanned_json(ScanResult(outcome, "f", "claude"))["loops"][0]
    assert (loop["first_land"], loop["first_block"]) == (6, None)
