"""`breakloop replay`: recorded traffic against a bundle."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.progress import Progress

from breakloop.cli import replay
from breakloop.cli.main import cli, run
from tests.unit.replay.recorded import own_line

TAIL = "bundle_version: 1\npolicies: []\ndefaults: {loop_detection: {similarity: tail}}\n"
WARN = "bundle_version: 1\npolicies: []\ndefaults: {loop_detection: {similarity: tail, max_hits: 2, action: warn}}\n"
OFF = "bundle_version: 1\npolicies: []\ndefaults: {loop_detection: off}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("tail", TAIL), ("warn", WARN), ("off", OFF)):
        (tmp_path / f"{name}.yaml").write_text(text)
    write(
        tmp_path / "a.jsonl",
        own_line("stuck", 8, label={"loop": True, "by": "human"}),
        own_line("fine", 3, label={"loop": False}),
    )
    return tmp_path


def write(path: Path, *records: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_a_session_and_one_of_totals(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and values that others build on (X-5, T-2)."""
    assert run(["replay", "a.jsonl", "--policy", "tail.yaml", "--json"]) == 0
    first, second, last = printed(capsys)
    assert {name: first[name] for name in ("id", "loop", "turns", "first_notice", "first_block", "kind")} == {
        "id": "stuck",
        "loop": True,
        "turns": 8,
        "first_notice": None,
        "first_block": 6,
        "kind": "tail",
    }
    assert (second["id"], second["loop"], second["first_block"], second["kind"]) == ("fine", False, None, None)
    assert (last["totals"]["sessions"], last["totals"]["blocked"]) == (2, 1)
    assert last["totals"]["labelled"]["precision"] == 1.0
    assert last["totals"]["labelled"]["recall"] == 1.0


def test_the_built_in_protection_is_the_default(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --policy, whatever the settings say (X-5, B-6)."""
    (here / "breakloop.yaml").write_text("policy: off.yaml\n")
    assert run(["replay", "a.jsonl", "--json"]) == 0
    first, second, _ = printed(capsys)
    assert first["first_block"] is not None
    assert first["first_block"] <= 6
    assert second["first_block"] is None


def test_several_files_gzipped_or_from_standard_input(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several files gzipped or from standard input (X-5)."""
    (here / "b.gz").write_bytes(gzip.compress((here / "a.jsonl").read_bytes()))
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO((here / "b.gz").read_bytes())))
    monkeypatch.setattr(sys, "stdin", stream)
    assert run(["replay", "a.jsonl", "b.gz", "-", "--policy", "tail.yaml", "--json"]) == 0
    assert [line.get("id") for line in printed(capsys)] == ["stuck", "fine"] * 3 + [None]


@pytest.mark.parametrize(
    ("fail_on", "policy", "code"),
    [("block", "tail", 1), ("block", "warn", 0), ("notice", "warn", 1), ("notice", "tail", 1), ("notice", "off", 0)],
)
def test_exit_codes(here: Path, fail_on: str, policy: str, code: int) -> None:
    """0 also when loops are found, unless --fail-on asks for 1; a block is more than a notice (X-3)."""
    assert run(["replay", "a.jsonl", "--policy", f"{policy}.yaml"]) == 0
    assert run(["replay", "a.jsonl", "--policy", f"{policy}.yaml", "--fail-on", fail_on]) == code


def test_calling_it_wrongly(here: Path) -> None:
    """Calling it wrongly: usage is 3 (X-3)."""
    assert run(["replay"]) == 3
    assert run(["replay", "a.jsonl", "--fail-on", "smoke"]) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.jsonl"], "missing.jsonl: cannot be read: No such file"),
        (["tail.yaml"], "tail.yaml: is neither JSON Lines nor a JSON document"),
        (["a.jsonl", "--policy", "missing.yaml"], "missing.yaml:1:1: cannot be read"),
        (["a.jsonl", "--against", "missing.yaml"], "missing.yaml:1:1: cannot be read"),
    ],
)
def test_problems_end_it_with_one(here: Path, arguments: list[str], said: str) -> None:
    """A file or bundle that cannot be used is named, in JSON too (X-3)."""
    result = CliRunner().invoke(cli, ["replay", *arguments], standalone_mode=False)
    assert said in result.stderr
    assert run(["replay", *arguments]) == 1
    result = CliRunner().invoke(cli, ["replay", *arguments, "--json"], standalone_mode=False)
    assert json.loads(result.stdout)["ok"] is False


def test_the_difference_to_another_bundle(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--against, in both forms (X-5)."""
    arguments = ["replay", "a.jsonl", "--policy", "tail.yaml", "--against", "off.yaml"]
    assert run([*arguments, "--json"]) == 0
    first, _, last = printed(capsys)
    assert first["against"] == {"first_notice": None, "first_block": None, "kind": None}
    assert last["totals"]["differences"]["blocked_only"] == 1
    assert run(arguments) == 0
    assert "compared with off.yaml" in capsys.readouterr().out


def test_a_bad_file_among_good_ones_is_a_line_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was printed before stays JSON Lines (X-3, X-5)."""
    assert run(["replay", "a.jsonl", "missing.jsonl", "--json"]) == 1
    assert [line.get("ok") for line in printed(capsys)] == [None, None, False]


def test_records_that_are_passed_over_are_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, so that standard output stays JSON (X-5)."""
    with (here / "a.jsonl").open("a") as file:
        file.write('{"turns": [')
    assert run(["replay", "a.jsonl", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == "a.jsonl: 1 record skipped: line 3: is not JSON\n"
    assert len(said.out.splitlines()) == 3


def test_a_bar_shows_how_far_it_is(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal only, on standard error, over all files; not where nobody knows how much comes in (X-3)."""
    shown: list[float] = []
    monkeypatch.setattr(Progress, "update", lambda _bar, _task, *, completed: shown.append(completed))
    assert run(["replay", "a.jsonl"]) == 0
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with replay.progress("replaying", 0, quiet=False) as advance:
        advance(1)
    with replay.progress("replaying", 1, quiet=True) as advance:
        advance(1)
    assert shown == []
    capsys.readouterr()
    assert run(["replay", "a.jsonl", "a.jsonl"]) == 0
    size = (here / "a.jsonl").stat().st_size
    assert shown == sorted(shown)
    assert size in shown
    assert shown[-1] == 2 * size
    assert "replaying" in capsys.readouterr().err


def test_nothing_of_a_prompt_is_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Evidence counts; it does not quote (Y-1)."""
    assert run(["replay", "a.jsonl"]) == 0
    assert run(["replay", "a.jsonl", "--json"]) == 0
    assert "Is it done?" not in capsys.readouterr().out


def test_a_report_as_html(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same pictures as `scan` has, of what the first bundle says (X-6)."""
    arguments = ["replay", "a.jsonl", "--policy", "tail.yaml", "--against", "off.yaml", "--html", "out.html"]
    assert run(arguments) == 0
    assert "report: out.html" in capsys.readouterr().err
    text = (here / "out.html").read_text()
    assert "tail.yaml" in text
    assert text.count("<article") == 1
    assert "first block: turn 6" in text
    assert "Is it done?" not in text


def test_money(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was saved, by the list of prices or by the options; models without a price are named (X-5, L-5)."""
    write(here / "m.jsonl", {**own_line("stuck", 8), "model": "gpt-4.1"})
    assert run(["replay", "m.jsonl", "--policy", "tail.yaml", "--json"]) == 0
    line, last = printed(capsys)
    assert 0 < line["saved_usd_estimate"] == last["totals"]["saved_usd_estimate"]
    assert run(["replay", "m.jsonl", "--policy", "tail.yaml", "--json", "--price-in", "1000", "--price-out", "0"]) == 0
    assert printed(capsys)[0]["saved_usd_estimate"] > 100 * line["saved_usd_estimate"]
    assert run(["replay", "m.jsonl", "--policy", "tail.yaml", "--html", "r.html"]) == 0
    said = capsys.readouterr()
    assert "tokens ($0.0001); where no tokens" in said.out
    assert "no price" not in said.err
    assert "$0.00" in (here / "r.html").read_text()
    assert run(["replay", "a.jsonl", "--policy", "tail.yaml"]) == 0
    assert "no price is known for m: it is not included" in capsys.readouterr().err
    assert run(["replay", "m.jsonl", "--price-cached", "1"]) == 3


def test_budgets_count_money(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget of US dollars is used up as it would have been (X-5, L-2)."""
    stages = [{"threshold_percent": 100, "action": "reject"}]
    budget = {"budget": 0.00001, "period": "1d", "cost_key": "usage:usd", "staged_actions": stages}
    rule = {"name": "r", "limit_keys": [], "algorithm": "cost_based", "algorithm_config": budget}
    policies = [{"id": "p", "spec": {"selector": {"pathPrefix": "/"}, "rules": [rule]}}]
    bundle = {"bundle_version": 1, "policies": policies, "defaults": {"loop_detection": "off"}}
    (here / "budget.json").write_text(json.dumps(bundle))
    write(here / "m.jsonl", {**own_line("stuck", 8), "model": "gpt-4.1"})
    assert run(["replay", "m.jsonl", "--policy", "budget.json", "--json"]) == 0
    line, last = printed(capsys)
    assert line["first_block"] is None
    assert line["denied"]["budget_exceeded"] > 0, (line, last)
