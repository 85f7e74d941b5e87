"""Agents of frameworks through the gateway, by their base URL alone and without an integration: an agent that
repeats itself is stopped, and thirty different steps pass. They keep their history at the provider (agent-framework,
agno), write code (smolagents), send the whole run as one message (DSPy), or retry by themselves (DSPy, smolagents, Strands)."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, call_tool, say
from tests.e2e.environments import program_of, variables
from tests.e2e.served import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STEPS = 30


def queried(model: str, turn: int) -> str:
    return "again" if model == "loop" else f"item-{turn}"


def with_tools(model: str, turn: int) -> Answer:
    """Calls of tools, as most frameworks ask for them."""
    return call_tool("look", {"query": queried(model, turn)}) if turn <= STEPS else say("Done.")


def with_final_tool(model: str, turn: int) -> Answer:
    """The same, and the answer is a call, too."""
    return with_tools(model, turn) if turn <= STEPS else call_tool("final_answer", {"answer": "Done."})


def with_code(model: str, turn: int) -> Answer:
    """A thought and a piece of code."""
    code = f'print(look("{queried(model, turn)}"))' if turn <= STEPS else 'final_answer("Done.")'
    return say(f"Thought: I look at number {turn}.\n<code>\n{code}\n</code>")


def with_fields(model: str, turn: int) -> Answer:
    """The fields that DSPy asks for."""
    if turn > STEPS + 1:
        fields = {"reasoning": "All was seen.", "answer": "Done."}
    else:
        name, arguments = ("look", {"query": queried(model, turn)}) if turn <= STEPS else ("finish", {})
        thought = f"I look at number {turn}."
        fields = {"next_thought": thought, "next_tool_name": name, "next_tool_args": json.dumps(arguments)}
    parts = [f"[[ ## {name} ## ]]\n{value}" for name, value in {**fields, "completed": ""}.items()]
    return say("\n\n".join(parts))


MODELS: dict[str, Callable[[str, int], Answer]] = {
    "agent-framework": with_tools,
    "agno": with_tools,
    "smolagents-code": with_code,
    "smolagents-tools": with_final_tool,
    "dspy": with_fields,
    "strands": with_tools,
    "semantic-kernel": with_tools,
    "ag2": with_tools,
}
APART = {"semantic-kernel": ["semantic-kernel", "ag2"]}
ENVIRONMENTS = {"frameworks": [name for name in MODELS if name not in APART["semantic-kernel"]], **APART}

ENDED = {"smolagents-code", "smolagents-tools", "dspy", "strands"}  # they would retry a 429


class Model:
    """Answers every agent by its own count of requests: some send no history that could be counted."""

    def __init__(self) -> None:
        self.turns: Counter[str] = Counter()

    def __call__(self, seen: SeenRequest) -> Answer:
        key = (seen.header("authorization") or "").removeprefix("Bearer sk-")
        self.turns[key] += 1
        name, _, model = key.rpartition("-")
        return MODELS[name](model, self.turns[key])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Any]], Counter[str]]:
    """How each agent ended, and how many requests of it reached the model."""
    folder, model, outcomes = tmp_path_factory.mktemp("frameworks"), Model(), dict[str, dict[str, Any]]()
    script = Path(__file__).with_name("framework_agents.py")
    llm: ThreadedLLM
    with StandInLLM.in_thread(respond=model) as llm, serving(folder, "--upstream", f"openai={llm.url}") as served:
        home = folder / "home"
        for environment, names in ENVIRONMENTS.items():
            done = subprocess.run(
                [program_of(environment), str(script), served.url, *names],
                env=variables(home),
                cwd=home,
                capture_output=True,
                text=True,
                check=False,
                timeout=250,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            outcomes.update(json.loads(done.stdout.splitlines()[-1]))
    return outcomes, model.turns


@pytest.mark.parametrize("name", MODELS)
def test_a_looping_agent_is_stopped(runs: tuple[dict[str, dict[str, Any]], Counter[str]], name: str) -> None:
    """The same call with the same result: the framework's error contains what was repeated. Its tool is not run again,
    and frameworks that would wait for minutes and retry a 429 get a status that ends the run (LD-4, A-3, A-7)."""
    outcomes, turns = runs
    assert outcomes[name]["repeated"] == turns[f"{name}-loop"]
    assert bool(re.search("Error code: 400|InvalidRequest", outcomes[name]["loop"])) == (name in ENDED)
    assert re.search("Blocked: .*(again|same|repeat|new)", outcomes[name]["loop"]), outcomes[name]["loop"][:2000]
    assert 5 <= turns[f"{name}-loop"] <= 8


@pytest.mark.parametrize("name", MODELS)
def test_thirty_different_steps_pass(runs: tuple[dict[str, dict[str, Any]], Counter[str]], name: str) -> None:
    """Nothing is denied, however much of each request is the frame that the framework writes (LD-4)."""
    outcomes, turns = runs
    assert outcomes[name]["work"] == "Done."
    assert turns[f"{name}-work"] == STEPS + (2 if name == "dspy" else 1)
