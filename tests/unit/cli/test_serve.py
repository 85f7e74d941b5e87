"""`breakloop serve`: its flags, what it says, and how it fails. The process itself is tested end to end."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from breakloop.admin.auth import FILE
from breakloop.app.runtime import Runtime
from breakloop.app.workers.control import StartupSummary, startup_summary
from breakloop.cli import serve
from breakloop.cli.main import run
from breakloop.config.loader import LoadedSettings
from breakloop.config.settings import Settings

BUNDLE = "bundle_version: 4\npolicies: [{id: a, spec: {selector: {pathPrefix: /}}}]\n"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)


def summary(**values: object) -> list[str]:
    """What is said of a process with these settings."""
    runtime = running(**values)
    return serve.summary(runtime.settings, startup_summary(runtime.source, runtime.engine.bundle, runtime.url))


def running(**values: object) -> Runtime:
    runtime = Runtime(Settings.model_validate({"data_dir": "data", **values}))
    runtime.load()
    runtime.url = "http://127.0.0.1:8787"
    return runtime


def test_flags_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag by its fixed name (T-2)."""
    seen: list[LoadedSettings] = []
    monkeypatch.setattr(serve, "start", seen.append)
    line = "--host ::1 --port 0 --admin-port 0 --upstream a=http://x --upstream b=http://y --policy p.yaml"
    line += " --state memory:// --data-dir d --workers 1 --mode decision --strict --log-level debug --log-format text"
    assert run(["serve", *line.split()]) == 0
    settings, origins = seen[0].settings, seen[0].settings.origins
    assert (settings.host, settings.port, settings.admin_port) == ("::1", 0, 0)
    assert settings.upstream == ["a=http://x", "b=http://y"]
    assert (settings.policy, settings.data_dir, settings.mode, settings.strict) == ("p.yaml", "d", "decision", True)
    assert origins["strict"] == "flag --strict"
    assert run(["serve"]) == 0
    assert seen[1].settings.origins["strict"] == "default"


def test_wrong_settings_are_printed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong, on standard error, and exit code 1 (T-1, S-5)."""
    assert run(["serve", "--state", "disk://", "--upstream", "openai"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["flag --state", "flag --upstream"]
    assert lines[1] == "breakloop: flag --upstream: is not NAME=URL (write openai=https://llm.example.com)"


def test_workers_need_a_shared_state(capsys: pytest.CaptureFixture[str]) -> None:
    """It refuses to start, and says what to do (S-5)."""
    assert run(["serve", "--workers", "2"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("breakloop: flag --workers: 2 processes cannot share the state of memory://")
    assert line.endswith("(set state to the URL of a Redis, or workers to 1)")


def test_misspelt_variable_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A warning, and it starts (T-1)."""
    monkeypatch.setenv("BREAKLOOP_PROT", "1")
    monkeypatch.setattr(serve, "start", lambda _loaded: 0)
    assert run(["serve"]) == 0
    assert "warning: environment BREAKLOOP_PROT is not a setting" in capsys.readouterr().err


@pytest.mark.slow
def test_it_says_it_is_ready_and_ends_with_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line is the one that others wait for (T-2)."""
    announce = serve.announce

    def announce_and_stop(runtime: Runtime) -> None:
        announce(runtime)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(serve, "announce", announce_and_stop)
    assert run(["serve", "--port", "0", "--admin-port", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("breakloop ready on http://127.0.0.1:")


def test_strict_without_bundle_prints_the_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Located, and exit code 1 (E-0)."""
    Path("b.yaml").write_text("bundle_version: 0\npolicies: []\n")
    assert run(["serve", "--port", "0", "--admin-port", "0", "--policy", "b.yaml", "--strict"]) == 1
    assert "breakloop: b.yaml:1:17: bundle_version" in capsys.readouterr().err


def test_summary_without_policy() -> None:
    """What is protected when nothing is set, and where to ask (T-2)."""
    text = "\n".join(summary())
    assert "built-in loop protection only (`breakloop init` writes one)" in text
    assert "  loops     LLM calls: repeated steps; the same end 6 times in 60 s\n" in text
    assert "own loop_detection" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "http://127.0.0.1:8787/v1/decision " in text
    assert "protection is OFF" in "\n".join(summary(loop_guard={"max_hits": 0}))


def test_summary_says_where_envoy_may_ask() -> None:
    """Over gRPC, where that is on (D-3)."""
    assert not [line for line in summary() if "gRPC" in line]
    assert "            127.0.0.1:8789 (Envoy, gRPC)" in summary(envoy_grpc_port=8789)


def test_summary_says_how_to_go_through_it() -> None:
    """The upstreams, and the lines that a person copies; only for the doors that are open (D-2, T-2)."""
    lines = summary()
    assert "  upstream  openai https://api.openai.com (default)" in lines
    assert "            anthropic https://api.anthropic.com" in lines
    assert "  use       export OPENAI_BASE_URL=http://127.0.0.1:8787/v1" in lines
    assert "            export ANTHROPIC_BASE_URL=http://127.0.0.1:8787" in lines
    text = "\n".join(summary(mode="decision"))
    assert "export" not in text
    assert "upstream" not in text
    text = "\n".join(summary(mode="proxy", upstream=["mine=http://m.example:81/v1"]))
    assert "upstream  mine http://m.example:81/v1 (default)\n            openai https" in text
    assert "/v1/decision" not in text


@pytest.mark.parametrize(
    ("url", "shown"), [("http://0.0.0.0:1", "http://127.0.0.1:1"), ("http://[::]:1", "http://[::1]:1")]
)
def test_nobody_is_told_to_connect_to_everywhere(url: str, shown: str) -> None:
    """An address to listen on is not always one to connect to (T-2)."""
    assert f"            export ANTHROPIC_BASE_URL={shown}" in serve.summary(
        running().settings, StartupSummary(url=url)
    )


def test_summary_with_policy() -> None:
    """Version and number of policies; a copy or nothing at all is said loudly (T-2, E-0)."""
    file = Path("b.yaml")
    file.write_text(BUNDLE)
    assert "b.yaml, version 4, 1 policy" in "\n".join(summary(policy="b.yaml"))
    file.write_text(BUNDLE + "defaults: {loop_detection: {similarity: tail}}\n")
    assert "set by `defaults.loop_detection` of the bundle" in "\n".join(summary(policy="b.yaml"))
    own = "{id: ID, spec: {selector: {pathPrefix: /}, mode: MODE, loop_detection: {similarity: tail}}}"
    listed = [own.replace("ID", name).replace("MODE", mode) for name, mode in (("a", "enforce"), ("b", "shadow"))]
    file.write_text(f"bundle_version: 4\npolicies: [{', '.join(listed)}]\n")
    lines = summary(policy="b.yaml")
    assert lines[2] == (
        "  loops     LLM calls: repeated steps; the same end 6 times in 60 s\n"
        "            1 policy uses its own loop_detection instead"
    )
    file.write_text(f"bundle_version: 4\npolicies: [{', '.join(listed).replace('shadow', 'enforce')}]\n")
    assert lines[2].replace("1 policy uses its", "2 policies use their") == summary(policy="b.yaml")[2]
    file.unlink()
    text = "\n".join(summary(policy="b.yaml"))
    assert "version 4, 2 policies, from the last good copy:\n            b.yaml:1:1: cannot be read" in text
    text = "\n".join(summary(policy="b.yaml", data_dir="other"))
    assert "NO VALID BUNDLE, every request gets 503:\n            b.yaml:1:1: cannot be read" in text


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        ("source", "breakloop ready on http://h:1"),
        ("", "breakloop listening on http://h:1, not ready: requests get 503 until the policy is valid"),
    ],
)
def test_ready_is_said_only_where_requests_are_answered(
    origin: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A configured policy that cannot be read, and no copy of it: it listens, and is not ready (T-2, E-0)."""
    serve.say(Settings(), StartupSummary(url="http://h:1", source="b.yaml", origin=origin))
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_later_starts_say_how_to_get_another_token() -> None:
    """It was shown once; not where it is set, and not where it is shown right now (X-1, Y-3)."""
    seen = StartupSummary(url="http://127.0.0.1:8787", admin_url="http://127.0.0.1:8788")
    lines = serve.summary(running().settings, seen)
    at = lines.index("            token: shown at the first start. If you lost it, delete this file and restart")
    assert lines[at + 1].strip() == str(Path("data", serve.TOKEN_FILE))
    assert serve.TOKEN_FILE == FILE
    set_one = serve.summary(running(admin_token="mine-mine-mine-mine-mine").settings, seen)
    shown = serve.summary(running().settings, replace(seen, admin_token="bl_x"))
    assert not [line for line in (*set_one, *shown) if "Lost it?" in line]
