"""What `breakloop setup` writes is what the real programs use: Claude Code, LiteLLM's proxy, and an MCP client in the
place of Cursor. Codex, OpenCode, Cline and aider are too large to be installed for a test; they were run by hand."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from breakloop.testing import StandInLLM
from tests.deadlines import DEADLINE_S
from tests.e2e import claude
from tests.e2e.served import SRC, serving
from tests.e2e.test_claude_code import Session, start
from tests.e2e.test_litellm import MASTER_KEY, running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NOWHERE = "http://127.0.0.1:9"


def setup(folder: Path, *arguments: str) -> str:
    """Run the command as a user does whose home is below a folder, and return what it prints."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    command = folder / "bin" / "breakloop"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m breakloop "$@"\n')
    command.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = {"HOME": str(folder / "home"), "PATH": path, "PYTHONPATH": str(SRC)}
    line = [str(command), "setup", *arguments]
    done = subprocess.run(
        line,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_claude_code_through_the_gateway(tmp_path: Path) -> None:
    """It asks the gateway, whatever the environment names, and its loop ends with the denial; undone, every byte of its
    settings is as it was (X-7)."""
    settings = tmp_path / "home" / ".claude" / "settings.json"
    settings.parent.mkdir(parents=True)
    before = b'{\n  "env": {"MINE": "1"},\n  "permissions": {"allow": []}\n}\n'
    settings.write_bytes(before)
    with StandInLLM.in_thread(respond=claude.agent(claude.stuck)) as llm:
        with serving(tmp_path, "--upstream", f"anthropic={llm.url}") as served:
            setup(tmp_path, "claude-code", "--url", served.url)
            said = setup(tmp_path, "claude-code", "--url", served.url, "--verify")
            assert said.startswith("anthropic: 200 through breakloop (request ")
            llm.requests.clear()
            stuck = Session(start(tmp_path, tmp_path, NOWHERE).stdout, llm)
        assert "Blocked: `Bash` returned the same" in stuck.result["result"]
        assert stuck.asked == 5
    setup(tmp_path, "claude-code", "--undo")
    assert settings.read_bytes() == before


def test_claude_code_with_hooks(tmp_path: Path) -> None:
    """The hooks in the settings of the user run, and end a loop without a gateway (X-7, P-3)."""
    said = setup(tmp_path, "claude-code-hooks")
    assert "hooks.PreToolUse +=" in said
    assert setup(tmp_path, "claude-code-hooks", "--verify").endswith("breakloop hook claude-code: runs\n")
    with StandInLLM.in_thread(respond=claude.agent(claude.stuck)) as llm:
        stuck = Session(start(tmp_path, tmp_path, llm.url).stdout, llm)
    assert (stuck.asked, stuck.result["terminal_reason"]) == (7, "hook_stopped")


def test_the_proxy_of_litellm(tmp_path: Path) -> None:
    """Models without an address of their own are asked for through the gateway (X-7)."""
    folder = tmp_path / "litellm"
    folder.mkdir()
    config = folder / "config.yaml"
    models = "".join(
        f"  - {{model_name: {name}, litellm_params: {{model: {name}/x, api_key: none}}}}\n"
        for name in ("openai", "anthropic")
    )
    config.write_text(f"model_list:\n{models}general_settings: {{master_key: {MASTER_KEY}}} # mine\n")
    with StandInLLM.in_thread() as llm:
        flags = [one for name in ("openai", "anthropic") for one in ("--upstream", f"{name}={llm.url}")]
        with serving(tmp_path, *flags) as served:
            setup(tmp_path, "litellm", "--url", served.url, "--file", str(config))
            assert config.read_text().startswith("model_list:\n")
            with running(folder) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=MASTER_KEY) as client:
                for name in ("openai", "anthropic"):
                    answer = client.chat.completions.create(model=name, messages=[{"role": "user", "content": name}])
                    assert answer.choices[0].message.content == "This is a stand-in, not a model."
        assert [one.path for one in llm.requests] == ["/v1/chat/completions", "/v1/messages"]


async def repeat(parameters: StdioServerParameters, times: int) -> list[bool]:
    """Call a tool that finds nothing, as a stuck agent does; return which calls were refused."""
    async with Client(stdio_client(parameters)) as client:
        return [bool((await client.call_tool("find", {"query": "x"})).is_error) for _ in range(times)]


def test_the_servers_of_cursor(tmp_path: Path) -> None:
    """The command that Cursor would start is the server behind `breakloop mcp`, which ends a loop (X-7)."""
    program = Path(__file__).parent / "mcp_server_program.py"
    file = tmp_path / "home" / ".cursor" / "mcp.json"
    file.parent.mkdir(parents=True)
    server = {"command": sys.executable, "args": [str(program), str(tmp_path / "calls")]}
    file.write_text(json.dumps({"mcpServers": {"real": server}}))
    setup(tmp_path, "cursor")
    made = json.loads(file.read_text())["mcpServers"]["real"]
    env = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(SRC), "HOME": str(tmp_path)}
    refused = asyncio.run(repeat(StdioServerParameters(command=made["command"], args=made["args"], env=env), 7))
    assert refused == [False] * 5 + [True] * 2
    assert len((tmp_path / "calls").read_text().splitlines()) == 5
