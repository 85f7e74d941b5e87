"""A stuck OpenAI Agents SDK agent is warned, then stopped: no keys, no network. Run it with `python agent.py`."""

from __future__ import annotations

import asyncio

from agents import (
    Agent,
    AgentsException,
    OpenAIResponsesModel,
    Runner,
    ToolCallOutputItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from breakloop import LoopDetectedError
from breakloop.integrations.openai_agents import GuardRunHooks
from breakloop.testing import StandInLLM, call_tool

STUCK = call_tool("search", {"query": "refund policy"})  # the stand-in's response to every request


@function_tool
def search(query: str) -> str:
    """Look something up. It never finds anything."""
    return f"no results for {query!r}"


async def main() -> None:
    """Run the agent once; the SDK then loops by itself."""
    set_tracing_disabled(True)  # traces would be sent to OpenAI
    async with (
        StandInLLM(respond=lambda _request: STUCK) as llm,
        AsyncOpenAI(base_url=f"{llm.url}/v1", api_key="none") as client,
    ):
        hooks = GuardRunHooks()
        agent = Agent(name="support-bot", model=OpenAIResponsesModel("gpt-5", client), tools=hooks.tools(search))
        try:
            await Runner.run(agent, "What is our refund policy?", hooks=hooks, max_turns=100)
        except LoopDetectedError as stop:
            done = stop.run_data if isinstance(stop, AgentsException) else None
            for item in done.new_items if done else ():
                if isinstance(item, ToolCallOutputItem):
                    print(f"tool: {item.output}")
            print(f"stopped, kind {stop.kind}: {stop.message}")


if __name__ == "__main__":
    asyncio.run(main())
