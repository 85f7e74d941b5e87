"""LangChain and LangGraph, the real packages, against the stand-in LLM: an agent that loops is told, then stopped; one
that works is left alone, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import SecretStr

from breakloop import Guard, LoopDetectedError
from breakloop.integrations.langchain import GuardAgentMiddleware
from breakloop.testing import Answer, StandInLLM, ThreadedLLM, call_tool, fail, say
from tests.e2e.served import refusing, serving
from tests.e2e.test_sdk_examples import script

pytestmark = pytest.mark.e2e

STUCK = call_tool("search", {"query": "refunds"})
ASKED: Any = {"messages": [{"role": "user", "content": "Find our refund policy."}]}
NOTE = "[breakloop] You repeat yourself: `search` returned the same"
SHADOW = {
    "bundle_version": 1,
    "policies": [
        {
            "id": "p",
            "spec": {"selector": {"pathPrefix": "/"}, "mode": "shadow", "loop_detection": {"similarity": "steps"}},
        }
    ],
    "defaults": {"loop_detection": "off"},
}


@tool
def search(query: str) -> str:
    """Look something up."""
    return "no results"


@tool
def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: it was night number {page * 7919}."


@pytest.fixture
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread(respond=lambda _: STUCK) as running:
        yield running


@pytest.fixture
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client() as client:
        yield client


def chat(llm: ThreadedLLM, http: httpx2.Client, **more: Any) -> ChatOpenAI:
    key, url = SecretStr("k"), f"{llm.url}/v1"
    return ChatOpenAI(
        model="gpt-5", base_url=url, api_key=key, http_client=http, use_responses_api=False, max_retries=0, **more
    )


def agent(llm: ThreadedLLM, http: httpx2.Client, *middleware: Any, **options: Any) -> Any:
    tools = [search, read]
    return create_agent(chat(llm, http), tools, system_prompt="You help.", middleware=middleware, **options)


def results(state: dict[str, Any]) -> list[str]:
    return [message.text for message in state["messages"] if isinstance(message, ToolMessage)]


def is_warned_then_stopped(llm: ThreadedLLM, state: dict[str, Any]) -> bool:
    """Told at the third and the fourth, stopped before the sixth request."""
    said = results(state)
    last = state["messages"][-1]
    assert [NOTE in one for one in said] == [False, False, True, True, False]
    assert [NOTE in str(sent.json()["messages"][-1]) for sent in llm.requests] == [False, False, False, True, True]
    assert isinstance(last, AIMessage)
    assert last.text.startswith("Blocked: `search` returned the same 10 bytes 5 times in a row.")
    assert last.response_metadata["breakloop"]["error"] == "recursive_loop_detected"
    assert len(llm.requests) == 5
    return True


def test_a_loop_is_told_then_stopped(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """In the tool's result, twice; then the agent ends with why (P-3, LD-4, LD-5)."""
    guarded = GuardAgentMiddleware()
    assert is_warned_then_stopped(llm, agent(llm, http, guarded).invoke(ASKED))
    assert guarded.guard.faults == 0


def test_async_and_streamed(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """The same in the other colour, and token by token (P-3)."""

    async def run() -> dict[str, Any]:
        async with httpx2.AsyncClient() as client:
            model = chat(llm, http, http_async_client=client, streaming=True)
            made = create_agent(model, [search], middleware=[GuardAgentMiddleware()])
            state: dict[str, Any] = {}
            async for mode, piece in made.astream(ASKED, stream_mode=["values", "messages"]):
                if mode == "values":
                    state = piece  # type: ignore[assignment]
            return state

    assert is_warned_then_stopped(llm, asyncio.run(run()))


def test_a_loop_is_raised_if_wished(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """A loop is raised if wished (P-1)."""
    with pytest.raises(LoopDetectedError) as caught:
        agent(llm, http, GuardAgentMiddleware(on_block="raise")).invoke(ASKED)
    assert (caught.value.kind, len(llm.requests)) == ("repeat", 5)


def test_a_model_that_takes_the_hint(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """It ends by itself, and nothing is blocked (LD-5)."""
    llm.llm.respond = lambda seen: say("There is none.") if NOTE in str(seen.json()) else STUCK
    state = agent(llm, http, GuardAgentMiddleware()).invoke(ASKED)
    assert (state["messages"][-1].text, len(llm.requests)) == ("There is none.", 4)


HEALTHY = [
    call_tool("read", {"page": 1}, text="I begin."),
    call_tool("read", {"page": 2}).with_tool("search", {"query": "night"}),
    *(call_tool("read", {"page": page}) for page in range(3, 12)),
    say("All read."),
]


def bodies(work: Callable[[ThreadedLLM], Any]) -> tuple[list[bytes], list[Any]]:
    with StandInLLM.in_thread() as llm:
        llm.next(*HEALTHY)
        state = work(llm)
        return [sent.body for sent in llm.requests], [(type(one), one.content) for one in state["messages"]]


def test_a_healthy_agent_is_untouched(http: httpx2.Client) -> None:
    """The same requests byte for byte, no more of them, and the same messages (P-3)."""
    plain = bodies(lambda llm: agent(llm, http).invoke(ASKED))
    guarded = bodies(lambda llm: agent(llm, http, GuardAgentMiddleware(check_tools=True)).invoke(ASKED))
    assert guarded == plain
    assert len(plain[0]) == len(HEALTHY)


def test_shadow(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """Would-be verdicts change nothing (E-1)."""
    llm.next(*([STUCK] * 8), say("Done."))
    state = agent(llm, http, GuardAgentMiddleware(Guard(SHADOW))).invoke(ASKED)
    assert (results(state), state["messages"][-1].text) == (["no results"] * 8, "Done.")


def test_many_people_who_say_the_same(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """Conversations of their own; ten greetings in a minute are no loop (LD-6)."""
    llm.next(*([say("Hello!")] * 10))
    made = agent(llm, http, GuardAgentMiddleware())
    said = [made.invoke({"messages": [("user", "Hi")]})["messages"][-1].text for _ in range(10)]
    assert said == ["Hello!"] * 10


def test_a_thread_is_one_conversation(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """The loop goes on in the next turn of a thread that nobody says anything new in; another thread is fresh (C-7)."""
    made = agent(llm, http, GuardAgentMiddleware(on_block="raise"), checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t-1"}}
    with pytest.raises(LoopDetectedError):
        made.invoke(ASKED, config)
    with pytest.raises(LoopDetectedError):  # from where it was: not even the model is asked
        made.invoke(None, config)
    assert len(llm.requests) == 5
    llm.next(say("Another matter."))
    assert (
        made.invoke({"messages": [("user", "And what of the weather in Oslo?")]}, config)["messages"][-1].text
        == "Another matter."
    )


def test_tries_that_failed_are_no_steps(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """A retry beside it is nobody's loop (LD-6)."""
    llm.next(*([fail(503)] * 6), say("At last."))
    retry = ModelRetryMiddleware(max_retries=8, initial_delay=0)
    state = agent(llm, http, retry, GuardAgentMiddleware()).invoke(ASKED)
    assert (state["messages"][-1].text, len(llm.requests)) == ("At last.", 7)


def test_against_a_decision_service(llm: ThreadedLLM, http: httpx2.Client, tmp_path: Any) -> None:
    """Told and stopped by `breakloop serve`; where it is not there, nobody is stopped (D-3, D-4)."""
    with serving(tmp_path, "--mode", "decision") as served, Guard(url=served.url, token="sk-canary-lc") as guard:
        state = agent(llm, http, GuardAgentMiddleware(guard)).invoke(ASKED)
        assert [NOTE.partition("`")[0] in one for one in results(state)] == [False, False, True, True, False]
        assert state["messages"][-1].response_metadata["breakloop"]["kind"] == "repeat"
        assert guard.faults == 0
    with refusing() as url, Guard(url=url) as guard:
        llm.next(*([STUCK] * 8), say("Done."))
        state = agent(llm, http, GuardAgentMiddleware(guard)).invoke(ASKED)
        assert (state["messages"][-1].text, guard.faults) == ("Done.", 9)


@pytest.mark.parametrize("on_block", ["end", "raise"])
def test_a_graph_of_ones_own(llm: ThreadedLLM, http: httpx2.Client, on_block: Any) -> None:
    """LangGraph; the node is guarded, and `tools_condition` ends by itself (P-3)."""
    guarded = GuardAgentMiddleware(on_block=on_block)
    bound = chat(llm, http).bind_tools([search])
    graph = StateGraph(MessagesState)
    graph.add_node("model", guarded.node(lambda state: {"messages": [bound.invoke(state["messages"])]}, model="gpt-5"))
    graph.add_node("tools", ToolNode([search], wrap_tool_call=guarded.wrap_tool_call))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    if on_block == "raise":
        with pytest.raises(LoopDetectedError):
            graph.compile().invoke(ASKED)
    else:
        state = graph.compile().invoke(ASKED)
        assert state["messages"][-1].text.startswith("Blocked: `search`")
    assert len(llm.requests) == 5
    assert [NOTE in str(sent.json()["messages"][-1]) for sent in llm.requests] == [False, False, False, True, True]


def test_a_tool_is_switched_off(llm: ThreadedLLM, http: httpx2.Client) -> None:
    """It does not run, and the model reads why (K-2)."""
    switch = {"scope_key": "tool:name", "scope_value": "search", "route": "/mcp", "reason": "being mended"}
    guard = Guard({"bundle_version": 1, "policies": [], "kill_switches": [switch]})
    answers: list[Answer] = [STUCK, say("I cannot search.")]
    llm.next(*answers)
    state = agent(llm, http, GuardAgentMiddleware(guard, check_tools=True)).invoke(ASKED)
    assert "being mended" in results(state)[0]
    assert state["messages"][-1].text == "I cannot search."


def test_the_example_of_a_graph() -> None:
    """The example beside the one that its page shows."""
    done = script("langchain/graph.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "requests: 5"
