"""A stuck agent, written with the real `openai` package, through the real gateway with `similarity: steps`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, call_tool, say
from tests.e2e.served import Served, serving

pytestmark = pytest.mark.e2e

POLICY = """\
bundle_version: 1
policies: []
defaults:
  loop_detection:
    similarity: steps
    ladder: {notice: %s, block: reject, stop: reject}
"""
WRONG = "Error: no such file: config.yml"


def stubborn(seen: SeenRequest) -> Answer:
    """Reads the same missing file until somebody tells it that it repeats itself."""
    if "[breakloop]" in json.dumps(seen.json()):
        return say("I cannot find config.yml. I stop here.")
    return call_tool("read", {"path": "config.yml"})


@pytest.fixture
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread(respond=stubborn) as llm:
        yield llm


def start(folder: Path, llm: ThreadedLLM, notice: str) -> Any:
    (folder / "policy.yaml").write_text(POLICY % notice)
    return serving(folder, "--upstream", f"openai={llm.url}", "--policy", "policy.yaml")


def work(served: Served, turns: int = 20) -> tuple[str, int]:
    """Run the agent as agents are written: what it said in the end, and after how many turns."""
    messages: list[Any] = [{"role": "user", "content": "What is the port in config.yml?"}]
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-agent") as client:
        for turn in range(1, turns + 1):
            answer = client.chat.completions.create(model="m", messages=messages).choices[0].message
            if not answer.tool_calls:
                return answer.content or "", turn
            messages.append(answer.model_dump(exclude_none=True))
            messages += [{"role": "tool", "tool_call_id": one.id, "content": WRONG} for one in answer.tool_calls]
    return "", turns


def test_it_is_blocked_although_no_two_requests_are_alike(tmp_path: Path, llm: ThreadedLLM) -> None:
    """With its SDK's own error, which says what repeats (LD-4, A-3)."""
    with start(tmp_path, llm, "warn") as served, pytest.raises(openai.RateLimitError) as raised:
        work(served)
    assert "the same call of `read` failed 4 times" in str(raised.value)
    assert len(llm.requests) == 4


def test_it_recovers_when_it_is_told(tmp_path: Path, llm: ThreadedLLM) -> None:
    """A note in its own conversation, before anything is blocked; its client never sees the note (LD-5)."""
    with start(tmp_path, llm, "steer") as served:
        said, turns = work(served)
    assert (said, turns) == ("I cannot find config.yml. I stop here.", 3)
    assert "failed 2 times" in json.dumps(llm.requests[-1].json())
