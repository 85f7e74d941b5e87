"""`breakloop doctor`: every value with its origin, and an exit code that can be relied on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakloop.cli.main import run

BUNDLE = "bundle_version: 4\npolicies: [{id: a, spec: {selector: {pathPrefix: /}}}]\n"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)


def test_every_value_and_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Flag, environment, file and default; secrets are masked; no control codes in a pipe (T-1)."""
    Path("b.yaml").write_text(BUNDLE)
    Path("breakloop.yaml").write_text("project: mine\n")
    monkeypatch.setenv("BREAKLOOP_SECRET", "canary-secret-canary")
    assert run(["doctor", "--port", "99", "--policy", "b.yaml"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("  ")}
    assert rows["port"] == ["99", "flag", "--port"]
    assert rows["project"] == ["mine", "breakloop.yaml:1"]
    assert rows["secret"] == ["********", "environment", "BREAKLOOP_SECRET"]
    assert rows["host"] == ["127.0.0.1", "default"]
    assert "canary" not in text
    assert "\x1b" not in text
    assert "Bundle: version 4, 1 policy, digest " in text
    assert text.endswith("No problems, 0 warnings.\n")
    assert not (tmp_path / ".local").exists(), "doctor only looks"


def test_wrong_settings_are_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, located (T-1, X-3)."""
    Path("breakloop.yaml").write_text("prot: 1\nport: x\n")
    assert run(["doctor"]) == 1
    text = capsys.readouterr().out
    assert 'x problem settings: breakloop.yaml:1:1: prot: is not a setting; did you mean "port"?' in text
    assert text.endswith("2 problems, 0 warnings.\n")


def test_bad_bundle_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 when the bundle does not load (X-3)."""
    Path("b.yaml").write_text("bundle_version: 0\npolicies: []\n")
    assert run(["doctor", "--policy", "b.yaml"]) == 1
    assert "x problem policy: b.yaml:1:17: bundle_version" in capsys.readouterr().out


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for programs (X-3)."""
    Path("b.yaml").write_text(BUNDLE)
    monkeypatch.setenv("BREAKLOOP_PROT", "1")
    assert run(["doctor", "--json", "--policy", "b.yaml"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is True
    assert content["bundle"]["version"] == 4
    assert {"name": "policy", "value": "b.yaml", "origin": "flag --policy"} in content["settings"]
    assert next((one["level"], one["about"]) for one in content["findings"]) == ("warning", "environment")
    assert run(["doctor", "--json", "--workers", "2"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert (content["ok"], content["settings"], content["bundle"]) == (False, [], None)
