"""What users write, for type checkers: never run, only read (`tests/typing/test_user_side.py`)."""

from __future__ import annotations

from typing import Any, assert_type

import httpx
import httpx2
import openai
from agents import Agent, Runner, function_tool
from langchain.agents.middleware import AgentMiddleware, AgentState

import breakloop
from breakloop import Decision, DeniedError, Guard, LoopDetectedError, Run
from breakloop.anthropic import Anthropic, AsyncAnthropic
from breakloop.integrations.asgi import GuardASGIMiddleware
from breakloop.integrations.httpx import AsyncGuardTransport, GuardTransport
from breakloop.integrations.httpx2 import GuardTransport as GuardTransport2
from breakloop.integrations.langchain import GuardAgentMiddleware as LangChainMiddleware
from breakloop.integrations.mcp import GuardMCPMiddleware
from breakloop.integrations.openai_agents import GuardRunHooks
from breakloop.openai import AsyncOpenAI, OpenAI

guard = Guard("policy.yaml")
remote = Guard(url="http://127.0.0.1:8787", token="t")
inline = Guard({"bundle_version": 1, "policies": []})


@guard.tool
def search(query: str, limit: int = 3) -> str:
    return query * limit


@guard.tool(name="fetch", on_block="return")
async def fetch(url: str) -> bytes:
    return url.encode()


@guard.llm
def ask(messages: list[dict[str, str]], model: str = "m") -> str:
    return messages[-1]["content"] + model


def steps() -> None:
    with guard.run(agent="a", session="s", model="m") as run:
        decision = run.step([("search", {"q": "x"})], ["nothing"], text="Hm.", usage={"output_tokens": 3})
        assert_type(decision, Decision)
        assert_type(guard.enforce(decision), str)
        assert_type(decision.delay_seconds, float)
        assert_type(decision.retry_after, int | None)
        assert_type(run, Run)
        assert_type(run.before_tool("search", {"q": "x"}), Decision)
        assert_type(run.after_tool("search", {"q": "x"}, "nothing"), Decision)
    assert_type(guard.faults, int)
    guard.report(guard.check({"model": "m", "messages": []}), text="hi", usage={"output_tokens": 3})
    assert_type(guard.step(calls=[("f", "{}")], results=[1], session="s"), Decision)
    assert_type(search("x", limit=2), str)
    assert_type(ask([{"role": "user", "content": "hi"}]), str)


async def async_steps() -> None:
    async with guard.run() as run:
        assert_type(await run.astep(text="hm"), Decision)
        assert_type(await run.abefore_tool("search", {}), Decision)
        assert_type(await run.aafter_tool("search", {}, "nothing"), Decision)
    await guard.async_wait(await guard.acheck({"model": "m", "messages": []}))
    assert_type(await fetch("u"), bytes)
    assert_type(await guard.aenforce(await guard.acheck({"model": "m", "messages": []})), str)


def clients() -> None:
    with breakloop.agent("a", session="s"), OpenAI(api_key="k", agent="a") as client:
        original: openai.OpenAI = client
        try:
            answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
            assert_type(answer.choices[0].message.content, str | None)
        except LoopDetectedError as error:
            assert_type(error.hit_count, int)
            assert_type(error.cooldown_seconds, int)
            assert_type(error.fingerprint, str)
            assert_type(error.kind, str)
            assert_type(error.evidence, str)
            assert_type(error.message, str)
            assert_type(error.decision, Decision)
        except DeniedError as error:
            assert_type(error.reason, str)
            assert_type(error.retry_after, int | None)
    Anthropic(session="s").messages.with_raw_response.create(model="m", max_tokens=1, messages=[])
    _ = (AsyncOpenAI(agent="a"), AsyncAnthropic(session="s"), original)


def transports() -> None:
    httpx.Client(transport=GuardTransport(guard=guard)).close()
    httpx2.Client(transport=GuardTransport2(httpx2.HTTPTransport(), guard=guard)).close()
    _ = httpx.AsyncClient(transport=AsyncGuardTransport())


async def app(scope: object, receive: object, send: object) -> None: ...


_app = GuardASGIMiddleware(app, guard=guard)
_mcp = GuardMCPMiddleware(guard)


middleware = LangChainMiddleware(guard, agent="bot", on_block="raise", check_tools=True)
taken_by_create_agent: list[AgentMiddleware[AgentState[Any], Any, Any]] = [middleware]


def node(state: dict[str, int]) -> dict[str, int]:
    return state


assert_type(middleware.node(node)({}), dict[str, int])


@function_tool
def look_up(query: str) -> str:
    return query


async def run_agent() -> str:
    hooks = GuardRunHooks(guard, session="chat-1")
    agent = Agent(name="support", tools=hooks.tools(look_up))
    try:
        result = await Runner.run(agent, "hello", hooks=hooks)
    except LoopDetectedError as stop:
        assert_type(stop.hit_count, int)
        return stop.message
    return str(result.final_output)
