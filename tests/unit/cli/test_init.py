"""`breakloop init`: what it writes is valid and passes its own tests; it destroys nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from breakloop.cli.init import TEMPLATES, contents
from breakloop.cli.main import run
from breakloop.policy.schema_json import bundle_json_schema
from breakloop.settings import load_settings

FILES = {
    "policy.yaml",
    "policy-test.yaml",
    "breakloop.yaml",
    "schema/bundle.schema.json",
    "schema/settings.schema.json",
}


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("template", TEMPLATES)
def test_everything_it_writes_works(
    template: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """X-3: the bundle validates without a note, its tests pass, the settings load and name the bundle."""
    assert run(["init", "new", "--template", template]) == 0
    monkeypatch.chdir("new")
    assert {path.as_posix() for path in Path().rglob("*") if path.is_file()} == FILES
    assert run(["validate", "--strict", "policy.yaml"]) == 0
    assert run(["test", "policy-test.yaml"]) == 0
    assert "FAIL" not in capsys.readouterr().out
    loaded = load_settings(env={})
    assert (loaded.settings.policy, loaded.settings.port, loaded.warnings) == ("policy.yaml", 8787, ())


@pytest.mark.parametrize("template", TEMPLATES)
def test_editors_find_the_schemas(template: str) -> None:
    """T-1: the first line names a schema file that is written beside it."""
    texts = contents(template)
    for name, schema in (("policy.yaml", "bundle"), ("breakloop.yaml", "settings")):
        first = texts[name].splitlines()[0]
        assert first == f"# yaml-language-server: $schema=schema/{schema}.schema.json"
        assert first.partition("=")[2] in texts
    assert json.loads(texts["schema/bundle.schema.json"]) == bundle_json_schema()


@pytest.mark.parametrize("template", TEMPLATES)
def test_its_tests_notice_a_change(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test file that passes whatever the policy says would be worth nothing."""
    assert run(["init", "--template", template]) == 0
    policy = Path("policy.yaml")
    monkeypatch.setenv("LOOP_GUARD_MAX_HITS", "0")
    empty = "bundle_version: 2\npolicies: []\n"
    policy.write_text(empty, encoding="utf-8")
    assert run(["test", "policy-test.yaml"]) == 1


def test_it_overwrites_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """X-3: one file that is there stops everything, and is named; --force overwrites."""
    Path("policy.yaml").write_text("mine\n", encoding="utf-8")
    assert run(["init"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "policy.yaml: is already there",
        "nothing was written; --force overwrites, or name another directory",
    ]
    assert Path("policy.yaml").read_text(encoding="utf-8") == "mine\n"
    assert not Path("breakloop.yaml").exists()
    assert run(["init", "--force"]) == 0
    assert "bundle_version" in Path("policy.yaml").read_text(encoding="utf-8")


def test_it_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """X-3: the next three commands, and the way into the directory if it is another."""
    assert run(["init"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[-3:]] == ["validate", "test", "serve"]
    assert not any(line.strip().startswith("cd ") for line in lines)
    assert run(["init", "other"]) == 0
    assert "  cd other\n" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """X-3: --json, for both ends."""
    assert run(["init", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["written"]) == FILES
    assert run(["init", "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["exist"]) == FILES


def test_a_directory_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    """X-3: what the system says, and 1."""
    Path("file").write_text("", encoding="utf-8")
    assert run(["init", "file/below"]) == 1
    assert "cannot be written" in capsys.readouterr().err
