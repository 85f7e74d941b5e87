"""Agents of frameworks with their integrations, which their environment runs for test_guarded_agents.py:
`python guarded_agents.py NAME ABSENT_URL`. Prints, as its last line, what became of each run, as JSON.

An agent is a function of the stand-in's URL, a guard (None: without breakloop) and whether to stream; it returns what the
agent said.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from breakloop import DeniedError, Guard, LoopDetectedError
from breakloop.testing import Answer, SeenRequest, StandInLLM, body, call_tool, limit_policy, say

Agent = Callable[[str, Guard | None, bool], str]

STEPS = 30
TASK = "Find our refund policy."
STEPS_ONLY: dict[str, Any] = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps"}},
}
LAND = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps", "ladder": {"block": "land"}}},
}
FEW = {"bundle_version": 1, "policies": [limit_policy(rate=0.001, burst=2)]}
DOLLAR = {"bundle_version": 1, "policies": [], "agents": {"*": {"max_tokens_per_tree": 300_000}}}
ran: list[Any] = []
framework = ""


def search(query: str) -> str:
    """Look something up.

    Args:
        query: what to look for
    """
    ran.append(query)
    return "no results"


def read(page: int) -> str:
    """Read a page.

    Args:
        page: its number
    """
    ran.append(page)
    return f"page {page}: it was night number {page * 7919}."


# -- agents


def google_adk(url: str, guard: Guard | None, stream: bool) -> str:
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.apps import App
    from google.adk.models import Gemini
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    from breakloop.integrations.google_adk import GuardPlugin

    async def run() -> str:
        model = Gemini(model="gemini-2.5-flash", base_url=url)
        agent = LlmAgent(name="support_bot", model=model, instruction="You help.", tools=[search, read])
        plugins = [] if guard is None else [GuardPlugin(guard)]
        runner = InMemoryRunner(app=App(name="support", root_agent=agent, plugins=plugins))
        session = await runner.session_service.create_session(app_name="support", user_id="u")
        asked = types.Content(role="user", parts=[types.Part(text=TASK)])
        config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
        last: Any = None
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=asked, run_config=config):
            last = event
        if last.error_code:
            raise RuntimeError(f"{last.error_code}: {last.error_message}")
        return "".join(part.text or "" for part in last.content.parts)

    return asyncio.run(run())


def agent_framework(url: str, guard: Guard | None, stream: bool) -> str:
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient

    from breakloop.integrations.agent_framework import GuardChatMiddleware

    async def run(client: Any) -> str:
        client.function_invocation_configuration["max_iterations"] = STEPS + 10
        middleware = [] if guard is None else [GuardChatMiddleware(guard)]
        agent = Agent(client, "You help.", name="support-bot", tools=[search, read], middleware=middleware)
        if stream:
            return "".join([update.text async for update in agent.run(TASK, stream=True)])
        return str(await agent.run(TASK))

    kind = OpenAIChatClient if _stored else OpenAIChatCompletionClient
    return asyncio.run(run(kind("gpt-5", api_key="k", base_url=f"{url}/v1")))


_stored = False


def agent_framework_stored(url: str, guard: Guard | None, stream: bool) -> str:
    """The provider keeps the history."""
    global _stored  # noqa: PLW0603
    _stored = True
    return agent_framework(url, guard, stream)


def strands(url: str, guard: Guard | None, stream: bool) -> str:
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    from breakloop.integrations.strands import GuardHooks

    model = OpenAIModel(client_args={"base_url": f"{url}/v1", "api_key": "k"}, model_id="gpt-5")
    hooks = [] if guard is None else [GuardHooks(guard)]
    agent = Agent(
        model=model, tools=[tool(search), tool(read)], system_prompt="You help.", hooks=hooks, callback_handler=None
    )
    if not stream:
        return str(agent(TASK)).strip()

    async def run() -> str:
        last: Any = None
        async for event in agent.stream_async(TASK):
            last = event.get("result", last)
        return str(last).strip()

    return asyncio.run(run())


def smolagents(url: str, guard: Guard | None, stream: bool, *, code: bool = False) -> str:
    from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

    from breakloop.integrations.smolagents import GuardSteps

    model = OpenAIModel("gpt-5", api_base=f"{url}/v1", api_key="k")
    callbacks = [] if guard is None else [GuardSteps(guard)]
    kind: Any = CodeAgent if code else ToolCallingAgent
    agent = kind(
        tools=[tool(search), tool(read)],
        model=model,
        step_callbacks=callbacks,
        max_steps=STEPS + 10,
        verbosity_level=0,
        stream_outputs=stream,
    )
    return str(agent.run(TASK))


def smolagents_code(url: str, guard: Guard | None, stream: bool) -> str:
    return smolagents(url, guard, stream, code=True)


def llama_index(url: str, guard: Guard | None, stream: bool) -> str:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai import OpenAI

    from breakloop.integrations.llama_index import guard_llm

    llm = OpenAI("gpt-4o", api_key="k", api_base=f"{url}/v1", max_retries=0)
    llm = llm if guard is None else guard_llm(llm, guard)
    agent = FunctionAgent(
        name="support-bot", llm=llm, tools=[search, read], system_prompt="You help.", streaming=stream
    )

    async def run() -> str:
        return str(await agent.run(TASK, max_iterations=STEPS + 10))

    return asyncio.run(run())


def agno(url: str, guard: Guard | None, stream: bool) -> str:
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat

    from breakloop.integrations.agno import guard_model

    model = OpenAIChat(id="gpt-5", api_key="k", base_url=f"{url}/v1")
    model = model if guard is None else guard_model(model, guard)
    agent = Agent(model=model, tools=[search, read], instructions="You help.", telemetry=False)
    outcome: Any = None
    if stream:

        async def last() -> Any:
            return [event async for event in agent.arun(TASK, stream=True, stream_events=True)][-1]

        outcome = asyncio.run(last())
        if "Error" in type(outcome).__name__:
            raise RuntimeError(outcome.content)
        return str(outcome.content)
    outcome = agent.run(TASK)
    if str(outcome.status).rpartition(".")[2].lower() != "completed":
        raise RuntimeError(outcome.content)
    return str(outcome.content)


def dspy(url: str, guard: Guard | None, stream: bool) -> str:
    import dspy as framework

    from breakloop.integrations.dspy import guard_lm

    lm = framework.LM("openai/gpt-5", api_base=f"{url}/v1", api_key="k", cache=False, num_retries=0)
    lm = lm if guard is None else guard_lm(lm, guard)
    with framework.context(lm=lm):
        program = framework.ReAct("question -> answer", tools=[search, read], max_iters=STEPS + 10)
        if stream:  # of a program, this is the other colour
            return str(asyncio.run(program.acall(question=TASK)).answer)
        return str(program(question=TASK).answer)


def autogen(url: str, guard: Guard | None, stream: bool) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    from breakloop.integrations.autogen import guard_client

    client = OpenAIChatCompletionClient(model="gpt-4o", api_key="k", base_url=f"{url}/v1", max_retries=0)
    client = client if guard is None else guard_client(client, guard)

    async def run() -> str:
        agent = AssistantAgent(
            "support",
            client,
            tools=[search, read],
            system_message="You help.",
            max_tool_iterations=STEPS + 10,
            model_client_stream=stream,
        )
        result = await agent.run(task=TASK)
        return str(result.messages[-1].content)

    return asyncio.run(run())


def haystack(url: str, guard: Guard | None, stream: bool) -> str:
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function

    from breakloop.integrations.haystack import guard_hooks

    async def ignore(_: Any) -> None:
        pass

    agent = Agent(
        chat_generator=OpenAIChatGenerator(model="gpt-5", api_base_url=f"{url}/v1", max_retries=0),
        tools=[create_tool_from_function(search), create_tool_from_function(read)],
        system_prompt="You help.",
        max_agent_steps=STEPS + 10,
        hooks=None if guard is None else guard_hooks(guard),
        streaming_callback=ignore if stream else None,
    )
    asked = [ChatMessage.from_user(TASK)]
    result = asyncio.run(agent.run_async(messages=asked)) if stream else agent.run(messages=asked)
    return str(result["last_message"].text)


def semantic_kernel(url: str, guard: Guard | None, stream: bool) -> str:
    from semantic_kernel.agents import ChatCompletionAgent
    from semantic_kernel.connectors.ai import FunctionChoiceBehavior
    from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion

    from breakloop.integrations.semantic_kernel import guard_service

    service = OpenAIChatCompletion(ai_model_id="gpt-5", async_client=openai_client(url))
    agent = ChatCompletionAgent(
        name="support",
        service=service if guard is None else guard_service(service, guard),
        instructions="You help.",
        plugins=[kernel_functions()],
        function_choice_behavior=FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=STEPS + 10),
    )

    async def run() -> str:
        if stream:
            return "".join([str(part.message) async for part in agent.invoke_stream(messages=TASK)])
        return str((await agent.get_response(messages=TASK)).message)

    return asyncio.run(run())


def semantic_kernel_filter(url: str, guard: Guard | None, stream: bool) -> str:
    """An agent without a chat service: the provider keeps the history, and a filter sees the functions."""
    from semantic_kernel import Kernel
    from semantic_kernel.agents import OpenAIResponsesAgent
    from semantic_kernel.connectors.ai import FunctionChoiceBehavior

    from breakloop.integrations.semantic_kernel import guard_filter

    kernel = Kernel()
    if guard is not None:
        kernel.add_filter("auto_function_invocation", guard_filter(guard))
    agent = OpenAIResponsesAgent(
        ai_model_id="gpt-5",
        client=openai_client(url),
        name="support",
        kernel=kernel,
        plugins=[kernel_functions()],
        function_choice_behavior=FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=STEPS + 10),
    )

    async def run() -> str:
        if stream:
            return "".join([str(part.message) async for part in agent.invoke_stream(messages=TASK)])
        return str((await agent.get_response(messages=TASK)).message)

    return asyncio.run(run())


def openai_client(url: str) -> Any:
    from openai import AsyncOpenAI

    return AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0)


def kernel_functions() -> Any:
    from semantic_kernel.functions import KernelPlugin, kernel_function

    return KernelPlugin(name="tools", functions=[kernel_function(search), kernel_function(read)])


def ag2(url: str, guard: Guard | None, stream: bool) -> str:
    from ag2 import Agent
    from ag2.config import OpenAIConfig

    from breakloop.integrations.ag2 import GuardMiddleware

    config = OpenAIConfig("gpt-5", api_key="k", base_url=f"{url}/v1", max_retries=0, streaming=stream)
    middleware = [] if guard is None else [GuardMiddleware(guard)]
    agent = Agent("support", "You help.", config=config, tools=[search, read], middleware=middleware)

    async def run() -> str:
        return str((await agent.ask(TASK)).body)

    return asyncio.run(run())


AGENTS: dict[str, Agent] = {
    "ag2": ag2,
    "semantic-kernel": semantic_kernel,
    "semantic-kernel-filter": semantic_kernel_filter,
    "dspy": dspy,
    "autogen": autogen,
    "haystack": haystack,
    "smolagents": smolagents,
    "smolagents-code": smolagents_code,
    "llama-index": llama_index,
    "agno": agno,
    "google-adk": google_adk,
    "agent-framework": agent_framework,
    "agent-framework-stored": agent_framework_stored,
    "strands": strands,
}


# -- what the model does


def called(name: str, argument: str, value: Any, tool_id: str = "") -> Answer:
    if framework == "smolagents-code":
        return say(f"Thought: I use {name}.\n<code>\nprint({name}({value!r}))\n</code>")
    if framework == "dspy":
        return fields(next_thought="I look.", next_tool_name=name, next_tool_args=json.dumps({argument: value}))
    return call_tool(tool_name(name), {argument: value}, tool_id=tool_id)


def tool_name(name: str) -> str:
    """As it is declared: a function of Semantic Kernel has the name of its plugin before its own."""
    return f"tools-{name}" if framework.startswith("semantic-kernel") else name


def fields(**values: str) -> Answer:
    """The fields that DSPy asks for."""
    parts = [f"[[ ## {name} ## ]]\n{value}" for name, value in {**values, "completed": ""}.items()]
    return say("\n\n".join(parts))


def answered(seen: SeenRequest, text: str) -> Answer:
    """The last answer, as the framework wants it."""
    if framework == "dspy":
        if b"next_tool_name" in seen.body:
            return fields(next_thought="I am done.", next_tool_name="finish", next_tool_args="{}")
        return fields(reasoning="All was seen.", answer=text)
    if framework == "smolagents":
        return call_tool("final_answer", {"answer": text})
    if framework == "smolagents-code":
        return say(f'Thought: I am done.\n<code>\nfinal_answer("{text}")\n</code>')
    return say(text)


def stuck(_: SeenRequest) -> Answer:
    return called("search", "query", "refunds")


def has_tools(seen: SeenRequest) -> bool:
    """Whether tools are declared and on: in the API of OpenAI, and of Gemini."""
    body = seen.json()
    off = body.get("tool_choice") == "none" or '"NONE"' in json.dumps(body.get("toolConfig"))
    return bool(body.get("tools")) and not off


def finishes(seen: SeenRequest) -> Answer:
    if framework == "dspy" and b"next_tool_name" not in seen.body:  # the answer is a request of its own
        return answered(seen, "There is none.")
    return answered(seen, "There is none.") if b"tools are switched off" in seen.body else stuck(seen)


def ignores(seen: SeenRequest) -> Answer:
    """A server that calls tools although they are off, as some do; the stand-in does not."""
    if (
        framework in {"dspy", "smolagents", "smolagents-code"}
        or has_tools(seen)
        or b"tools are switched off" not in seen.body
    ):
        return stuck(seen)
    arguments = {"query": "refunds"}
    function = {"name": tool_name("search"), "arguments": json.dumps(arguments)}
    if "contents" in seen.json():
        part = {"functionCall": {"name": "search", "args": arguments}}
        made: Any = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}]}
    elif "input" in seen.json():
        item = {"type": "function_call", "id": "fc_9", "call_id": "c9", "status": "completed", **function}
        made = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [item]}
        made |= {"parallel_tool_calls": True, "tool_choice": "none", "tools": []}
        if seen.json().get("stream"):
            added = {"type": "response.output_item.added", "output_index": 0, "item": item}
            delta = {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc_9"}
            written = {**delta, "delta": function["arguments"]}
            return events(added, written, {"type": "response.completed", "response": made})
    else:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {"tool_calls": [{"id": "c9", "type": "function", "function": function}]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        made = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        if seen.json().get("stream"):
            message["tool_calls"][0]["index"] = 0
            made |= {"object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}
            return events(made)
    return body(json.dumps(made).encode())


def events(*made: Any) -> Answer:
    text = "".join(f"data: {json.dumps({'sequence_number': number, **one})}\n\n" for number, one in enumerate(made))
    return body(f"{text}data: [DONE]\n\n".encode(), content_type="text/event-stream")


class Reader:
    """Reads page after page."""

    def __init__(self, tokens: int = 0) -> None:
        self.turn = 0
        self.tokens = tokens

    def __call__(self, seen: SeenRequest) -> Answer:
        self.turn += 1
        if self.turn > STEPS:
            return answered(seen, "All read.")
        answer = called("read", "page", self.turn, f"call_{self.turn}")
        return answer.with_usage(self.tokens // 2, self.tokens // 2) if self.tokens else answer


def told(
    agent: Agent, guard: Guard | None, respond: Callable[[SeenRequest], Answer], *, stream: bool = False
) -> dict[str, Any]:
    """Run an agent, and return what became of it."""
    ran.clear()
    end: dict[str, Any]
    with StandInLLM.in_thread(respond=respond) as llm:
        try:
            end = {"said": agent(llm.url, guard, stream)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            ours = next((one for one in chain(error) if isinstance(one, DeniedError)), None)
            end = {
                "raised": type(error).__name__,
                "text": str(error),
                "ours": ours is not None,
                "loop": isinstance(ours, LoopDetectedError),
                "reason": getattr(ours, "reason", ""),
            }
        requests = list(llm.requests)
    bodies = [seen.json() for seen in requests]
    notes = [0, *(json.dumps(body).count("[breakloop]") for body in bodies)]
    noted = [number for number in range(1, len(notes)) if notes[number] > 0]
    faults = 0 if guard is None else guard.faults
    return {
        **end,
        "ran": len(ran),
        "asked": len(bodies),
        "noted": noted,
        "off": [number for number, one in enumerate(requests, 1) if not has_tools(one)],
        "faults": faults,
        "bodies": bodies,
    }


def chain(error: BaseException | None) -> list[BaseException]:
    """An error, and those that it was raised from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def main(name: str, absent: str) -> None:
    global framework  # noqa: PLW0603 - what the model does depends on it
    framework = name
    agent = AGENTS[name]
    outcomes = {
        "looping": told(agent, Guard(STEPS_ONLY), stuck),
        "streamed": told(agent, Guard(STEPS_ONLY), stuck, stream=True),
        "healthy": told(agent, Guard(STEPS_ONLY), Reader()),
        "unguarded": told(agent, None, Reader()),
        "unguarded streamed": told(agent, None, lambda seen: answered(seen, "There is none."), stream=True),
        "landed": told(agent, Guard(LAND), finishes),
        "landed streamed": told(agent, Guard(LAND), finishes, stream=True),
        "ignored": told(agent, Guard(LAND), ignores),
        "ignored streamed": told(agent, Guard(LAND), ignores, stream=True),
        "limited": told(agent, Guard(FEW), Reader()),
        "spent": told(agent, Guard(DOLLAR), Reader(tokens=100_000)),
        "absent": told(agent, Guard(url=absent), Reader()),
    }
    sys.stdout.write("\n" + json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
