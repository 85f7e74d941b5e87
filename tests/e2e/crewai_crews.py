"""Crews that CrewAI's own environment runs for test_crewai.py: `python crewai_crews.py URL ABSENT_URL`. Prints, as its
last line, what became of each, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.hooks import HookAborted
from crewai.llms.providers.openai.completion import OpenAICompletion
from crewai.tools import tool

from breakloop import DeniedError, Guard, LoopDetectedError
from breakloop.integrations.crewai import GuardCrewHooks
from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, call_tool, limit_policy, say

URL, ABSENT = sys.argv[1:3]
SAME = call_tool("search", {"query": "x"})
# CrewAI itself does not carry out the same call twice in a row where calls are words.
IN_WORDS = [say(f'Thought: I look it up.\nAction: search\nAction Input: {{"query": "{query}"}}') for query in "xy"]
SHADOW = {
    "bundle_version": 1,
    "policies": [],
    "global_shadow": {"enabled": True, "reason": "looking first", "expires_at": "2030-01-31T18:00:00Z"},
}
LAND = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps", "ladder": {"block": "land"}}},
}
STAGES = [
    {"threshold_percent": 80, "action": "steer"},
    {"threshold_percent": 95, "action": "land"},
    {"threshold_percent": 100, "action": "reject"},
]
BUDGET = {"budget": 60, "period": "1d", "fixed_cost": 10, "staged_actions": STAGES}
SPENT = {
    "bundle_version": 1,
    "defaults": {"loop_detection": "off"},
    "policies": [
        {
            "id": "p",
            "spec": {
                "selector": {"pathPrefix": "/"},
                "rules": [
                    {"name": "b", "limit_keys": [], "algorithm": "cost_based", "algorithm_config": BUDGET},
                ],
            },
        }
    ],
}
FEW = {"bundle_version": 1, "policies": [limit_policy(rate=0.001, burst=2)]}


def searches(seen: SeenRequest) -> Answer:
    return SAME if "tools" in seen.json() else say("I finish with what I have.")


def searches_on(seen: SeenRequest) -> Answer:
    """For something else each time: CrewAI itself ends an agent that repeats a call."""
    body = seen.json()
    number = len(body["messages"])
    if "tools" not in body:
        return say("I finish with what I have.")
    return call_tool("search", {"query": f"page {number}"}, tool_id=f"call_{number}")


class Plain(OpenAICompletion):
    """A model that has no calls of tools, so that CrewAI reads them in its words."""

    def supports_function_calling(self) -> bool:
        return False


def crew(llm: ThreadedLLM, ran: list[str], kind: Callable[..., Any] = LLM) -> Crew:
    @tool("search")  # type: ignore[untyped-decorator]  # as `Plain`
    def search(query: str) -> str:
        """Look something up."""
        ran.append(query)
        return f"nothing about {query}"

    search.cache_function = lambda *_: False
    model = kind(model="openai/stand-in" if kind is LLM else "stand-in", base_url=f"{llm.url}/v1", api_key="none")
    agent = Agent(role="Support", goal="Help people", backstory="You are patient.", tools=[search], llm=model)
    task = Task(description="What is our refund policy?", expected_output="One sentence.", agent=agent)
    return Crew(agents=[agent], tasks=[task])


def kickoff(made: Crew) -> str:
    return str(made.kickoff())


def kickoff_async(made: Crew) -> str:
    return str(asyncio.run(made.akickoff()))


def agent_alone(made: Crew) -> str:
    return str(made.agents[0].kickoff("What is our refund policy?"))


def told(
    hooks: GuardCrewHooks | None,
    *answers: Answer,
    kind: Callable[..., Any] = LLM,
    start: Callable[[Crew], str] = kickoff,
    respond: Callable[[SeenRequest], Answer] | None = None,
) -> dict[str, Any]:
    """Run a crew, and return what became of it."""
    ran: list[str] = []
    with StandInLLM.in_thread(respond=respond) as llm:
        llm.next(*answers)
        made = crew(llm, ran, kind)
        end: dict[str, Any]
        try:
            if hooks is None:
                end = {"said": start(made)}
            else:
                with hooks:
                    end = {"said": start(made)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            kinds = [one for one in (HookAborted, LoopDetectedError, DeniedError) if isinstance(error, one)]
            end = {"raised": type(error).__name__, "kinds": [one.__name__ for one in kinds], "text": str(error)}
            end["reason"] = getattr(error, "reason", "")
        bodies = [json.loads(seen.body) for seen in llm.requests]
    notes = [0, *(json.dumps(body["messages"]).count("[breakloop]") for body in bodies)]
    noted = [number for number in range(1, len(notes)) if notes[number] > notes[number - 1]]
    faults = hooks.guard.faults if hooks is not None else 0
    return {**end, "ran": len(ran), "asked": len(bodies), "noted": noted, "faults": faults, "bodies": bodies}


def main() -> None:
    healthy = [call_tool("search", {"query": f"page {number}"}, tool_id=f"call_{number}") for number in range(8)]
    used = GuardCrewHooks()
    outcomes = {
        "looping": told(used, *[SAME] * 20),
        "again": told(used, *[SAME] * 2, say("Done.")),
        "idle": told(None, *[SAME] * 20),
        "async": told(GuardCrewHooks(), *[SAME] * 20, start=kickoff_async),
        "alone": told(GuardCrewHooks(), *[SAME] * 20, start=agent_alone),
        "words": told(GuardCrewHooks(), *IN_WORDS * 10, kind=Plain),
        "parallel": told(GuardCrewHooks(), *[SAME.with_tool("search", {"query": "y"})] * 20),
        "healthy": told(GuardCrewHooks(), *healthy, say("Done.")),
        "unguarded": told(None, *healthy, say("Done.")),
        "returned": told(GuardCrewHooks(on_block="return"), *[SAME] * 7, say("I give up.")),
        "remote": told(GuardCrewHooks(Guard(url=URL, token="k")), *[SAME] * 20),
        "absent": told(GuardCrewHooks(Guard(url=ABSENT)), *[SAME] * 4, say("Done.")),
        "shadow": told(GuardCrewHooks(Guard(SHADOW)), *[SAME] * 4, say("Done.")),
        "landed": told(GuardCrewHooks(Guard(LAND)), respond=searches),
        "landed async": told(GuardCrewHooks(Guard(LAND)), respond=searches, start=kickoff_async),
        "landed by a budget": told(GuardCrewHooks(Guard(SPENT)), respond=searches_on),
        "landed alone": told(GuardCrewHooks(Guard(LAND)), respond=searches, start=agent_alone),
        "limited": told(GuardCrewHooks(Guard(FEW)), *healthy),
    }
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main()
