"""The real Claude Code with our hooks, as `breakloop init --for claude-code` writes them, against the stand-in LLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.integrations.claude_code import AGENT_TOOLS, HookOptions, answered
from breakloop.model.call import Call, Tree
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, call_tool, say
from tests.deadlines import DEADLINE_S
from tests.e2e import claude
from tests.e2e.served import SRC, serving

pytestmark = pytest.mark.e2e


class Session:
    """One run of `claude -p`, and what the model saw of it."""

    def __init__(self, output: str, llm: ThreadedLLM) -> None:
        lines = [json.loads(line) for line in output.splitlines()]
        (self.result,) = [line for line in lines if line["type"] == "result"]
        self.notices = [line for line in lines if line["type"] == "system" and line.get("subtype") == "informational"]
        self.raw = output
        self.told = claude.told(list(llm.requests))
        self.asked = len(self.told) + 1


@contextmanager
def project(folder: Path, *flags: str) -> Iterator[Path]:
    """A project with our hooks, as `init` writes them, and a command that a test can replace."""
    for name in ("home", "bin", "project"):
        (folder / name).mkdir()
    command = folder / "bin" / "breakloop"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m breakloop "$@"\n')
    command.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    made = [sys.executable, "-m", "breakloop", "init", str(folder / "project"), "--for", "claude-code"]
    subprocess.run(made, check=True, env=env, capture_output=True)
    settings = folder / "project" / ".claude" / "settings.json"
    text = settings.read_text()
    assert text.count('breakloop hook claude-code"') == 8
    line = json.loads(text)["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    settings.write_text(text.replace(line, " ".join([str(command), "hook claude-code", *flags])))
    yield folder / "project"


def start(at: Path, folder: Path, url: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `claude -p` in a project until it ends."""
    command = [claude.command_line(), "-p", "Please read the file.", "--output-format", "stream-json", "--verbose"]
    command += ["--permission-mode", "bypassPermissions", "--model", claude.MODEL]
    env = claude.environment(folder / "home", url)
    env |= {"PATH": f"{folder / 'bin'}{os.pathsep}{env['PATH']}", **more}
    return subprocess.run(
        command,
        cwd=at,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def run(folder: Path, model: Callable[[int], Any], *flags: str, **more: str) -> Session:
    """Let Claude Code work with a model until it ends."""
    return run_with(folder, claude.agent(model), *flags, **more)


def run_with(folder: Path, respond: Callable[[SeenRequest], Answer | None], *flags: str, **more: str) -> Session:
    with StandInLLM.in_thread(respond=respond) as llm, project(folder, *flags) as at:
        done = start(at, folder, llm.url, **more)
        assert done.returncode == 0, done.stderr
        return Session(done.stdout, llm)


def test_a_stuck_agent_is_told_then_refused_then_stopped(tmp_path: Path) -> None:
    """The model reads a note, then why its call is denied; then Claude Code ends the run itself. Nothing but the data
    directory is needed in between (P-3, LD-5)."""
    done = run(tmp_path, claude.stuck)
    assert done.asked == 7
    assert ["[breakloop] You repeat yourself: `Bash`" in one for one in done.told] == [False] * 2 + [True] * 2 + [
        False
    ] * 2
    assert "[breakloop] Blocked: `Bash` returned the same" in done.told[4]
    assert "hook error: Blocked: `Bash` returned the same" in done.told[5]
    assert "recursive_loop_detected" in done.told[5]
    assert done.result["terminal_reason"] == "hook_stopped"
    assert len(done.result["permission_denials"]) == 2
    kept = tmp_path / "home/.local/share/breakloop"
    assert [path.name for path in sorted(kept.rglob("*"))] == ["hooks", "secret"], "its session has ended"


def test_a_healthy_agent_is_untouched(tmp_path: Path) -> None:
    """No word of ours reaches the model, and the work is done (P-3)."""
    done = run(tmp_path, claude.healthy)
    assert (done.asked, done.result["result"]) == (7, "All done.")
    assert "breakloop" not in "".join(done.told).replace(str(tmp_path), "")
    assert done.result["permission_denials"] == []


def test_in_shadow_the_person_is_told(tmp_path: Path) -> None:
    """The model goes on as if nothing was there (E-6)."""
    done = run(tmp_path, lambda turn: claude.stuck(turn) if turn < 7 else None, "--shadow")
    assert (done.asked, done.result["result"]) == (8, "All done.")
    assert "[breakloop]" not in "".join(done.told)
    assert "breakloop (shadow) would block: Blocked: `Bash`" in done.raw


def test_the_gateway_decides(tmp_path: Path) -> None:
    """Where BREAKLOOP_URL names one, its policies hold: an agent that was killed there is stopped at once (D-3)."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "bundle_version: 1\npolicies: []\nkill_switches:\n"
        "  - {scope_key: agent:id, scope_value: nightly, reason: out of hand, expires_at: 2099-01-01T00:00:00Z}\n"
    )
    with serving(tmp_path, "--mode", "decision", "--policy", str(policy)) as served:
        (tmp_path / "killed").mkdir()
        killed = run(tmp_path / "killed", claude.healthy, "--agent", "nightly", BREAKLOOP_URL=served.url)
        assert killed.asked == 1


def test_it_lands_behind_the_gateway(tmp_path: Path) -> None:
    """Without hooks: the request that would have been denied has its tools switched off, and the run ends with an
    answer. Thinking, cache breakpoints and tools are as Claude Code sent them (LD-10)."""
    (tmp_path / "policy.json").write_text(json.dumps(claude.LAND))
    (tmp_path / "home").mkdir()
    with StandInLLM.in_thread(respond=claude.agent(claude.stuck)) as llm:
        flags = ("--upstream", f"anthropic={llm.url}", "--policy", "policy.json")
        with serving(tmp_path, *flags) as served:
            done = start(tmp_path, tmp_path, served.url)
        session = Session(done.stdout, llm)
        sent = [seen.fields for seen in llm.requests if seen.fields.get("tools")]
    assert (session.result["result"], session.result["is_error"]) == ("I finish with what I have.", False)
    assert [one.get("tool_choice") for one in sent] == [None] * 5 + [{"type": "none"}]
    assert {json.dumps(one["tools"]) for one in sent} == {json.dumps(sent[0]["tools"])}
    assert ["tools are switched off" in one for one in session.told] == [False] * 4 + [True]
    changed = {"messages", "tool_choice"}
    before, landed = [{name: one[name] for name in one.keys() - changed} for one in sent[4:]]
    assert landed == before


def test_it_lands_with_the_hooks(tmp_path: Path) -> None:
    """The model reads that tools are off, and every call is denied until it answers; one that does not answer is
    stopped (LD-10, P-3)."""
    (tmp_path / "policy.json").write_text(json.dumps(claude.LAND))
    with serving(tmp_path, "--mode", "decision", "--policy", "policy.json") as served:
        for name in ("obedient", "stuck"):
            (tmp_path / name).mkdir()
        ended = run_with(tmp_path / "obedient", claude.obedient, BREAKLOOP_URL=served.url)
        assert (ended.asked, ended.result["result"], ended.result["is_error"]) == (6, "What I have.", False)
        stopped = run(tmp_path / "stuck", claude.stuck, BREAKLOOP_URL=served.url)
        assert (stopped.asked, stopped.result["terminal_reason"]) == (8, "hook_stopped")
        assert len(stopped.result["permission_denials"]) == 3


def test_the_gateway_counts_sub_agents(tmp_path: Path) -> None:
    """A start beyond its limit is reported to the agent, and the next call of Task is denied until one stops (LD-12)."""
    policy = tmp_path / "policy.yaml"
    loops = "{similarity: steps, max_agents_per_tree: 3}"
    policy.write_text(f"bundle_version: 1\npolicies: []\ndefaults: {{loop_detection: {loops}}}\n")
    with serving(tmp_path, "--mode", "decision", "--policy", str(policy)) as served:
        options, clock = HookOptions(url=served.url), FakeClock()

        def tell(kind: str, **fields: Any) -> str:
            return json.dumps(
                answered({"hook_event_name": kind, "session_id": "s", **fields}, options, tmp_path, clock)
            )

        said = [tell("SubagentStart", agent_id=name, agent_type="Explore") for name in "abc"]
        assert ["Not started: 4 agents of one tree are at work" in one for one in said] == [False, False, True]
        assert '"permissionDecision": "deny"' in tell("PreToolUse", tool_name="Task")
        assert tell("SubagentStop", agent_id="a", agent_type="Explore") == "{}"
        assert tell("PreToolUse", tool_name="Task") == "{}"
        assert "Not started" not in tell("SubagentStart", agent_id="d", agent_type="Explore")


def test_its_sub_agents_are_seen(tmp_path: Path) -> None:
    """A hook is called when one starts and when it stops, with one id; and its requests name that id and the session, so
    that a gateway knows the tree (LD-12, C-7)."""

    def model(request: SeenRequest) -> Answer | None:
        if not request.path.endswith("/messages") or not request.fields.get("tools"):
            return None
        asked = json.dumps(request.fields["messages"])
        if "Count the lines" in asked and "tool_use" not in asked:
            return say("There are seven lines.")
        if "tool_use" in asked:
            return say("All done.")
        task = {"description": "Count", "prompt": "Count the lines.", "subagent_type": "general-purpose"}
        names = [tool["name"] for tool in request.fields["tools"]]
        return call_tool(next(name for name in names if name in AGENT_TOOLS), task, tool_id="toolu_0000000001")

    with StandInLLM.in_thread(respond=model) as llm, project(tmp_path) as at:
        log = tmp_path / "events"
        command = tmp_path / "bin" / "breakloop"
        command.write_text(f'#!/bin/sh\ntee -a {log} | {sys.executable} -m breakloop "$@"\necho >> {log}\n')
        done = start(at, tmp_path, llm.url)
        assert done.returncode == 0, done.stderr
        events = [json.loads(line) for line in log.read_text().splitlines() if line]
        seen = [one for one in events if one["hook_event_name"].startswith("Subagent")]
        assert [one["hook_event_name"] for one in seen] == ["SubagentStart", "SubagentStop"]
        (name,) = {one["agent_id"] for one in seen}
        (session,) = {one["session_id"] for one in seen}
        read = Descriptors(ContextSettings(secret=b"k"), FakeClock())
        calls = [
            Call("POST", one.path, headers={key.decode().lower(): value for key, value in one.headers})
            for one in llm.requests
        ]
        assert Tree(session, session, 2) in [read.tree(call) for call in calls]
        assert f"{session}/{name}" in [read.session(call) for call in calls]


def test_the_gateway_sees_its_sub_agents(tmp_path: Path) -> None:
    """By the ids that Claude Code sends itself. A sub-agent that a sub-agent starts is 3 deep, which the policy does not
    allow: it never reaches the LLM, its parent reads why, and both that are at work finish (LD-12, C-7)."""
    loops = "{similarity: steps, max_depth: 2}"
    (tmp_path / "policy.yaml").write_text(f"bundle_version: 1\npolicies: []\ndefaults: {{loop_detection: {loops}}}\n")
    starts = {"Please read the file.": "Count the lines of it.", "Count the lines of it.": "Read the first word."}

    def model(request: SeenRequest) -> Answer | None:
        if not request.path.endswith("/messages") or not request.fields.get("tools"):
            return None
        asked = json.dumps(request.fields["messages"])
        if '"tool_result"' in asked:
            return say("I am done with it.")
        prompt = next((starts[task] for task in starts if task in asked), "")
        task = {"description": "Help", "prompt": prompt, "subagent_type": "general-purpose"}
        names = [tool["name"] for tool in request.fields["tools"]]
        return call_tool(next(name for name in names if name in AGENT_TOOLS), task, tool_id=f"toolu_{len(prompt):010}")

    for name in ("home", "bin", "project"):
        (tmp_path / name).mkdir()
    with (
        StandInLLM.in_thread(respond=model) as llm,
        serving(tmp_path, "--policy", "policy.yaml", "--upstream", f"anthropic={llm.url}") as served,
    ):
        done = start(tmp_path / "project", tmp_path, served.url)
        assert done.returncode == 0, done.stderr
        fields = [{key.decode().lower(): value for key, value in one.headers} for one in llm.requests]
        agents = {one["x-claude-code-agent-id"] for one in fields if "x-claude-code-agent-id" in one}
        assert len(agents) == 1
        assert not any("x-claude-code-parent-agent-id" in one for one in fields)
        sent = [json.dumps(one.fields["messages"]) for one in llm.requests if one.fields.get("tools")]
        assert any("Not started: agents start agents, 3 deep" in one for one in sent)
        results = [one for line in done.stdout.splitlines() if (one := json.loads(line))["type"] == "result"]
        assert {one["result"] for one in results} == {"I am done with it."}


@pytest.mark.parametrize("kind", ["PreToolUse", "PostToolUse"])
def test_a_hook_imports_little(kind: str, tmp_path: Path) -> None:
    """Everybody waits for it, and imports are most of its time (P-3). `make bench` measures it."""
    sent = json.dumps({
        "session_id": "s",
        "hook_event_name": kind,
        "tool_name": "Bash",
        "tool_input": {"command": "ls"},
        "tool_response": "a.txt",
    }).encode()  # fmt: skip
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-X", "importtime", "-m", "breakloop", "hook", "claude-code"]
    done = subprocess.run(command, input=sent, env=env, capture_output=True, check=True)
    lines = done.stderr.decode().splitlines()
    assert [line for line in lines if not line.startswith("import time:")] == []
    modules = [line.rpartition("|")[2].strip() for line in lines]
    slow = {"asyncio", "httpx", "jinja2", "pydantic", "redis", "rich", "ruamel", "ssl", "starlette", "uvloop"}
    assert slow & {name.partition(".")[0] for name in modules} == set()
    assert 50 < len(modules) < 215  # 198; an interpreter without a program loads some 30
