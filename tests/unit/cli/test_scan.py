"""`breakloop scan`: loops in transcripts that people already have."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.progress import Progress

from breakloop.cli.main import cli, run
from tests.unit.replay import transcripts
from tests.unit.replay.transcripts import FINE, SECRET, STUCK, write

OFF = "bundle_version: 1\npolicies: []\ndefaults: {loop_detection: off}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "off.yaml").write_text(OFF)
    write(tmp_path / "t/claude.jsonl", transcripts.claude([*FINE, *STUCK], "stuck-1"))
    write(tmp_path / "t/rollout-1.jsonl", transcripts.rollout(FINE, "fine-1"))
    write(tmp_path / "n/near.jsonl", transcripts.claude([*FINE, *STUCK[:3]], "noticed-1"))
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_a_session_and_one_of_totals(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`breakloop scan PATH --json` (X-6, T-2)."""
    assert run(["scan", "t", "--json"]) == 0
    first, second, last = printed(capsys)
    assert (first["id"], first["turns"], first["first_block"] is not None) == ("stuck-1", 19, True)
    assert (second["id"], second["first_block"], second["loops"]) == ("fine-1", None, [])
    assert (last["totals"]["sessions"], last["totals"]["looping"]) == (2, 1)


def test_the_report_for_people(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It sums up, lists, draws and says what to do; no words of a prompt, no colours in a pipe (X-6, Y-1)."""
    assert run(["scan", "t"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 sessions, 1 with loops: ")
    assert re.search(r"tokens \(\$0\.\d\d\) after the point where breakloop would have stopped", said.splitlines()[0])
    for part in ("stuck-1", "claude-opus-4-5", "turns 6-", "stopped at turn", "\N{FULL BLOCK}", "breakloop serve"):
        assert part in said
    assert "export ANTHROPIC_BASE_URL=" in said
    assert SECRET not in said
    assert "\x1b" not in said


def test_what_sessions_show_together(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same run again and again is printed, counted in the totals, and fails a job that asks for it (X-6, LD-11)."""
    for number in range(18):
        session = transcripts.run_again(f"run-{number:02}", number * 300.0)
        write(here / f"again/{number:02}.jsonl", session)
    assert run(["scan", "again", "--price-in", "1"]) == 0
    out = capsys.readouterr().out
    assert "across sessions:\n  rerun: the same run was started 16 times in 75 minutes with the same outcome" in out
    assert "3 sessions would not have been started, from run-15 on: 6,600 tokens ($0.0060)" in out
    assert "breakloop serve" in out
    for command in ("scan", "replay"):
        names = ["again"] if command == "scan" else [str(one) for one in sorted((here / "again").iterdir())]
        assert run([command, *names, "--json", "--fail-on", "block", "--html", "r.html"]) == 1
        assert "<code>run-15</code>" in Path("r.html").read_text(encoding="utf-8")
        (found,) = printed(capsys)[-1]["totals"]["across_sessions"]
        assert (found["kind"], found["first_notice"], found["first_block"]) == ("rerun", "run-07", "run-15")
        assert (found["blocked_sessions"], found["tokens"]) == (3, 6600)


def test_the_usual_places(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a PATH, and it says which; below home, wherever that is (X-6)."""
    write(here / "home/.claude/projects/p/s.jsonl", transcripts.claude(FINE, "mine"))
    write(here / "home/.codex/sessions/2026/01/02/rollout-1.jsonl", transcripts.rollout(FINE, "too"))
    assert run(["scan"]) == 0
    said = capsys.readouterr().out
    assert "2 sessions, no loops" in said
    assert f"{here}/home/.claude/projects (Claude Code)" in said
    assert f"{here}/home/.codex/sessions (Codex)" in said


def test_no_usual_places(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That is not reachable, and it says where transcripts would be (X-3, X-6)."""
    assert run(["scan"]) == 2
    said = capsys.readouterr()
    assert "give a PATH" in said.err
    assert "~/.claude/projects" in said.out
    assert run(["scan", "--json"]) == 2
    assert printed(capsys)[0]["ok"] is False


@pytest.mark.parametrize("arguments", [["gone"], ["t", "gone/x.jsonl"], ["gone", "--json"]])
def test_a_path_that_is_not_there_is_unreachable(
    here: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A path that is not there is unreachable: exit code 2, named (X-3)."""
    assert run(["scan", *arguments]) == 2
    said = capsys.readouterr()
    assert "cannot be read: No such file" in said.err + said.out


@pytest.mark.parametrize(
    ("path", "fail_on", "code"), [("t", "block", 1), ("t", "notice", 1), ("n", "block", 0), ("n", "notice", 1)]
)
def test_exit_codes(here: Path, path: str, fail_on: str, code: int) -> None:
    """0 also when loops are found, unless --fail-on asks for 1 (X-3)."""
    assert run(["scan", path]) == 0
    assert run(["scan", path, "--fail-on", fail_on]) == code


def test_calling_it_wrongly(here: Path) -> None:
    """Calling it wrongly: usage is 3 (X-3)."""
    for arguments in (["--fail-on", "smoke"], ["--price-in", "-1"], ["--price-in", "much"], ["--nothing"]):
        assert run(["scan", "t", *arguments]) == 3


def test_a_file_that_is_no_transcript(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem when it was named; in a folder it is one of the other files (X-3)."""
    assert run(["scan", "off.yaml"]) == 1
    assert "off.yaml: is neither JSON Lines nor a JSON document" in capsys.readouterr().err
    (here / "e").mkdir()
    (here / "e/package.json").write_text("{}")
    assert run(["scan", "e"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("no sessions in e\n")
    assert "Transcripts are usually here" in said.out


def test_damage_is_told_on_standard_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, line and reason; standard output stays JSON (X-6)."""
    with (here / "t/claude.jsonl").open("a") as file:
        file.write("{broken\n" * 8)
    assert run(["scan", "t"]) == 0
    said = capsys.readouterr().err
    assert "skipped, 8 problems:" in said
    assert "claude.jsonl: line 60: is not JSON" in said
    assert run(["scan", "t", "--json"]) == 0
    assert printed(capsys)[-1]["totals"]["skipped"] == 8


def test_prices(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the list of prices, to the micro-dollar; what the options say comes before it (X-6, L-5)."""
    assert run(["scan", "t", "--json"]) == 0
    # claude-opus-4-5, a turn: 10 fresh at $5, 90 written to the cache at $6.25, 900 cached at $0.50, 50 answered at $25
    assert printed(capsys)[0]["cost_usd"] == 19 * 2313 / 1e6
    assert run(["scan", "t", "--json", "--price-in", "10", "--price-out", "100"]) == 0
    line = printed(capsys)[0]
    assert line["cost_usd"] == pytest.approx(19 * (100 * 10 + 900 * 1 + 50 * 100) / 1e6)
    assert run(["scan", "t", "--price-in", "10", "--price-cached", "10"]) == 0
    said = capsys.readouterr().out
    assert "cost" in said
    assert "$0." in said


def test_another_bundle(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--policy judges instead; one that is wrong is a problem (X-6)."""
    assert run(["scan", "t", "--policy", "off.yaml", "--json"]) == 0
    assert printed(capsys)[-1]["totals"]["looping"] == 0
    assert run(["scan", "t", "--policy", "gone.yaml"]) == 1
    assert "gone.yaml:1:1: cannot be read" in capsys.readouterr().err


def test_a_report_as_html(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the text; no words of a prompt in it unless they are asked for (X-6, Y-1)."""
    assert run(["scan", "t", "--html", "out.html"]) == 0
    assert "report: out.html" in capsys.readouterr().err
    text = (here / "out.html").read_text()
    assert "stuck-1" in text
    assert "<svg" in text
    assert SECRET not in text
    assert "pytest tests/parser" not in text
    assert run(["scan", "t", "--html", "out.html", "--excerpts", "--json"]) == 0
    assert "pytest tests/parser" in (here / "out.html").read_text()
    assert "pytest tests/parser" in printed(capsys)[0]["loops"][0]["excerpt"]


def test_a_report_that_cannot_be_written(here: Path) -> None:
    """A report that cannot be written (X-3)."""
    result = CliRunner().invoke(cli, ["scan", "t", "--html", "no/such/place.html"], standalone_mode=False)
    assert "no/such/place.html: cannot be written: No such file" in result.stderr
    assert run(["scan", "t", "--html", "no/such/place.html"]) == 1


def test_a_bar_shows_how_far_it_is(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal only, on standard error (X-3)."""
    shown: list[float] = []
    monkeypatch.setattr(Progress, "update", lambda _bar, _task, *, completed: shown.append(completed))
    assert run(["scan", "t"]) == 0
    assert shown == []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    capsys.readouterr()
    assert run(["scan", "t"]) == 0
    assert shown == sorted(shown)
    assert shown[-1] == sum(file.stat().st_size for file in (here / "t").rglob("*") if file.is_file())
    assert "scanning" in capsys.readouterr().err


def test_prices_of_the_settings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Overrides hold for scan too; models without a price are told, and are in no sum (L-5)."""
    (here / "breakloop.yaml").write_text(
        "prices: {models: {claude-opus-4-5: {input_usd_per_million: 1, output_usd_per_million: 0}}}\n"
    )
    assert run(["scan", "t/claude.jsonl", "--json"]) == 0
    assert printed(capsys)[0]["cost_usd"] == 19 * 1000 / 1e6
    text = (here / "t/claude.jsonl").read_text().replace("claude-opus-4-5", "own-model")
    (here / "t/claude.jsonl").write_text(text)
    assert run(["scan", "t/claude.jsonl", "--json"]) == 0
    line, last = printed(capsys)
    assert "cost_usd" not in line
    assert last["totals"]["unpriced_models"] == ["own-model"]
    assert run(["scan", "t/claude.jsonl"]) == 0
    assert (
        capsys.readouterr().err
        == "no price is known for own-model: it is not included (set prices.models, or --price-in)\n"
    )
    (here / "breakloop.yaml").write_text("prices: {file: gone.json}\n")
    assert run(["scan", "t"]) == 1
    assert "prices.file: gone.json: cannot be read: No such file" in capsys.readouterr().err
