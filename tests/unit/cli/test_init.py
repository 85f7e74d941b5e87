"""`breakloop init`: what it writes is valid and passes its own tests; it destroys nothing."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from breakloop.cli.init import CHOICES, TEMPLATES, contents, texts
from breakloop.cli.main import run
from breakloop.config.loader import load_settings
from breakloop.policy.schema.bundle import bundle_json_schema
from tests.unit.replay import transcripts

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
    """The bundle validates without a note, its tests pass, the settings load and name the bundle (X-3)."""
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
    """The first line names a schema file that is written beside it (T-1)."""
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
    """One file that is there stops everything, and is named; --force overwrites (X-3)."""
    Path("policy.yaml").write_text("mine\n", encoding="utf-8")
    assert run(["init"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "policy.yaml: exists already",
        "nothing was written; use --force to overwrite, or another directory",
    ]
    assert Path("policy.yaml").read_text(encoding="utf-8") == "mine\n"
    assert not Path("breakloop.yaml").exists()
    assert run(["init", "--force"]) == 0
    assert "bundle_version" in Path("policy.yaml").read_text(encoding="utf-8")


def test_it_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """The next three commands, and the way into the directory if it is another (X-3)."""
    assert run(["init"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[-3:]] == ["validate", "test", "serve"]
    assert not any(line.strip().startswith("cd ") for line in lines)
    assert run(["init", "other"]) == 0
    assert "  cd other\n" in capsys.readouterr().out


@pytest.mark.parametrize("what", CHOICES)
def test_what_it_writes_for_what_you_run(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy passes its tests, the settings load, and the next three commands end with one for it (P-4)."""
    assert run(["init", "new", "--for", what]) == 0
    assert capsys.readouterr().out.splitlines()[-4] == "  cd new"
    monkeypatch.chdir("new")
    own = {path.as_posix() for path in Path().rglob("*") if path.is_file()} - FILES
    assert own == set(texts(what))
    assert run(["validate", "--strict", "policy.yaml"]) == 0
    assert run(["test", "policy-test.yaml"]) == 0
    loaded = load_settings(env={})
    assert (loaded.settings.policy, loaded.warnings) == ("policy.yaml", ())
    assert (loaded.settings.mode == "decision") is (CHOICES[what].template == "gateway")


@pytest.mark.parametrize("what", CHOICES)
def test_it_protects_no_less_than_no_policy(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent that runs one failing command is stopped as early as by the built-in protection (B-6, X-3)."""
    records = list(transcripts.claude([("pytest -q", "ERROR: no module named app")] * 20, "stuck"))
    for number, record in enumerate(records):
        record["timestamp"] = transcripts.stamp(number * 10)  # three records a turn: too slow for `tail`
    transcripts.write(Path("t.jsonl"), records)

    def stopped(*policy: str) -> int:
        assert run(["scan", "t.jsonl", "--json", *policy]) == 0
        first_block = json.loads(capsys.readouterr().out.splitlines()[0])["first_block"]
        assert isinstance(first_block, int), policy
        return first_block

    assert run(["init", "new", "--for", what, "--json"]) == 0
    capsys.readouterr()
    without = stopped()
    assert without < 12
    assert stopped("--policy", "new/policy.yaml") <= without


def test_a_template_beside_what_you_run() -> None:
    """The policy is the one that was asked for; the rest fits what you run."""
    assert run(["init", "--for", "nginx", "--template", "minimal"]) == 0
    assert Path("policy.yaml").read_text(encoding="utf-8") == contents("minimal")["policy.yaml"]
    assert Path("nginx/nginx.conf").is_file()


def test_what_you_run_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the policy nor the other files (X-3)."""
    Path("nginx").mkdir()
    Path("nginx/nginx.conf").write_text("mine\n", encoding="utf-8")
    assert run(["init", "--for", "nginx"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "nginx/nginx.conf: exists already"
    assert not Path("policy.yaml").exists()


class Terminal(io.StringIO):
    """Somebody sits there."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "file"),
    [("1\n", "client.py"), ("9\n", "envoy/envoy.yaml"), ("99\n8\n", "nginx/nginx.conf"), ("\n", None)],
)
def test_it_asks_on_a_terminal(typed: str, file: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What do you run? By number; a wrong one is asked again, Enter is none of them."""
    out = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys, "stdout", out)
    assert run(["init"]) == 0
    assert "What do you run?\n   1  OpenAI's SDK" in out.getvalue()
    written = {path.as_posix() for path in Path().rglob("*") if path.is_file()}
    assert written >= FILES
    assert written == FILES if file is None else file in written


@pytest.mark.parametrize("flags", [["--for", "caddy"], ["--template", "llm"], ["--json"]])
def test_scripts_are_not_asked(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal too: what is said is not asked, and nothing is read."""
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert run(["init", *flags]) == 0


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """--json, for both ends (X-3)."""
    assert run(["init", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["written"]) == FILES
    assert told["next"][-1] == "breakloop serve"
    assert run(["init", "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["exist"]) == FILES


def test_a_directory_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    """What the system says, and 1 (X-3)."""
    Path("file").write_text("", encoding="utf-8")
    assert run(["init", "file/below"]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_hooks_are_brought_into_a_file_that_is_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others keep in it stays, also with --force; a file that cannot be read is not touched (P-3)."""
    settings = Path(".claude/settings.json")
    settings.parent.mkdir()
    settings.write_text('{"model": "opus"}', encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["/opt/my tools/breakloop"])
    assert run(["init", "--for", "claude-code"]) == 0
    made = settings.read_text(encoding="utf-8")
    assert json.loads(made)["model"] == "opus"
    assert "'/opt/my tools/breakloop' hook claude-code\"" in made, "a shell without the virtual environment finds it"
    assert run(["init", "--for", "claude-code", "--force"]) == 0
    assert settings.read_text(encoding="utf-8") == made
    settings.write_text("{", encoding="utf-8")
    capsys.readouterr()
    assert run(["init", "--for", "claude-code", "--force"]) == 1
    assert capsys.readouterr().err.startswith(".claude/settings.json: is not JSON: ")
    assert settings.read_text(encoding="utf-8") == "{"
