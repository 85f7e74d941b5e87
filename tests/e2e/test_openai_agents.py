"""The OpenAI Agents SDK, the real package, against the stand-in LLM: an agent that loops is told, then stopped with an
error of the SDK's; one that works is left alone, byte for byte."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    AgentsException,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIProvider,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    ToolCallOutputItem,
    ToolOutputGuardrailTripwireTriggered,
    function_tool,
)
from openai import AsyncOpenAI

from breakloop import Guard, LoopDetectedError
from breakloop.integrations import openai_agents
from breakloop.integrations.openai_agents import GuardRunHooks
from breakloop.testing import StandInLLM, ThreadedLLM, call_tool, say
from tests.e2e.served import refusing, serving
from tests.e2e.test_land import BUDGET
from tests.e2e.test_langchain import SHADOW

pytestmark = pytest.mark.e2e

STUCK = call_tool("search", {"query": "refunds"})
NOTE = "[breakloop] You repeat yourself: `search` returned the same"
QUIET = RunConfig(tracing_disabled=True)
TOLD = [False, False, True, True, False]


@function_tool
def search(query: str) -> str:
    """Look something up."""
    return "no results"


@function_tool
def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: it was night number {page * 7919}."


@pytest.fixture
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread(respond=lambda _: STUCK) as running:
        yield running


async def run(
    llm: ThreadedLLM, hooks: GuardRunHooks | None, *, tools: Any = None, kind: Any = OpenAIResponsesModel, **more: Any
) -> Any:
    """Run an agent; returns its final output."""
    given = more.pop("asked", "Find our refund policy.")
    streamed = more.pop("streamed", False)
    async with AsyncOpenAI(base_url=f"{llm.url}/v1", api_key="k", max_retries=0) as client:
        own: Any = tools or (hooks.tools(search, read) if hooks else [search, read])
        agent = Agent[Any](name="support", instructions="You help.", model=kind("gpt-5", client), tools=own)
        options = {"hooks": hooks, "run_config": QUIET, "max_turns": 40, **more}
        if not streamed:
            return (await Runner.run(agent, given, **options)).final_output
        result = Runner.run_streamed(agent, given, **options)
        async for _ in result.stream_events():
            pass
        return result.final_output


def outputs(error: LoopDetectedError) -> list[str]:
    assert isinstance(error, AgentsException)
    assert error.run_data is not None
    return [str(item.output) for item in error.run_data.new_items if isinstance(item, ToolCallOutputItem)]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
def test_a_loop_is_told_then_stopped(llm: ThreadedLLM, kind: Any, *, streamed: bool) -> None:
    """In the tool's result, twice; then an error that is the SDK's and ours, with what was done (P-3, LD-4, LD-5)."""
    hooks = GuardRunHooks()
    with pytest.raises(LoopDetectedError) as caught:
        asyncio.run(run(llm, hooks, kind=kind, streamed=streamed))
    assert isinstance(caught.value, AgentsException)
    assert (caught.value.kind, caught.value.hit_count > 0, hooks.guard.faults) == ("repeat", True, 0)
    assert caught.value.message.startswith("Blocked: `search` returned the same 10 bytes 5 times in a row.")
    assert [NOTE in output for output in outputs(caught.value)] == TOLD
    assert [NOTE in sent.body.decode() for sent in llm.requests] == [False, False, False, True, True]
    assert len(llm.requests) == 5


def test_without_guardrails_it_is_stopped_all_the_same(llm: ThreadedLLM) -> None:
    """Hooks alone, for tools that have none (P-3)."""
    with pytest.raises(LoopDetectedError) as caught:
        asyncio.run(run(llm, GuardRunHooks(), tools=[search]))
    assert [NOTE in output for output in outputs(caught.value)] == [False] * 5


def test_guardrails_alone(llm: ThreadedLLM) -> None:
    """Without hooks, the guardrail's own wire is tripped (P-3)."""
    tools = GuardRunHooks().tools(search)
    with pytest.raises(ToolOutputGuardrailTripwireTriggered) as caught:
        asyncio.run(run(llm, None, tools=tools))
    assert caught.value.output.output_info["error"] == "recursive_loop_detected"
    assert len(llm.requests) == 5


def test_a_model_that_takes_the_hint(llm: ThreadedLLM) -> None:
    """It ends by itself, and nothing is blocked (LD-5)."""
    llm.llm.respond = lambda seen: say("There is none.") if NOTE in seen.body.decode() else STUCK
    assert asyncio.run(run(llm, GuardRunHooks())) == "There is none."
    assert len(llm.requests) == 4


HEALTHY = [
    call_tool("read", {"page": 1}, text="I begin."),
    call_tool("read", {"page": 2}).with_tool("search", {"query": "night"}),
    *(call_tool("read", {"page": page}) for page in range(3, 12)),
    say("All read."),
]


def bodies(hooks: GuardRunHooks | None) -> list[bytes]:
    with StandInLLM.in_thread() as llm:
        llm.next(*HEALTHY)
        assert asyncio.run(run(llm, hooks)) == "All read."
        return [sent.body for sent in llm.requests]


def test_a_healthy_agent_is_untouched() -> None:
    """The same requests byte for byte, and no more of them (P-3)."""
    plain = bodies(None)
    assert bodies(GuardRunHooks(check_tools=True)) == plain
    assert len(plain) == len(HEALTHY)


def test_calls_at_once_are_one_step(llm: ThreadedLLM) -> None:
    """A round of two that comes again five times; the note stands in it once (C16)."""
    llm.llm.respond = lambda _: STUCK.with_tool("search", {"query": "returns"})
    with pytest.raises(LoopDetectedError) as caught:
        asyncio.run(run(llm, GuardRunHooks()))
    told = [one.find("[breakloop]") >= 0 for one in outputs(caught.value)]
    assert [told[at : at + 2].count(True) for at in range(0, 10, 2)] == [0, 0, 1, 1, 0]


def test_shadow(llm: ThreadedLLM) -> None:
    """Would-be verdicts change nothing (E-1)."""
    llm.next(*([STUCK] * 8), say("Done."))
    assert asyncio.run(run(llm, GuardRunHooks(Guard(SHADOW)))) == "Done."
    assert b"[breakloop]" not in b"".join(sent.body for sent in llm.requests)


def test_a_named_session_goes_on_in_the_next_run(llm: ThreadedLLM) -> None:
    """With a session of the SDK's the history is sent again; a run that begins where the last was stopped, too
    (C-7)."""
    memory = SQLiteSession("chat-1")
    with pytest.raises(LoopDetectedError):
        asyncio.run(run(llm, GuardRunHooks(session="chat-1"), session=memory))
    llm.next(say("Another matter."))
    hooks = GuardRunHooks(session="chat-1")
    assert asyncio.run(run(llm, hooks, session=memory, asked="And the weather in Oslo?")) == "Another matter."
    memory.close()


def test_an_agent_that_is_a_tool(llm: ThreadedLLM) -> None:
    """Its tools are guarded, its run has no hooks: the inner loop is stopped (P-3)."""
    hooks = GuardRunHooks()

    async def work() -> Any:
        async with AsyncOpenAI(base_url=f"{llm.url}/v1", api_key="k") as client:
            model = OpenAIResponsesModel("gpt-5", client)
            inner = Agent[Any](name="inner", model=model, tools=hooks.tools(search))
            helper = inner.as_tool("helper", "Helps.", run_config=QUIET, failure_error_function=None)
            outer = Agent[Any](name="outer", model=model, tools=[helper])
            llm.next(call_tool("helper", {"input": "find it"}))
            return await Runner.run(outer, "Go.", hooks=hooks, run_config=QUIET)

    with pytest.raises(AgentsException):
        asyncio.run(work())
    assert len(llm.requests) == 6


def test_against_a_decision_service(llm: ThreadedLLM, tmp_path: Any) -> None:
    """Told and stopped by `breakloop serve`; where it is not there, nobody is stopped (D-3, D-4)."""
    with serving(tmp_path, "--mode", "decision") as served, Guard(url=served.url, token="sk-canary-oa") as guard:
        with pytest.raises(LoopDetectedError) as caught:
            asyncio.run(run(llm, GuardRunHooks(guard)))
        assert (caught.value.kind, guard.faults) == ("repeat", 0)
        assert ["[breakloop]" in output for output in outputs(caught.value)] == TOLD
    with refusing() as url, Guard(url=url) as guard:
        llm.next(*([STUCK] * 8), say("Done."))
        assert asyncio.run(run(llm, GuardRunHooks(guard))) == "Done."
        assert guard.faults > 0


def test_a_tool_is_switched_off(llm: ThreadedLLM) -> None:
    """It does not run, and the model reads why (K-2)."""
    switch = {"scope_key": "tool:name", "scope_value": "search", "route": "/mcp", "reason": "being mended"}
    guard = Guard({"bundle_version": 1, "policies": [], "kill_switches": [switch]})
    llm.next(STUCK, say("I cannot search."))
    assert asyncio.run(run(llm, GuardRunHooks(guard, check_tools=True))) == "I cannot search."
    assert "being mended" in llm.requests[1].body.decode()


LAND: dict[str, Any] = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps", "ladder": {"block": "land"}}},
}


QUOTED = {"finish": 'Say "none".'}


def choices(llm: ThreadedLLM) -> list[Any]:
    return [sent.json().get("tool_choice") for sent in llm.requests]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
@pytest.mark.parametrize("noted", [False, True])
def test_it_lands_with_an_answer(llm: ThreadedLLM, kind: Any, *, noted: bool, streamed: bool) -> None:
    """The request after the fifth result has its tools switched off and the note in it once, with a guardrail in the
    result and else behind it (LD-10, P-3)."""
    hooks = GuardRunHooks(Guard(LAND))
    tools = hooks.tools(search) if noted else [search]
    answer = asyncio.run(run(llm, hooks, kind=lambda *given: hooks.model(kind(*given)), tools=tools, streamed=streamed))
    assert (answer, hooks.guard.faults) == ("I finish with what I have.", 0)
    assert choices(llm)[:5] == [choices(llm)[0]] * 5
    assert choices(llm)[5:] == ["none"]
    assert [len(sent.json()["tools"]) for sent in llm.requests] == [1] * 6
    assert [sent.body.decode().count("tools are switched off") for sent in llm.requests] == [0] * 5 + [1]


def test_the_note_stands_there_once(llm: ThreadedLLM) -> None:
    """In whichever result came last, and with characters that JSON escapes (LD-10)."""
    llm.llm.respond = lambda _: STUCK.with_tool("read", {"page": 1})
    bundle = {
        **LAND,
        "defaults": {"loop_detection": {**LAND["defaults"]["loop_detection"], "advice": {"repeat": QUOTED}}},
    }
    hooks = GuardRunHooks(Guard(bundle))
    made: Any = lambda *given: hooks.model(OpenAIResponsesModel(*given))  # noqa: E731 - as a class of models
    assert asyncio.run(run(llm, hooks, kind=made)) == "I finish with what I have."
    assert llm.requests[-1].body.decode().count("tools are switched off") == 1
    assert r"Say \"none\"." in llm.requests[-1].body.decode()


def test_a_model_that_is_named(llm: ThreadedLLM) -> None:
    """The provider of the run wraps what it is asked for; without it, the run ends as before (LD-10, P-3)."""
    hooks = GuardRunHooks(Guard(LAND))

    async def work(*, wrapped: bool) -> Any:
        async with AsyncOpenAI(base_url=f"{llm.url}/v1", api_key="k", max_retries=0) as client:
            provider: Any = OpenAIProvider(openai_client=client)
            config = RunConfig(tracing_disabled=True, model_provider=hooks.models(provider) if wrapped else provider)
            agent = Agent[Any](name="support", model="gpt-5", tools=hooks.tools(search))
            return (await Runner.run(agent, "Go.", hooks=hooks, run_config=config)).final_output

    assert asyncio.run(work(wrapped=True)) == "I finish with what I have."
    with pytest.raises(LoopDetectedError):
        asyncio.run(work(wrapped=False))


def test_the_arguments_of_a_model() -> None:
    """The SDK passes them by place when it streams, and by name when it does not."""
    for method in (Model.get_response, Model.stream_response):
        names = [
            one.name for one in inspect.signature(method).parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        assert names == ["self", *openai_agents._ARGUMENTS]


def test_a_budget_lands(llm: ThreadedLLM) -> None:
    """A run that does not loop is told at 80 %, and ends with an answer at 95 % (LD-10, L-2)."""
    selector = {"selector": {"pathPrefix": "/"}, "rules": [BUDGET]}
    policy = {**LAND, "policies": [{"id": "p", "spec": selector}], "defaults": {"loop_detection": "off"}}
    hooks = GuardRunHooks(Guard(policy))
    made: Any = lambda *given: hooks.model(OpenAIResponsesModel(*given))  # noqa: E731 - as a class of models
    assert asyncio.run(run(llm, hooks, kind=made)) == "I finish with what I have."
    assert choices(llm)[8:] == [choices(llm)[0], "none"]
    assert ["80 % of the budget" in sent.body.decode() for sent in llm.requests] == [False] * 7 + [True] * 3
