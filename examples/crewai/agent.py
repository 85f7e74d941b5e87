"""A crew whose agent repeats itself is warned, then stopped. The model is a stand-in: no keys needed."""

from __future__ import annotations

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from breakloop import LoopDetectedError
from breakloop.integrations.crewai import GuardCrewHooks
from breakloop.testing import StandInLLM, call_tool


@tool("search")
def search(query: str) -> str:
    """Look something up. It never finds anything, so a naive agent never stops."""
    return f"no results for {query!r}"


def main() -> None:
    """Run one agent on one task, with a model that ignores warnings."""
    with StandInLLM.in_thread() as llm:
        for _ in range(25):
            llm.next(call_tool("search", {"query": "refund policy"}))
        model = LLM(model="openai/stand-in", base_url=f"{llm.url}/v1", api_key="none")
        agent = Agent(role="Support", goal="Help people", backstory="You are patient.", tools=[search], llm=model)
        task = Task(description="What is our refund policy?", expected_output="One sentence.", agent=agent)
        with GuardCrewHooks():
            try:
                print(Crew(agents=[agent], tasks=[task]).kickoff())
            except LoopDetectedError as stop:
                print(f"stopped after {len(llm.requests)} requests, kind {stop.kind}: {stop.message}")
        told = [one for one in llm.requests if b"[breakloop]" in one.body]
        print(f"{len(told)} requests carried a note for the model")


if __name__ == "__main__":
    main()
