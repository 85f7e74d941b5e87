"""`breakloop validate`: located problems, notes, summary, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from breakloop.cli.main import cli, run
from breakloop.cli.validate import check, note_text
from breakloop.errors import Problem

Write = Callable[[str, str], str]

GOOD = "bundle_version: 2\npolicies:\n  - id: a\n    spec: {selector: {pathPrefix: /a/}}\n"
BAD = """bundle_version: 0
policies:
  - id: a
    spec:
      selector: {pathPrefix: v1}
      mode: enforced
"""
SURPRISING = GOOD + "      # below\n    \nexpires_at: 2020-01-01T00:00:00Z\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file into an empty working directory; return its name."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return name

    return make


def test_a_valid_bundle(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0, with what was read (X-3)."""
    assert run(["validate", write("good.yaml", GOOD)]) == 0
    first, summary = capsys.readouterr().out.splitlines()
    assert first.startswith("good.yaml: ok, version 2, 1 policy, digest ")
    assert summary == "1 valid"


def test_every_problem_with_its_place(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """File, line, column, path and hint; every problem, not the first; exit 1 (B-2)."""
    assert run(["validate", write("bad.yaml", BAD)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[:2] for line in lines[:-1]] == [
        ["bad.yaml:1:17", "bundle_version"],
        ["bad.yaml:5:30", "policies[0].spec.selector.pathPrefix"],
        ["bad.yaml:6:13", "policies[0].spec.mode"],
    ]
    assert '(write "/v1")' in lines[1]
    assert lines[-1] == "1 of 1 rejected: 3 problems"


def test_notes_do_not_refuse_unless_strict(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """A note is marked as one; only --strict makes it count (B-2)."""
    name = write("odd.yaml", SURPRISING)
    assert run(["validate", name]) == 0
    out = capsys.readouterr().out
    assert "odd.yaml:7:13: note: expires_at" in out
    assert out.splitlines()[-1] == "1 valid: 1 note"
    assert run(["validate", "--strict", name]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 rejected: 1 note (which count: --strict)"


def test_several_files_and_a_missing_one(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """One bad file among many gives 1; a file that is not there is said plainly (X-3)."""
    assert run(["validate", write("good.yaml", GOOD), "nowhere.yaml"]) == 1
    out = capsys.readouterr().out
    assert "nowhere.yaml: there is no such file or directory\n" in out
    assert out.endswith("1 of 2 rejected: 1 problem\n")


def test_a_directory_is_one_bundle(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """The files of a directory are merged, so an id may not stand in two of them (B-3)."""
    write("d/1.yaml", GOOD)
    write("d/2.yaml", "policies:\n  - id: b\n    spec: {selector: {pathPrefix: /b/}}\n")
    assert run(["validate", "d"]) == 0
    assert "d: ok, version 2, 2 policies" in capsys.readouterr().out
    write("d/3.yaml", "policies:\n  - id: b\n    spec: {selector: {pathPrefix: /b/}}\n")
    assert run(["validate", "d"]) == 1


def test_standard_input() -> None:
    """- reads standard input (X-3)."""
    runner = CliRunner()
    assert runner.invoke(cli, ["validate", "-"], input=GOOD).output.startswith("<stdin>: ok")
    refused = runner.invoke(cli, ["validate", "-"], input=BAD)
    assert refused.exit_code == 1
    assert "<stdin>:6:13: policies[0].spec.mode: " in refused.output


def test_json(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """--json gives the same as data (X-3)."""
    assert run(["validate", "--json", write("bad.yaml", BAD), write("good.yaml", GOOD), "nowhere"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    bad, good, missing = said["files"]
    assert [bad["problems"][2][name] for name in ("file", "line", "column")] == ["bad.yaml", 6, 13]
    assert (good["ok"], good["bundle_version"], good["problems"]) == (True, 2, [])
    assert missing["error"] == "there is no such file or directory"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "policy: p.yaml\nport: 1\n",
            "x.yaml looks like a settings file: check it with `breakloop doctor --config x.yaml`",
        ),
        ("policy: p.yaml\n", "x.yaml looks like a settings file: check it with `breakloop doctor --config x.yaml`"),
        ("policy: p.yaml\ncases: []\n", "x.yaml looks like a test file: run it with `breakloop test x.yaml`"),
    ],
)
def test_another_kind_of_file_is_recognised(
    write: Write, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """Whoever gives the file of another command is told which (X-3)."""
    assert run(["validate", write("x.yaml", text)]) == 1
    assert said in capsys.readouterr().out.splitlines()
    assert run(["validate", write("typo.yaml", GOOD + "polcy: 1\n")]) == 1
    assert "looks like" not in capsys.readouterr().out


def test_no_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """3 for a command that was called wrongly (X-3)."""
    assert run(["validate"]) == 3
    assert "FILE" in capsys.readouterr().err


def test_check_says_what_it_found(write: Write) -> None:
    """A valid file has its bundle, an invalid one its problems."""
    assert check(write("good.yaml", GOOD), 0.0).ok(strict=True)
    bad = check(write("bad.yaml", BAD), 0.0)
    assert (bad.ok(strict=False), len(bad.problems), bad.notes) == (False, 3, ())


def test_a_note_follows_its_location() -> None:
    """The location comes first, so that editors find it."""
    assert note_text(Problem("f", 1, 2, "a.b", "is odd", "why")) == "f:1:2: note: a.b: is odd (why)"
