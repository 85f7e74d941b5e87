"""Agents of frameworks with their integrations, without a gateway: one that loops is told, then stopped in the manner of
its framework; thirty steps pass byte for byte; one that is landed ends with an answer. Each framework is one process of
the environment `frameworks` or of one beside it (guarded_agents.py), because imports are most of the time."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environments import program_of, variables
from tests.e2e.served import refusing

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("guarded_agents.py")
BLOCKED = "returned the same {} bytes 5 times in a row. Use the result you have, or call something else."
# How the run of each ends: the error that is raised; "": the framework would hide an error, so it is the final response.
RAISED = {
    "google-adk": "",
    "agent-framework": "LoopDetectedError",
    "agent-framework-stored": "LoopDetectedError",
    "strands": "_LoopDetectedError",
    "smolagents": "LoopDetectedError",
    "smolagents-code": "LoopDetectedError",
    "llama-index": "LoopDetectedError",
    "agno": "",
    "dspy": "LoopDetectedError",
    "autogen": "LoopDetectedError",
    "haystack": "LoopDetectedError",
    "ag2": "LoopDetectedError",
    "semantic-kernel": "LoopDetectedError",
    "semantic-kernel-filter": "LoopDetectedError",
}
APART = dict.fromkeys(("ag2", "semantic-kernel", "semantic-kernel-filter"), "semantic-kernel")
CODE = {"smolagents-code"}  # a call is a piece of code, and what it printed is the result
# Checked after each step, so the first request passes.
STEPS = {"smolagents", "smolagents-code", "semantic-kernel-filter"}
# When they are landed: AG2, Strands and Haystack remove calls, smolagents keeps `final_answer`.
TOOLS_STAY_ON = {"strands", "smolagents", "haystack", "ag2"}
IN_WORDS = {"smolagents-code", "dspy", "semantic-kernel-filter"}  # there is no tool to switch off
ASKED_TWICE = {"dspy", "semantic-kernel-filter"}  # when they are landed, calls cannot be held back
UNCOUNTED = {"semantic-kernel-filter"}  # it does not see what answers use
LAST = {"dspy": 1}  # more requests for the answer: it is asked for separately

Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=RAISED)
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def outcomes(framework: str, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    home = tmp_path_factory.mktemp(framework)
    with refusing() as absent:
        done = subprocess.run(
            [program_of(APART.get(framework, "frameworks")), str(SCRIPT), framework, absent],
            env=variables(home, GOOGLE_API_KEY="none", OPENAI_API_KEY="none", HAYSTACK_TELEMETRY_ENABLED="False"),
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    made: Outcomes = json.loads(done.stdout.splitlines()[-1])
    return made


def picked(outcome: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: outcome.get(name) for name in names}


@pytest.mark.parametrize("run", ["looping", "streamed"])
def test_a_loop_is_told_then_stopped(framework: str, outcomes: Outcomes, run: str) -> None:
    """Notes in the fourth and fifth request, and no sixth: neither the model nor the tool is called again (P-3, LD-4,
    LD-5)."""
    outcome = outcomes[run]
    assert picked(outcome, "ran", "asked", "noted", "faults") == {"ran": 5, "asked": 5, "noted": [4, 5], "faults": 0}
    assert BLOCKED.format(62 if framework in CODE else 10) in outcome["text"]
    assert "recursive_loop_detected" in outcome["text"]
    if RAISED[framework]:
        assert outcome["text"].startswith("Blocked: ")
        assert picked(outcome, "raised", "loop") == {"raised": RAISED[framework], "loop": True}


def test_thirty_steps_pass_byte_for_byte(framework: str, outcomes: Outcomes) -> None:
    """The same requests as without breakloop (P-3)."""
    assert picked(outcomes["healthy"], "said", "ran", "faults") == {"said": "All read.", "ran": 30, "faults": 0}
    assert len(outcomes["healthy"]["bodies"]) == 31 + LAST.get(framework, 0)
    assert outcomes["healthy"]["bodies"] == outcomes["unguarded"]["bodies"]


@pytest.mark.parametrize(("run", "like"), [("landed", ""), ("landed streamed", "unguarded streamed")])
def test_it_lands_with_an_answer(framework: str, outcomes: Outcomes, run: str, like: str) -> None:
    """The sixth request asks for the answer, with tools switched off (LD-10, P-3)."""
    said = outcomes[like]["said"] if like else "There is none."
    expected = {"said": said, "ran": 5, "asked": 6 + LAST.get(framework, 0), "faults": 0}
    assert picked(outcomes[run], *expected) == expected
    if framework not in IN_WORDS:
        assert outcomes[run]["off"] == ([] if framework in TOOLS_STAY_ON else [6])
    if framework == "smolagents":
        assert [one["function"]["name"] for one in outcomes[run]["bodies"][-1]["tools"]] == ["final_answer"]


@pytest.mark.parametrize("run", ["ignored", "ignored streamed"])
def test_calls_that_are_made_all_the_same_are_not_carried_out(framework: str, outcomes: Outcomes, run: str) -> None:
    """Of a server that ignores the choice: the run ends with why. DSPy's tools cannot be held back: the program is asked
    twice for its answer, and then denied (LD-10)."""
    outcome = outcomes[run]
    if framework in ASKED_TWICE:
        assert picked(outcome, "ran", "asked", "loop") == {"ran": 7, "asked": 7, "loop": True}
        return
    if framework in STEPS:
        assert picked(outcome, "ran", "loop") == {"ran": 5, "loop": True}
        return
    name = "tools-search" if framework == "semantic-kernel" else "search"
    assert outcome["said"].startswith(f"You repeat yourself: `{name}` returned the same 10 bytes")
    assert picked(outcome, "ran", "asked") == {"ran": 5, "asked": 6}


@pytest.mark.parametrize(
    ("run", "reason", "asked"), [("limited", "token_bucket_exceeded", 2), ("spent", "tree_budget_exceeded", 3)]
)
def test_limits_and_budgets_hold(framework: str, outcomes: Outcomes, run: str, reason: str, asked: int) -> None:
    """Each model call is judged once, and what answers use is counted (P-3, L-2)."""
    outcome = outcomes[run]
    if run == "spent" and framework in UNCOUNTED:
        assert picked(outcome, "said", "asked") == {"said": "All read.", "asked": 31}
        return
    assert outcome["asked"] == asked + (framework in STEPS)
    assert reason in outcome["text"]
    if RAISED[framework]:
        assert picked(outcome, "ours", "loop", "reason") == {"ours": True, "loop": False, "reason": reason}


def test_a_service_that_is_not_there_stops_nobody(framework: str, outcomes: Outcomes) -> None:
    """Fail open, counted (D-4)."""
    faults = 31 - (framework in STEPS) + LAST.get(framework, 0)
    assert picked(outcomes["absent"], "said", "faults") == {"said": "All read.", "faults": faults}
