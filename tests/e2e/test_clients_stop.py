"""Clients that would wait and retry a 429 are ended by the denial of a loop: agents in JavaScript, and LiteLLM's proxy with
two deployments behind the gateway. test_frameworks.py has those in Python. Requests and steps are counted; a client that
waits instead reaches the deadline of its process."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import openai
import pytest

from breakloop.testing import SeenRequest, StandInLLM, call_tool, say
from tests.deadlines import DEADLINE_S
from tests.e2e.behind import ROOT
from tests.e2e.served import KEY, serving
from tests.e2e.test_litellm import running
from tests.programs import missing, node

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PACKAGES = ROOT / ".cache" / "typescript" / "node_modules"
BLOCKED = "Blocked: `look` returned the same 7 bytes 5 times in a row."
DEPLOYMENT = (
    '  - {{model_name: m, litellm_params: {{model: openai/{name}, api_base: "{url}/v1", api_key: sk-{name}}}}}\n'
)
MASTER_KEY = f"{KEY}master"


def respond(seen: SeenRequest) -> Any:
    return say("Hello.") if b"Good morning" in seen.body else call_tool("look", {"query": "again"})


def test_agents_in_javascript(tmp_path: Path) -> None:
    """Vercel AI SDK and LangChain.js: one request is denied, no other follows, and the error is the sentence (A-7)."""
    if not (PACKAGES / "ai").is_dir():
        missing("`make typescript` installs what is missing")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    shutil.copy(ROOT / "tests/e2e/typescript/agents.mjs", tmp_path)
    with StandInLLM.in_thread(respond=respond) as llm, serving(tmp_path, "--upstream", f"openai={llm.url}") as served:
        done = subprocess.run(
            [node(), "agents.mjs", served.url],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    ends: dict[str, dict[str, Any]] = json.loads(done.stdout)
    assert {name: (end["steps"], end["requests"]) for name, end in ends.items()} == {
        "vercel": (5, 6),
        "langchain": (5, 6),
    }
    assert all(BLOCKED in end["error"] and end["error"].count("Blocked") == 1 for end in ends.values()), ends


def test_other_users_of_litellm_are_served(tmp_path: Path) -> None:
    """A loop is no fault of the deployment that it reached: LiteLLM tries no other one, puts none into cooldown, and
    returns the denial to the looping agent (A-7)."""
    folder = tmp_path / "litellm"
    folder.mkdir()
    with StandInLLM.in_thread(respond=respond) as llm, serving(tmp_path, "--upstream", f"openai={llm.url}") as served:
        deployments = "".join(DEPLOYMENT.format(name=name, url=served.url) for name in ("one", "two"))
        settings = (
            f"general_settings: {{master_key: {MASTER_KEY}}}\nrouter_settings: {{enable_pre_call_checks: false}}\n"
        )
        (folder / "config.yaml").write_text(f"model_list:\n{deployments}{settings}")
        with running(folder) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=MASTER_KEY, max_retries=0) as client:
            messages: list[Any] = [{"role": "user", "content": "Find the tree."}]
            denied: list[openai.APIStatusError] = []
            for _ in range(14):  # each deployment has a key of its own, and counts apart
                try:
                    said = client.chat.completions.create(model="m", messages=messages).choices[0].message
                except openai.APIStatusError as error:
                    denied.append(error)
                    continue
                assert said.tool_calls
                result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "nothing"}
                messages += [said.model_dump(exclude_none=True), result]
            assert denied
            assert {error.status_code for error in denied} == {400}
            assert all("recursive_loop_detected" in str(error) for error in denied)
            for _ in range(4):
                other: Any = [{"role": "user", "content": "Good morning."}]
                assert client.chat.completions.create(model="m", messages=other).choices[0].message.content == "Hello."
