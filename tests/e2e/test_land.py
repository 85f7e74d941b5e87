"""Agents that loop end with an answer instead of an error: the real `openai`, `anthropic`, LangChain and Pydantic AI
packages, behind the real gateway and with the library, against the stand-in LLM, which calls the same tool as long as it
may. OpenAI Agents, CrewAI and Claude Code have files of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr
from pydantic_ai import Agent, models
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

import breakloop.anthropic
import breakloop.openai
from breakloop import Guard
from breakloop.integrations.httpx2 import GuardTransport
from breakloop.integrations.langchain import GuardAgentMiddleware
from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, body, call_tool, say
from tests.e2e.served import Served, serving

pytestmark = pytest.mark.e2e

POLICY: dict[str, Any] = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps", "ladder": {"block": "land"}}},
}
ANSWER = "I finish with what I have."  # of the stand-in, if tools are off
RESULT = "no results for refunds"
TASK = "Find our refund policy."
SCHEMA: Any = {"type": "object", "properties": {"query": {"type": "string"}}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "search", "parameters": SCHEMA}}
TOOL: Any = {"name": "search", "description": "Look something up.", "input_schema": SCHEMA}


@pytest.fixture
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread(respond=lambda _: call_tool("search", {"query": "refunds"})) as running:
        yield running


@pytest.fixture
def served(tmp_path: Path, llm: ThreadedLLM) -> Iterator[Served]:
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    upstreams = ("--upstream", f"openai={llm.url}", "--upstream", f"anthropic={llm.url}")
    with serving(tmp_path, *upstreams, "--policy", "policy.json") as running:
        yield running


def chat_agent(client: openai.OpenAI, *, stream: bool) -> str:
    """Run until the model makes no more calls; return what it said."""
    messages: list[Any] = [{"role": "user", "content": TASK}]
    for _ in range(20):
        asked: Any = {"model": "m", "messages": messages, "tools": [CHAT_TOOL]}
        if stream:
            with client.chat.completions.stream(**asked) as events:
                answer: Any = events.get_final_completion().choices[0].message
        else:
            answer = client.chat.completions.create(**asked).choices[0].message
        if not answer.tool_calls:
            return answer.content or ""
        calls = [one.model_dump(include={"id", "type", "function"}) for one in answer.tool_calls]
        calls = [{**one, "function": {key: one["function"][key] for key in ("name", "arguments")}} for one in calls]
        messages.append({"role": "assistant", "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": one["id"], "content": RESULT} for one in calls]
    return "it never ended"


def responses_agent(client: openai.OpenAI, *, stream: bool) -> str:
    items: list[Any] = [{"role": "user", "content": TASK}]
    declared: Any = [{"type": "function", "name": "search", "parameters": SCHEMA, "strict": False}]
    for _ in range(20):
        asked: Any = {"model": "m", "input": items, "tools": declared}
        if stream:
            with client.responses.stream(**asked) as events:
                answer: Any = events.get_final_response()
        else:
            answer = client.responses.create(**asked)
        calls = [one for one in answer.output if one.type == "function_call"]
        if not calls:
            return str(answer.output_text)
        items += [one.model_dump(include={"type", "call_id", "name", "arguments"}) for one in calls]
        items += [{"type": "function_call_output", "call_id": one.call_id, "output": RESULT} for one in calls]
    return "it never ended"


def anthropic_agent(client: anthropic.Anthropic, *, stream: bool) -> str:
    messages: list[Any] = [{"role": "user", "content": TASK}]
    for _ in range(20):
        asked: Any = {"model": "claude", "max_tokens": 99, "messages": messages, "tools": [TOOL]}
        if stream:
            with client.messages.stream(**asked) as events:
                answer: Any = events.get_final_message()
        else:
            answer = client.messages.create(**asked)
        uses = [one for one in answer.content if one.type == "tool_use"]
        if not uses:
            return str(answer.content[0].text)
        said = [{"type": "tool_use", "id": one.id, "name": one.name, "input": one.input} for one in uses]
        done = [{"type": "tool_result", "tool_use_id": one.id, "content": RESULT} for one in uses]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": done}]
    return "it never ended"


def is_landed(llm: ThreadedLLM, choice: object = "none") -> bool:
    """The sixth request, the first that would have been denied, has its tools switched off, and is the last."""
    sent = [seen.json() for seen in llm.requests]
    assert [one.get("tool_choice") for one in sent] == [None] * 5 + [choice]
    assert [len(one["tools"]) for one in sent] == [1] * 6
    assert ["tools are switched off" in json.dumps(one) for one in sent] == [False] * 5 + [True]
    return True


AGENTS: dict[str, tuple[Callable[..., str], object]] = {
    "chat": (chat_agent, "none"),
    "responses": (responses_agent, "none"),
    "anthropic": (anthropic_agent, {"type": "none"}),
}
EACH = pytest.mark.parametrize("name", AGENTS)


@EACH
@pytest.mark.parametrize("stream", [False, True])
def test_behind_the_gateway(served: Served, llm: ThreadedLLM, name: str, stream: bool) -> None:
    """The SDK sees an answer without calls; nothing was denied (LD-10)."""
    agent, choice = AGENTS[name]
    if name == "anthropic":
        with anthropic.Anthropic(base_url=served.url, api_key="k", max_retries=0) as client:
            assert agent(client, stream=stream) == ANSWER
    else:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as other:
            assert agent(other, stream=stream) == ANSWER
    assert is_landed(llm, choice)


@EACH
def test_with_the_drop_in_client(served: Served, llm: ThreadedLLM, name: str) -> None:
    """Its calls go to the gateway (LD-10)."""
    agent, choice = AGENTS[name]
    if name == "anthropic":
        with breakloop.anthropic.Anthropic(session="s", base_url=served.url, api_key="k", max_retries=0) as client:
            assert agent(client, stream=False) == ANSWER
    else:
        url = f"{served.url}/v1"
        with breakloop.openai.OpenAI(session="s", base_url=url, api_key="k", max_retries=0) as other:
            assert agent(other, stream=False) == ANSWER
    assert is_landed(llm, choice)


@EACH
@pytest.mark.parametrize("stream", [False, True])
def test_in_the_program_itself(llm: ThreadedLLM, name: str, stream: bool) -> None:
    """The transport of the library changes the request as the gateway does (LD-10)."""
    agent, choice = AGENTS[name]
    with httpx2.Client(transport=GuardTransport(guard=Guard(policy=POLICY))) as http:
        if name == "anthropic":
            client = anthropic.Anthropic(base_url=llm.url, api_key="k", max_retries=0, http_client=http)
            assert agent(client, stream=stream) == ANSWER
        else:
            other = openai.OpenAI(base_url=f"{llm.url}/v1", api_key="k", max_retries=0, http_client=http)
            assert agent(other, stream=stream) == ANSWER
    assert is_landed(llm, choice)


@tool
def search(query: str) -> str:
    """Look something up."""
    return f"no results for {query}"


ASKED: Any = {"messages": [{"role": "user", "content": TASK}]}


def chat_model(url: str, http: httpx2.Client, **more: Any) -> ChatOpenAI:
    key = SecretStr("k")
    return ChatOpenAI(
        model="gpt-5", base_url=url, api_key=key, http_client=http, use_responses_api=False, max_retries=0, **more
    )


@pytest.fixture
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client() as client:
        yield client


def last_said(state: dict[str, Any]) -> str:
    last = state["messages"][-1]
    assert isinstance(last, AIMessage)
    assert not last.tool_calls
    return str(last.text)


def test_langchain_behind_the_gateway(served: Served, llm: ThreadedLLM, http: httpx2.Client) -> None:
    """An agent that knows nothing of breakloop (LD-10)."""
    assert last_said(create_agent(chat_model(f"{served.url}/v1", http), [search]).invoke(ASKED)) == ANSWER
    assert is_landed(llm)


def test_langchain_with_the_middleware(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """The note is for this turn only: it is not kept in the conversation (LD-10, P-3)."""
    middleware = GuardAgentMiddleware(Guard(policy=POLICY))
    state = create_agent(chat_model(f"{llm.url}/v1", http), [search], middleware=[middleware]).invoke(ASKED)
    assert last_said(state) == ANSWER
    sent = [seen.json() for seen in llm.requests]
    assert [one.get("tool_choice") for one in sent] == [None] * 5 + ["none"]
    assert "tools are switched off" in str(sent[-1]["messages"][-1])
    assert "tools are switched off" not in str(state["messages"])
    assert middleware.guard.faults == 0


def test_langchain_async(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """In the other colour (LD-10, P-3)."""

    async def run() -> dict[str, Any]:
        async with httpx2.AsyncClient() as client:
            model = chat_model(f"{llm.url}/v1", http, http_async_client=client, streaming=True)
            middleware = GuardAgentMiddleware(Guard(policy=POLICY))
            state: dict[str, Any] = await create_agent(model, [search], middleware=[middleware]).ainvoke(ASKED)
            return state

    assert last_said(asyncio.run(run())) == ANSWER


def pydantic_model(name: str, url: str, http: httpx2.AsyncClient) -> models.Model:
    if name == "anthropic":
        return AnthropicModel("claude", provider=AnthropicProvider(api_key="k", base_url=url, http_client=http))
    kind = OpenAIChatModel if name == "chat" else OpenAIResponsesModel
    return kind("gpt-5", provider=OpenAIProvider(api_key="k", base_url=f"{url}/v1", http_client=http))


@EACH
@pytest.mark.parametrize("stream", [False, True])
def test_pydantic_ai_behind_the_gateway(served: Served, llm: ThreadedLLM, name: str, stream: bool) -> None:
    """An agent that knows nothing of breakloop, by its base URL alone (LD-10)."""

    def search(query: str) -> str:
        """Look something up."""
        return f"no results for {query}"

    async def run() -> str:
        async with httpx2.AsyncClient() as http:
            agent = Agent(pydantic_model(name, served.url, http), tools=[search])
            if not stream:
                return (await agent.run(TASK)).output
            async with agent.run_stream(TASK) as result:
                return await result.get_output()

    assert asyncio.run(run()) == ANSWER
    choice = AGENTS[name][1]
    assert [one.json()["tool_choice"] == choice for one in llm.requests] == [False] * 5 + [True]


def ignores_choices(seen: SeenRequest) -> Answer:
    """A server that calls tools although they are off, as some do."""
    answer = call_tool("search", {"query": "refunds"})
    if seen.json().get("tool_choice") != "none":
        return answer
    function = {"name": "search", "arguments": '{"query":"refunds"}'}
    calls = [{"id": "c9", "type": "function", "function": function}]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, "tool_calls": calls},
        "finish_reason": "tool_calls",
    }
    content = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return body(json.dumps(content).encode())


def test_langchain_ends_whatever_the_server_does(http: httpx2.Client) -> None:
    """Calls that were not allowed are removed, and the agent ends (LD-10, P-3)."""
    with StandInLLM.in_thread(respond=ignores_choices) as llm:
        middleware = GuardAgentMiddleware(Guard(policy=POLICY))
        state = create_agent(chat_model(f"{llm.url}/v1", http), [search], middleware=[middleware]).invoke(ASKED)
        assert last_said(state).startswith("You repeat yourself: `search` returned the same")
        assert len(llm.requests) == 6


class Finding(BaseModel):
    """What was found."""

    summary: str


def structured(seen: SeenRequest) -> Answer:
    names = [one["function"]["name"] for one in seen.json().get("tools", ())]
    if names == ["Finding"]:
        return call_tool("Finding", {"summary": "nothing"})
    return call_tool("search", {"query": "refunds"}) if names else say("?")


def test_langchain_ends_with_a_structured_answer(http: httpx2.Client) -> None:
    """The tool that carries the answer is the only one left (LD-10, P-3)."""
    with StandInLLM.in_thread(respond=structured) as llm:
        middleware = GuardAgentMiddleware(Guard(policy=POLICY))
        model = chat_model(f"{llm.url}/v1", http)
        state = create_agent(model, [search], middleware=[middleware], response_format=ToolStrategy(Finding)).invoke(
            ASKED
        )
        assert state["structured_response"] == Finding(summary="nothing")


def test_without_an_answer_it_is_denied_in_the_end(served: Served, llm: ThreadedLLM) -> None:
    """A client that goes on as if it had got a call is landed twice, and then denied (LD-10)."""
    messages: list[Any] = [{"role": "user", "content": TASK}]
    actions = []
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as client:
        ask: Any = client.chat.completions.with_raw_response.create
        for number in range(7):
            actions.append(ask(model="m", messages=messages, tools=[CHAT_TOOL]).headers.get("x-breakloop-action"))
            function = {"name": "search", "arguments": '{"query":"refunds"}'}
            calls = [{"id": f"c{number}", "type": "function", "function": function}]
            messages.append({"role": "assistant", "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": RESULT})
        with pytest.raises(openai.RateLimitError):
            ask(model="m", messages=messages, tools=[CHAT_TOOL])
    assert actions == [None] * 5 + ["land"] * 2
    assert len(llm.requests) == 7


BUDGET: dict[str, Any] = {
    "name": "b",
    "limit_keys": [],
    "algorithm": "cost_based",
    "algorithm_config": {
        "budget": 100,
        "period": "1d",
        "fixed_cost": 10,
        "staged_actions": [
            {"threshold_percent": 80, "action": "steer"},
            {"threshold_percent": 95, "action": "land"},
            {"threshold_percent": 100, "action": "reject"},
        ],
    },
}


@EACH
def test_a_budget_lands(tmp_path: Path, name: str) -> None:
    """A long run that does not loop is told at 80 %, and ends with an answer at 95 % (LD-10, L-2)."""
    selector = {"selector": {"pathPrefix": "/"}, "rules": [BUDGET]}
    policy = {**POLICY, "policies": [{"id": "p", "spec": selector}], "defaults": {"loop_detection": "off"}}
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    agent, choice = AGENTS[name]
    with StandInLLM.in_thread(respond=lambda _: call_tool("search", {"query": "refunds"})) as llm:
        upstreams = ("--upstream", f"openai={llm.url}", "--upstream", f"anthropic={llm.url}")
        with serving(tmp_path, *upstreams, "--policy", "policy.json") as served:
            if name == "anthropic":
                with anthropic.Anthropic(base_url=served.url, api_key="k", max_retries=0) as client:
                    assert agent(client, stream=False) == ANSWER
            else:
                with openai.OpenAI(base_url=f"{served.url}/v1", api_key="k", max_retries=0) as other:
                    assert agent(other, stream=False) == ANSWER
        sent = [seen.json() for seen in llm.requests]
    assert [one.get("tool_choice") for one in sent] == [None] * 9 + [choice]
    assert ["80 % of the budget" in json.dumps(one) for one in sent] == [False] * 7 + [True] * 2 + [False]
