"""The hooks in the real CrewAI, in its own environment: a looping agent is told, then its crew stops with CrewAI's own
error; a healthy one is left alone. All crews run in one process (crewai_crews.py), because importing it takes long."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.environments import program_of, variables
from tests.e2e.served import refusing, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FINISHED = "I finish with what I have."  # the stand-in's answer to a request without tools
STOPPED = {"raised": "_LoopDetectedError", "kinds": ["HookAborted", "LoopDetectedError", "DeniedError"]}


def ran(home: Path, script: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [program_of("crewai"), str(script), *arguments],
        env=variables(home),
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def crews(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("crews")
    with serving(folder, "--mode", "decision") as served, refusing() as absent:
        lines = ran(folder / "home", Path(__file__).with_name("crewai_crews.py"), served.url, absent)
    return json.loads(lines[-1])


def picked(outcome: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: outcome.get(name) for name in names}


@pytest.mark.parametrize("name", ["looping", "async", "alone", "remote"])
def test_a_looping_crew_is_told_then_stopped(crews: Any, name: str) -> None:
    """Notes in the third and fourth result; CrewAI's error that is ours, and no sixth model call (P-3, LD-4, D-4)."""
    outcome = crews[name]
    assert picked(outcome, "raised", "kinds", "reason") == {**STOPPED, "reason": "loop_detected"}
    assert outcome["text"].startswith("Blocked: `search` returned the same 15 bytes 5 times in a row.")
    assert picked(outcome, "ran", "asked", "noted", "faults") == {"ran": 5, "asked": 5, "noted": [4, 5], "faults": 0}
    result = outcome["bodies"][3]["messages"][-1]
    assert result["role"] == "tool"
    assert result["content"].startswith("nothing about x\n\n[breakloop] You repeat yourself: ")


def test_it_is_the_hooks_that_do_it(crews: Any) -> None:
    """Without them no note is written; CrewAI alone ends such a crew with another error."""
    assert picked(crews["idle"], "raised", "kinds", "noted") == {
        "raised": "ToolExecutionFailedError",
        "kinds": [],
        "noted": [],
    }


def test_a_crew_that_is_started_again_begins_anew(crews: Any) -> None:
    """The same task, with the same hooks, after a loop: nothing is left of it."""
    assert picked(crews["again"], "said", "ran", "noted") == {"said": "Done.", "ran": 2, "noted": []}


@pytest.mark.parametrize(("name", "most"), [("words", 20), ("parallel", 12)])
def test_loops_of_more_than_one_call(crews: Any, name: str, most: int) -> None:
    """Calls in turn, of a model that has no tool calls; and two at once. CrewAI sees neither (LD-4)."""
    outcome = crews[name]
    assert picked(outcome, "raised", "kinds", "faults") == {**STOPPED, "faults": 0}
    assert outcome["noted"]
    assert outcome["ran"] <= most


def test_a_healthy_crew_is_left_alone(crews: Any) -> None:
    """The same requests, byte for byte, and as many (P-3)."""
    assert picked(crews["healthy"], "said", "ran", "faults") == {"said": "Done.", "ran": 8, "faults": 0}
    assert crews["healthy"]["bodies"] == crews["unguarded"]["bodies"]
    assert len(crews["healthy"]["bodies"]) == 9


def test_a_block_may_be_a_result(crews: Any) -> None:
    """`on_block="return"`: the model reads why, the tool is not run again, and the crew goes on (P-3)."""
    outcome = crews["returned"]
    assert picked(outcome, "said", "ran", "asked") == {"said": "I give up.", "ran": 5, "asked": 8}
    read = [body["messages"][-1]["content"] for body in outcome["bodies"][5:]]
    assert [one.startswith("Blocked: `search` returned the same 15 bytes") for one in read] == [True] * 3


def test_a_service_that_is_not_there_stops_nobody(crews: Any) -> None:
    """Fail open, counted (D-4)."""
    assert picked(crews["absent"], "said", "noted") == {"said": "Done.", "noted": []}
    assert crews["absent"]["faults"] == 5


def test_in_shadow_nothing_changes(crews: Any) -> None:
    """In shadow nothing changes (LD-5)."""
    assert picked(crews["shadow"], "said", "noted", "faults") == {"said": "Done.", "noted": [], "faults": 0}


def test_limits_hold(crews: Any) -> None:
    """Each model call is judged once; the third is one too many (P-3)."""
    outcome = crews["limited"]
    assert picked(outcome, "raised", "kinds") == {"raised": "_DeniedError", "kinds": ["HookAborted", "DeniedError"]}
    assert picked(outcome, "reason", "asked") == {"reason": "token_bucket_exceeded", "asked": 2}


@pytest.mark.parametrize("name", ["landed", "landed async", "landed alone"])
def test_it_lands_with_an_answer(crews: Any, name: str) -> None:
    """The sixth model call offers no tools, and is the last; its answer is that of the crew (LD-10, P-3)."""
    outcome = crews[name]
    assert picked(outcome, "said", "ran", "asked", "faults") == {"said": FINISHED, "ran": 5, "asked": 6, "faults": 0}
    assert ["tools" in body for body in outcome["bodies"]] == [True] * 5 + [False]
    assert "tools are switched off" in outcome["bodies"][-1]["messages"][-2]["content"]


def test_a_budget_lands(crews: Any) -> None:
    """A crew that does not loop is told at 80 %, and ends with an answer at 95 % (LD-10, L-2)."""
    outcome = crews["landed by a budget"]
    assert picked(outcome, "said", "ran", "asked", "faults") == {"said": FINISHED, "ran": 5, "asked": 6, "faults": 0}
    assert ["tools" in body for body in outcome["bodies"]] == [True] * 5 + [False]
    assert outcome["noted"] == [5, 6]
