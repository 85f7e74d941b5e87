"""`breakloop setup`: the files of other programs, before, after, and restored to the byte."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from breakloop.cli.config_edit import read_config
from breakloop.cli.main import OK, PROBLEM, UNREACHABLE, USAGE, run
from breakloop.cli.setup_clients import CLIENTS
from breakloop.testing import SeenRequest, StandInLLM, body

BASE = "http://127.0.0.1:8787/agents"
CLAUDE = '{\n  // mine\n  "permissions": {"allow": ["Bash(ls)"]},\n  "env": {"X": "1"}\n}\n'
CODEX = '# mine\nmodel = "gpt-6"\n\n[mcp_servers.docs]  # kept\ncommand = "docs"\n'
CLINE = (
    '{"version": 1, "providers": {"anthropic": {"settings": {"apiKey": "sk-canary"}}, "openrouter": {"settings": {}}}}'
)
CURSOR = '{"mcpServers": {"files": {"command": "npx", "args": ["-y", "files"]}, "web": {"url": "https://x/mcp"}}}\n'
LITELLM = "model_list:\n  - model_name: own  # kept\n    litellm_params: {model: openai/x, api_base: 'https://x'}\n"

# What a file was, where it is, and what must stand in it afterwards.
CASES: dict[str, tuple[str, str, list[tuple[tuple[str, ...], object]]]] = {
    "claude-code": (CLAUDE, ".claude/settings.json", [(("env", "ANTHROPIC_BASE_URL"), f"{BASE}/claude-code")]),
    "codex": (
        CODEX,
        ".codex/config.toml",
        [
            (("model_provider",), "breakloop"),
            (("model_providers", "breakloop", "base_url"), f"{BASE}/codex/v1"),
            (("model_providers", "breakloop", "wire_api"), "responses"),
        ],
    ),
    "opencode": (
        '{\n  "$schema": "https://opencode.ai/config.json", // kept\n}\n',
        ".config/opencode/opencode.json",
        [
            (("provider", "anthropic", "options", "baseURL"), f"{BASE}/opencode/v1"),
            (("provider", "openai", "options", "baseURL"), f"{BASE}/opencode/v1"),
        ],
    ),
    "cline": (
        CLINE,
        ".cline/data/settings/providers.json",
        [
            (("providers", "anthropic", "settings", "baseUrl"), f"{BASE}/cline/v1"),
            (("providers", "openrouter", "settings", "baseUrl"), None),
        ],
    ),
    "goose": (
        "GOOSE_PROVIDER: anthropic # kept\nextensions:\n  developer: {enabled: true}\n",
        ".config/goose/config.yaml",
        [((name,), f"{BASE}/goose") for name in ("ANTHROPIC_HOST", "OPENAI_HOST", "GOOGLE_HOST")],
    ),
    "cursor": (
        CURSOR,
        ".cursor/mcp.json",
        [
            (("mcpServers", "files", "args"), ["mcp", "--agent", "cursor", "--", "npx", "-y", "files"]),
            (("mcpServers", "web", "url"), "https://x/mcp"),
        ],
    ),
    "aider": (
        "model: sonnet\nset-env:\n  - A=1 # kept\n",
        ".aider.conf.yml",
        [
            (("openai-api-base",), f"{BASE}/aider/v1"),
            (
                ("set-env",),
                [f"GEMINI_API_BASE={BASE}/aider/v1beta", f"ANTHROPIC_API_BASE={BASE}/aider", "A=1"],
            ),
        ],
    ),
    "litellm": (
        LITELLM,
        "config.yaml",
        [(("environment_variables", "OPENAI_API_BASE"), f"{BASE}/litellm/v1")],
    ),
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without anything, and nothing else on the PATH."""
    for name in list(os.environ):  # noqa: TID251 - what a person has set
        if name.startswith(("BREAKLOOP_", "XDG_", "CLAUDE_", "CODEX_", "CLINE_", "OPENCODE_")) or name.endswith("_KEY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "argv", ["/opt/breakloop/bin/breakloop"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(home: Path, name: str) -> Path:
    text, place, _ = CASES[name]
    file = home / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())
    return file


def read(file: Path, name: str) -> dict[str, object]:
    return read_config(file.read_text(encoding="utf-8"), CLIENTS[name].kind, str(file))


def at(data: object, path: tuple[str, ...]) -> object:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


@pytest.mark.parametrize("name", CASES)
def test_set_up_and_undone(home: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wanted stands there, twice is once, and undone every byte is as it was (X-7)."""
    file = written(home, name)
    file.chmod(0o600)
    before = file.read_bytes()
    assert run(["setup", name]) == OK
    said = capsys.readouterr().out
    assert said.startswith(f"changed {file.relative_to(home) if name == 'litellm' else file}\n")
    assert f"breakloop setup {name} --undo" in said
    data = read(file, name)
    assert [at(data, path) for path, _ in CASES[name][2]] == [value for _, value in CASES[name][2]]
    assert "kept" not in before.decode() or "kept" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    changed = file.read_bytes()
    assert run(["setup", name]) == OK
    assert file.read_bytes() == changed
    assert "is set up already" in capsys.readouterr().out
    assert run(["setup", name, "--undo"]) == OK
    assert file.read_bytes() == before
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run(["setup", name, "--undo"]) == PROBLEM
    assert "nothing to undo" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in CASES if name not in {"cline", "cursor", "litellm"}])
def test_without_a_file(home: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is created, and removed again (X-7)."""
    file = home / CASES[name][1]
    assert run(["setup", name]) == OK
    assert capsys.readouterr().out.startswith(f"created {file}\n")
    data = read(file, name)
    assert at(data, CASES[name][2][0][0]) == CASES[name][2][0][1]
    assert name != "opencode" or data["$schema"], "OpenCode would add it, and the file could not be restored"
    assert run(["setup", name, "--undo"]) == OK
    assert not file.exists()


def test_codex_reads_it(home: Path) -> None:
    """The keys of the provider in the order of its documentation, and the tables of the user behind them (X-7)."""
    file = written(home, "codex")
    assert run(["setup", "codex", "--url", "https://gateway.example/agents/mine"]) == OK
    text = file.read_text()
    assert text == (
        f'model_provider = "breakloop"\n{CODEX}\n[model_providers.breakloop]\nname = "OpenAI through breakloop"\n'
        'base_url = "https://gateway.example/agents/mine/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
    )
    assert tomllib.loads(text)["mcp_servers"] == {"docs": {"command": "docs"}}


def test_hooks_of_claude_code(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside hooks of others, with the full path (X-7)."""
    file = home / ".claude/settings.json"
    file.parent.mkdir()
    mine = {"matcher": "Bash", "hooks": [{"type": "command", "command": "mine.sh"}]}
    before = json.dumps({"hooks": {"PreToolUse": [mine]}}, indent=2)
    file.write_text(before)
    assert run(["setup", "claude-code-hooks"]) == OK
    hooks = json.loads(file.read_text())["hooks"]
    assert hooks["PreToolUse"][0] == mine
    assert hooks["PreToolUse"][1]["hooks"][0]["command"] == "/opt/breakloop/bin/breakloop hook claude-code"
    assert len(hooks) == 8
    assert run(["setup", "claude-code"]) == OK
    assert run(["setup", "claude-code-hooks", "--undo"]) == PROBLEM, "the last change is undone first"
    assert run(["setup", "claude-code", "--undo"]) == OK
    assert run(["setup", "claude-code-hooks", "--undo"]) == OK
    assert file.read_text() == before


def program(path: Path) -> str:
    """A command that does nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return str(path)


def environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Activate a virtual environment that has breakloop."""
    command = program(folder / "bin/breakloop")
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}/usr/bin")
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    monkeypatch.setattr(sys, "argv", [command])
    return command


@pytest.mark.parametrize(
    ("ran", "written_as"),
    [
        ("/usr/local/bin/breakloop", "breakloop"),
        ("/usr/bin/breakloop", "breakloop"),
        ("/srv/tools/.local/bin/breakloop", "/srv/tools/.local/bin/breakloop"),
        ("/srv/tools/x/../.venv/bin/breakloop", "/srv/tools/.venv/bin/breakloop"),
    ],
)
def test_the_name_of_the_command(home: Path, ran: str, written_as: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its full path, unless every shell finds it by name (X-7)."""
    monkeypatch.setattr(sys, "argv", [ran])
    file = written(home, "cursor")
    assert run(["setup", "cursor"]) == OK
    assert json.loads(file.read_text())["mcpServers"]["files"]["command"] == written_as


def test_the_command_of_python_m(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one beside the interpreter, not the module, which is no program (X-7)."""
    command = program(home / "venv/bin/breakloop")
    monkeypatch.setattr(sys, "executable", str(home / "venv/bin/python"))
    monkeypatch.setattr(sys, "argv", [str(home / "lib/breakloop/__main__.py")])
    file = written(home, "cursor")
    assert run(["setup", "cursor"]) == OK
    assert json.loads(file.read_text())["mcpServers"]["files"]["command"] == command


@pytest.mark.parametrize("folder", ["venv", "a venv"])
def test_a_virtual_environment(
    home: Path, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hooks run in shells without the environment that is active now, also if its path has spaces. They are known
    again, and undone every byte is as it was (X-7, P-3)."""
    environment(home / folder, monkeypatch)
    file = home / ".claude/settings.json"
    file.parent.mkdir()
    file.write_text(CLAUDE)
    assert run(["setup", "claude-code-hooks"]) == OK
    line = read(file, "claude-code")["hooks"]["PreToolUse"][0]["hooks"][0]["command"]  # type: ignore[index]
    bare = {"PATH": "/usr/bin:/bin"}
    assert subprocess.run(["/bin/sh", "-c", line], env=bare, check=False, stdin=subprocess.DEVNULL).returncode == 0
    assert run(["setup", "claude-code-hooks", "--verify"]) == OK
    capsys.readouterr()
    assert run(["setup", "claude-code-hooks"]) == OK
    assert "is set up already" in capsys.readouterr().out
    assert run(["setup", "claude-code-hooks", "--undo"]) == OK
    assert file.read_text() == CLAUDE


@pytest.mark.parametrize("variable", [True, False])
def test_verify_does_not_use_the_virtual_environment(
    home: Path, *, variable: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bare name, as breakloop wrote it before, would not be found: hooks fail, and a loop goes on (X-7)."""
    command = environment(home / "venv", monkeypatch)
    if not variable:
        monkeypatch.delenv("VIRTUAL_ENV")
    file = home / ".claude/settings.json"
    assert run(["setup", "claude-code-hooks"]) == OK
    file.write_text(file.read_text().replace(command, "breakloop"))
    assert run(["setup", "claude-code-hooks", "--verify"]) == PROBLEM
    said = capsys.readouterr().err
    assert "cannot be started in a shell without your virtual environment" in said
    assert f"write its full path into {file}: {command}" in said
    cursor = written(home, "cursor")
    assert run(["setup", "cursor"]) == OK
    assert run(["setup", "cursor", "--verify"]) == OK
    cursor.write_text(cursor.read_text().replace(command, "breakloop"))
    assert run(["setup", "cursor", "--verify"]) == PROBLEM
    assert f"write its full path into {cursor}: {command}" in capsys.readouterr().err


def test_edits_since_are_not_lost(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Undo refuses where the file was changed afterwards, and shows the difference without secrets (X-7)."""
    file = written(home, "cline")
    assert run(["setup", "cline"]) == OK
    edited = file.read_bytes().replace(b'"version": 1', b'"version": 2')
    file.write_bytes(edited)
    capsys.readouterr()
    assert run(["setup", "cline", "--undo"]) == PROBLEM
    said = capsys.readouterr().err
    assert "was changed since, so it is not restored" in said
    assert '+{"version": 1' in said
    assert "sk-canary" not in said
    assert file.read_bytes() == edited
    file.unlink()
    assert run(["setup", "cline", "--undo"]) == PROBLEM, "removed since"


def test_set_up_twice_with_other_addresses(home: Path) -> None:
    """Undo restores what was there before breakloop (X-7)."""
    file = written(home, "claude-code")
    assert run(["setup", "claude-code"]) == OK
    assert run(["setup", "claude-code", "--url", "http://other:1"]) == OK
    assert "http://other:1/agents/claude-code" in file.read_text()
    assert run(["setup", "claude-code", "--undo"]) == OK
    assert file.read_text() == CLAUDE


def test_an_address_that_was_set_is_reported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests would go to the provider itself otherwise (X-7)."""
    file = home / ".claude/settings.json"
    file.parent.mkdir()
    file.write_text('{"env": {"ANTHROPIC_BASE_URL": "https://proxy.example"}}')
    assert run(["setup", "claude-code"]) == OK
    assert "note: env.ANTHROPIC_BASE_URL was https://proxy.example; to go on using that server: breakloop serve --upstream anthropic=https://proxy.example" in capsys.readouterr().out  # fmt: skip


def test_notes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What breakloop cannot do for a client (X-7)."""
    for name in ("litellm", "cursor", "codex"):
        written(home, name)
        assert run(["setup", name]) == OK
    said = capsys.readouterr().out
    assert "these models have an api_base of their own, which was not changed: own" in said
    assert "Cursor calls models from its own servers" in said
    assert "it needs an API key in OPENAI_API_KEY" in said


def test_a_dry_run_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the difference (X-7)."""
    file = written(home, "codex")
    assert run(["setup", "codex", "--dry-run"]) == OK
    said = capsys.readouterr().out
    assert '+model_provider = "breakloop"\n' in said
    assert file.read_text() == CODEX
    assert not (home / ".local").exists()


def test_a_symbolic_link_stays_one(home: Path) -> None:
    """Dotfiles are often links into a repository (X-7)."""
    (home / "dotfiles").mkdir()
    (home / "dotfiles/aider.yml").write_text("a: 1\n")
    file = home / ".aider.conf.yml"
    file.symlink_to("dotfiles/aider.yml")
    assert run(["setup", "aider"]) == OK
    assert file.is_symlink()
    assert "openai-api-base" in (home / "dotfiles/aider.yml").read_text()
    assert run(["setup", "aider", "--undo"]) == OK
    assert file.is_symlink()
    assert file.read_text() == "a: 1\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("claude-code", b'{\n  "env": [\n}', ":3:"),
        ("codex", b"model = x\n", ":1:9: is not valid TOML"),
        ("aider", b"a: 1\n b: 2\n", ":2:3: is not valid YAML"),
        ("opencode", b'{"provider": 1}', ":1:14: provider: is not a table"),
        ("aider", b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_bad_files(home: Path, name: str, content: bytes, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The problem with its place; nothing is written, beside it neither (X-7)."""
    file = written(home, name)
    file.write_bytes(content)
    assert run(["setup", name]) == PROBLEM
    assert said in capsys.readouterr().err
    assert file.read_bytes() == content
    assert [one.name for one in file.parent.iterdir() if one.is_file()] == [file.name]
    assert not (home / ".local").exists()


def test_a_failure_while_writing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file is whole, and nothing is left beside it (X-7)."""
    file = written(home, "aider")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert run(["setup", "aider"]) == PROBLEM
    assert file.read_text() == CASES["aider"][0]
    assert [one.name for one in home.iterdir() if one.is_file()] == [file.name]


def test_what_was_kept_is_for_its_owner(home: Path) -> None:
    """Files of clients may contain keys (X-7)."""
    written(home, "cline")
    assert run(["setup", "cline"]) == OK
    (kept,) = (home / ".local/share/breakloop/setup").iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_nothing_to_set(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clients that must be configured first (X-7)."""
    assert run(["setup", "cline"]) == PROBLEM
    assert "run `cline auth` first" in capsys.readouterr().err
    assert run(["setup", "cursor"]) == PROBLEM
    assert "no MCP server is configured" in capsys.readouterr().err
    assert run(["setup", "litellm"]) == USAGE
    assert "with --file" in capsys.readouterr().err
    assert [one for one in home.rglob("*") if one.is_file()] == []


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """With the remedy (X-7)."""
    for arguments in (["vim"], ["codex", "--undo", "--verify"], ["--undo"], ["codex", "--url", "localhost:8787"]):
        assert run(["setup", *arguments]) == USAGE, arguments
    said = capsys.readouterr().err
    assert "vim: not one of claude-code, " in said
    assert "write it like http://127.0.0.1:8787" in said


def test_what_is_installed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a file or a program; without a terminal nothing is asked, and nothing changed (X-7)."""
    assert run(["setup"]) == OK
    assert "Found none of" in capsys.readouterr().out
    written(home, "codex")
    (home / "bin").mkdir()
    (home / "bin/goose").write_text("#!/bin/sh\n")
    (home / "bin/goose").chmod(0o755)
    (home / ".aider.conf.yml").write_text("a: [\n")
    assert run(["setup"]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["codex", "goose", "aider", "To"]
    assert lines[0].endswith("can be set up")
    assert "is not valid YAML" in lines[2]
    assert (home / ".codex/config.toml").read_text() == CODEX


def test_on_a_terminal_it_asks(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One question for each program that can be set up (X-7)."""
    files = [written(home, name) for name in ("codex", "aider")]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    answers = iter([True, False])
    monkeypatch.setattr("click.confirm", lambda *_arguments, **_options: next(answers))
    assert run(["setup"]) == OK
    assert 'model_provider = "breakloop"' in files[0].read_text()
    assert files[1].read_text() == CASES["aider"][0]


# -- --verify


def gateway(seen: SeenRequest) -> object:
    """Answer as a gateway does whose provider asks for a key."""
    assert seen.header("authorization") is None
    return body(b"{}", status=401).with_headers(("X-Breakloop-Request-Id", "req-1"))


def test_verify(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One request for each provider, without a key, on the way that was set up (X-7)."""
    written(home, "aider")
    with StandInLLM.in_thread(respond=gateway) as llm:
        assert run(["setup", "aider", "--url", llm.url]) == OK
        capsys.readouterr()
        assert run(["setup", "aider", "--url", llm.url, "--verify"]) == OK
        assert [one.path for one in llm.requests] == [
            "/agents/aider/v1/models", "/agents/aider/v1/models", "/agents/aider/v1beta/models",
        ]  # fmt: skip
    said = capsys.readouterr().out
    assert "openai: 401 through breakloop (request req-1); no key was sent, and the provider asks for one" in said
    assert run(["setup", "aider", "--url", llm.url, "--verify"]) == UNREACHABLE
    assert "start the gateway with `breakloop serve`" in capsys.readouterr().err
    assert run(["setup", "aider", "--verify"]) == PROBLEM
    assert "is not set up; run breakloop setup aider" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (200, [], "something else than breakloop answered (200)"),
        (502, [("X-Breakloop-Request-Id", "r")], "did not (502)"),
    ],
)
def test_verify_finds_faults(
    home: Path, status: int, headers: list[tuple[str, str]], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another server, and a provider that cannot be reached (X-7)."""
    with StandInLLM.in_thread(respond=lambda _seen: body(b"{}", status=status).with_headers(*headers)) as llm:
        assert run(["setup", "claude-code", "--url", llm.url]) == OK
        assert run(["setup", "claude-code", "--url", llm.url, "--verify"]) == PROBLEM
    assert said in capsys.readouterr().err


def test_verify_runs_the_hook(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that Claude Code will run (X-7)."""
    command = home / "bin/breakloop"
    monkeypatch.setattr(sys, "argv", [program(command)])
    assert run(["setup", "claude-code-hooks"]) == OK
    assert run(["setup", "claude-code-hooks", "--verify"]) == OK
    assert "breakloop hook claude-code: runs" in capsys.readouterr().out
    command.unlink()
    assert run(["setup", "claude-code-hooks", "--verify"]) == PROBLEM
    assert "breakloop hook claude-code: cannot be started" in capsys.readouterr().err
