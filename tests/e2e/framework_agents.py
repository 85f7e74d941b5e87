"""Agents that their environment runs for test_frameworks.py: `python framework_agents.py URL NAME...`. Each uses its
framework as its own documentation shows it, with nothing but another base URL. Prints, as its last line, how each ended,
as JSON. The model in the test decides what an agent does, by the name of its model: `loop` or `work`.

Importing a framework takes seconds, so all of them share a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

URL = f"{sys.argv[1]}/v1"
repeated = 0  # how often the looping agents have run their tool
STEPS = 40  # more than any of these agents takes


def look(query: str) -> str:
    """Look something up.

    Args:
        query: what to look for
    """
    if query == "again":
        global repeated  # noqa: PLW0603 - frameworks call a copy of this function
        repeated += 1
        return "nothing"
    number = int(query.removeprefix("item-"))
    return f"{query}: {['oak', 'elm', 'fir', 'ash', 'yew'][number % 5]} {number * 7919 % 9973}"


def agent_framework(model: str, key: str) -> str:
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatClient

    client = OpenAIChatClient(model, api_key=key, base_url=URL)
    client.function_invocation_configuration["max_iterations"] = STEPS

    async def run() -> str:
        return str(await Agent(client, "You look things up.", tools=look).run("Find the tree."))

    return asyncio.run(run())


def agno(model: str, key: str) -> str:
    from agno.agent import Agent
    from agno.models.openai import OpenAIResponses

    agent = Agent(model=OpenAIResponses(id=model, api_key=key, base_url=URL), tools=[look], telemetry=False)
    outcome = agent.run("Find the tree.")
    if str(outcome.status).rpartition(".")[2].lower() != "completed":
        raise RuntimeError(outcome.content)
    return str(outcome.content)


def smolagents_model(model: str, key: str) -> Any:
    import smolagents

    return smolagents.OpenAIModel(model, api_base=URL, api_key=key)


def smolagents_code(model: str, key: str) -> str:
    import smolagents

    agent = smolagents.CodeAgent(
        tools=[smolagents.tool(look)], model=smolagents_model(model, key), max_steps=STEPS, verbosity_level=0
    )
    return str(agent.run("Find the tree."))


def smolagents_tools(model: str, key: str) -> str:
    import smolagents

    agent = smolagents.ToolCallingAgent(
        tools=[smolagents.tool(look)], model=smolagents_model(model, key), max_steps=STEPS, verbosity_level=0
    )
    return str(agent.run("Find the tree."))


def dspy_react(model: str, key: str) -> str:
    import dspy

    lm = dspy.LM(f"openai/{model}", api_base=URL, api_key=key, cache=False)
    with dspy.context(lm=lm):
        return str(dspy.ReAct("question -> answer", tools=[look], max_iters=STEPS)(question="Which tree?").answer)


def strands(model: str, key: str) -> str:
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    client = OpenAIModel(client_args={"base_url": URL, "api_key": key}, model_id=model)
    return str(Agent(model=client, tools=[tool(look)], callback_handler=None)("Find the tree.")).strip()


def semantic_kernel(model: str, key: str) -> str:
    from openai import AsyncOpenAI
    from semantic_kernel.agents import ChatCompletionAgent
    from semantic_kernel.connectors.ai import FunctionChoiceBehavior
    from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
    from semantic_kernel.functions import KernelPlugin, kernel_function

    service = OpenAIChatCompletion(ai_model_id=model, async_client=AsyncOpenAI(api_key=key, base_url=URL))
    plugin = KernelPlugin(name="tools", functions=[kernel_function(look)])
    choice = FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=STEPS)

    async def run() -> str:
        agent = ChatCompletionAgent(service=service, plugins=[plugin], function_choice_behavior=choice)
        return str(await agent.get_response(messages="Find the tree."))

    return asyncio.run(run())


def ag2(model: str, key: str) -> str:
    from ag2 import Agent
    from ag2.config import OpenAIConfig

    async def run() -> str:
        agent = Agent("support", config=OpenAIConfig(model, api_key=key, base_url=URL), tools=[look])
        return str((await agent.ask("Find the tree.")).body)

    return asyncio.run(run())


AGENTS: dict[str, Callable[[str, str], str]] = {
    "agent-framework": agent_framework,
    "agno": agno,
    "smolagents-code": smolagents_code,
    "smolagents-tools": smolagents_tools,
    "dspy": dspy_react,
    "strands": strands,
    "semantic-kernel": semantic_kernel,
    "ag2": ag2,
}


def ended(run: Callable[[str, str], str], model: str, key: str) -> str:
    try:
        return run(model, key)
    except Exception as error:  # noqa: BLE001 - each framework has errors of its own
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    os.environ["OPENAI_API_KEY"] = "none"
    outcomes = {}
    for name in sys.argv[2:]:
        repeated = 0
        looped = ended(AGENTS[name], "loop", f"sk-{name}-loop")
        outcomes[name] = {"loop": looped, "repeated": repeated}
        outcomes[name]["work"] = ended(AGENTS[name], "work", f"sk-{name}-work")
    sys.stdout.write(json.dumps(outcomes) + "\n")
