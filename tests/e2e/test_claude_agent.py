"""The real Claude Agent SDK, with the Claude Code in it, and our hooks, against the stand-in LLM. The programs run in the
SDK's own environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from breakloop.testing import SeenRequest, StandInLLM
from tests.deadlines import DEADLINE_S
from tests.e2e import claude
from tests.e2e.served import serving

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).parent / "claude_agent_program.py"


def run(folder: Path, model: Callable[[int], Any], **more: str) -> tuple[dict[str, Any], list[str]]:
    """Let an agent work; returns how it ended, and what the model was shown."""
    return run_with(folder, claude.agent(model), **more)


def run_with(folder: Path, respond: Callable[[SeenRequest], Any], **more: str) -> tuple[dict[str, Any], list[str]]:
    folder.mkdir(exist_ok=True)
    with StandInLLM.in_thread(respond=respond) as llm:
        env = {**claude.environment(folder, llm.url), **more}
        command = [str(claude.installed()), str(PROGRAM), llm.url]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), claude.told(list(llm.requests))


def test_a_stuck_agent_is_told_then_refused_then_stopped(tmp_path: Path) -> None:
    """A note behind the result, a refusal with its reason, the end of the run; hooks of one's own go on (P-3, LD-5)."""
    ended, told = run(tmp_path / "home", claude.stuck)
    assert ended["ended"] == "hook_stopped"
    assert (ended["denied"], ended["mine"], ended["faults"]) == (2, 7, 0)
    assert len(told) == 6
    assert ["[breakloop] You repeat yourself: `Bash`" in one for one in told[:4]] == [False, False, True, True]
    assert "[breakloop] Blocked: `Bash`" in told[4]
    assert "hook error: Blocked: `Bash`" in told[5]


def test_a_healthy_agent_is_untouched(tmp_path: Path) -> None:
    """The model sees nothing of us (P-3)."""
    ended, told = run(tmp_path / "home", claude.healthy)
    assert (ended["said"], ended["denied"], ended["faults"]) == ("All done.", 0, 0)
    assert len(told) == 6
    assert "breakloop" not in "".join(told).replace(str(tmp_path), "")


def test_the_gateway_decides_and_it_lands_with_an_answer(tmp_path: Path) -> None:
    """With a Guard that asks a service, whose first answers let everything pass: the model reads why no more tools are
    called, and answers (D-4, LD-10, P-3)."""
    (tmp_path / "policy.json").write_text(json.dumps(claude.LAND))
    with serving(tmp_path, "--mode", "decision", "--policy", "policy.json") as served:
        ended, told = run_with(tmp_path / "home", claude.obedient, BREAKLOOP_URL=served.url)
    assert (ended["said"], ended["denied"], ended["faults"]) == ("What I have.", 0, 0)
    assert ["tools are switched off" in one for one in told] == [False] * 4 + [True]
