"""A scan as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from breakloop.replay.scan import scan_totals_json, scanned_json
from tests.unit.replay import transcripts
from tests.unit.replay.test_scan import scan
from tests.unit.replay.transcripts import FINE, STUCK, write


def test_the_line_of_a_session(tmp_path: Path) -> None:
    """The fields of `replay --json`, and the loops (X-6, T-2)."""
    path = write(tmp_path / "a.jsonl", transcripts.claude([*FINE, *STUCK], "abc"))
    (found,), _ = scan(path)
    line = scanned_json(found)
    assert {name: line[name] for name in ("id", "loop", "turns", "format", "agent", "model", "file")} == {
        "id": "abc",
        "loop": None,
        "turns": 19,
        "format": "claude-code",
        "agent": "claude-code",
        "model": "claude-opus-4-5",
        "file": str(path),
    }
    (loop,) = line["loops"]
    assert line["first_block"] == loop["first_block"]
    assert line["first_notice"] == loop["first_notice"]
    assert (loop["from"], loop["began"]) == (6, "2026-03-01 09:00:19 UTC")
    assert loop["after_block_tokens"] == (loop["to"] - loop["first_block"] + 1) * 1050
    assert (loop["tokens_estimated"], loop["after_block_cost_usd"] > 0) == (False, True)
    assert transcripts.SECRET not in json.dumps(line)


def test_the_line_of_totals(tmp_path: Path) -> None:
    """Sessions, loops, tokens, and what became of the files (X-6)."""
    write(tmp_path / "a.jsonl", transcripts.claude([*FINE, *STUCK], "a"))
    write(tmp_path / "b.jsonl", transcripts.claude(FINE, "b"))
    (tmp_path / "c.jsonl").write_text("{\n")
    found, made = scan(tmp_path)
    totals = scan_totals_json(found, made.files)["totals"]
    assert (totals["sessions"], totals["turns"], totals["blocked"], totals["looping"]) == (2, 24, 1, 1)
    assert (totals["loops"], totals["files"], totals["skipped"], totals["other_files"]) == (1, 2, 1, 0)
    assert totals["tokens"] == 24 * 1050
    assert 0 < totals["after_block_tokens"] < totals["loop_tokens"]
    assert totals["problems"] == [f"{tmp_path}/c.jsonl: is neither JSON Lines nor a JSON document"]
