"""The real Codex behind the gateway, with its own number of retries: a command that it runs again and again is stopped, and
thirty different ones pass, over HTTP and over a websocket. `make codex` installs it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from breakloop.testing import Answer, SeenRequest, StandInLLM, call_tool, say
from tests.deadlines import DEADLINE_S
from tests.e2e.behind import ROOT
from tests.e2e.served import KEY, serving
from tests.e2e.websocket_llm import Json, says, websocket_llm
from tests.programs import missing, node

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROGRAM = ROOT / ".cache" / "codex" / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
STEPS = 30
SETTINGS = """\
model = "gpt-5.1-codex"
model_provider = "gateway"

[model_providers.gateway]
name = "gateway"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""


class Model:
    """Answers with a command each time; `loop`: with the same one."""

    def __init__(self, *, loop: bool) -> None:
        self.loop = loop
        self.requests: list[dict[str, Any]] = []

    def __call__(self, seen: SeenRequest) -> Answer | None:
        if not seen.path.endswith("/responses"):
            return None
        self.requests.append(seen.fields)
        turn = len(self.requests)
        if turn > STEPS:
            return say("All chapters are counted.")
        command = "cat missing.txt" if self.loop else f"echo chapter {turn} has {turn * 31} words"
        return call_tool("exec_command", {"cmd": command})


def run(folder: Path, model: Model) -> subprocess.CompletedProcess[str]:
    """Let Codex work until it ends."""
    with StandInLLM.in_thread(respond=model) as llm:
        return run_codex(folder, llm.url, SETTINGS)


def run_codex(folder: Path, upstream: str, settings: str) -> subprocess.CompletedProcess[str]:
    if not PROGRAM.is_file():
        missing("`make codex` installs what is missing")
    home, work = folder / "home", folder / "work"
    (home / ".codex").mkdir(parents=True)
    work.mkdir()
    with serving(folder, "--upstream", f"openai={upstream}") as served:
        (home / ".codex" / "config.toml").write_text(settings.format(url=served.url), encoding="utf-8")
        options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
        return subprocess.run(
            [node(), str(PROGRAM), "exec", *options, "Count the words of all chapters."],
            cwd=work,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "OPENAI_API_KEY": f"{KEY}codex"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )


def test_a_command_that_is_run_again_and_again_is_stopped(tmp_path: Path) -> None:
    """After four failures. The run ends at once, and shows why: a 429 would be retried, without the message (LD-4, A-7)."""
    model = Model(loop=True)
    done = run(tmp_path, model)
    assert done.returncode == 1, done.stderr[-2000:]
    assert len(model.requests) == 4
    assert "Blocked: the same call of `exec_command` failed 4 times." in done.stdout
    assert "Chunk ID" in str(model.requests[-1]["input"][-1])  # a line that differs each time


def test_thirty_different_commands_pass(tmp_path: Path) -> None:
    """Nothing is denied, though most of each result is the same frame (LD-4)."""
    model = Model(loop=False)
    done = run(tmp_path, model)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(model.requests) == STEPS + 1
    assert "All chapters are counted." in done.stdout


def over_websocket(folder: Path, *, loop: bool) -> tuple[subprocess.CompletedProcess[str], list[Json]]:
    """Let Codex work over a websocket; returns the requests that reached the provider, too."""

    def answer(number: int, asked: Json) -> Json:
        turn = number - 1  # before the first one, Codex warms up with a request that asks for no answer
        if asked.get("generate") is False or turn > STEPS:
            return says(number, asked)
        command = "cat missing.txt" if loop else f"echo chapter {turn} has {turn * 31} words"
        return {"type": "function_call", "name": "exec_command", "arguments": json.dumps({"cmd": command})}

    with websocket_llm(answer) as llm:
        done = run_codex(folder, llm.url, SETTINGS + "supports_websockets = true\n")
    return done, [event for event in llm.seen if event.get("generate", True)]


def test_over_a_websocket_a_repeated_command_is_stopped_at_the_same_step(tmp_path: Path) -> None:
    """Codex then sends what is new alone, and asks not to store anything: the answer before it is known all the same,
    from the connection. The error event ends the run (LD-4, A-7)."""
    done, requests = over_websocket(tmp_path, loop=True)
    assert done.returncode == 1, done.stderr[-2000:]
    assert len(requests) == 4
    assert [bool(request.get("previous_response_id")) for request in requests] == [False, True, True, True]
    assert requests[-1]["store"] is False
    assert "Blocked: the same call of `exec_command` failed 4 times." in done.stdout


def test_over_a_websocket_thirty_different_commands_pass(tmp_path: Path) -> None:
    """Nothing is denied, and Codex does not fall back to HTTP (LD-4)."""
    done, requests = over_websocket(tmp_path, loop=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(requests) == STEPS + 1
    assert "I finish with what I have." in done.stdout
