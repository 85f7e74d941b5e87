"""The LangChain middleware: what is asked, where the note goes, and what stands for a denial. `tests/e2e/test_langchain.py`
has agents."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents.middleware import AgentState, ExtendedModelResponse, ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command

import breakloop
from breakloop import Guard, LoopDetectedError
from breakloop.integrations.langchain import GuardAgentMiddleware
from breakloop.model.call import NO_ANSWER, Usage
from breakloop.model.call import ToolCall as Called
from breakloop.sdk.context import current_agent
from tests.unit.sdk.backends import DENIED, NOTE, WARNED, FailingBackend, ScriptedBackend

MODEL = FakeListChatModel(responses=["unused"])
BLOCKED = "Blocked: the same again. (recursive_loop_detected)"
USED = {
    "input_tokens": 20,
    "output_tokens": 3,
    "total_tokens": 23,
    "input_token_details": {"cache_read": 8},
    "output_token_details": {"reasoning": 1},
}


class Named:
    """As much of a chat model as is looked at."""

    model_name = "gpt-5"


@tool
def search(query: str) -> str:
    """Look something up."""
    return "no results"


def called(number: int = 1) -> ToolCall:
    return ToolCall(name="search", args={"query": "x"}, id=f"c{number}")


def history() -> list[AnyMessage]:
    return [
        HumanMessage("find it", id="first"),
        AIMessage("I look.", tool_calls=[called()], id="second"),
        ToolMessage("no results", tool_call_id="c1", id="third"),
    ]


def request(messages: list[AnyMessage] | None = None, **more: Any) -> ModelRequest[Any]:
    said = history() if messages is None else messages
    state: AgentState[Any] = {"messages": said}
    return ModelRequest(model=MODEL, messages=said, state=state, **more)


def ask(
    breakloop_: GuardAgentMiddleware, asked: ModelRequest[Any], *, is_async: bool, said: Any = "done"
) -> tuple[Any, list[Any]]:
    sent: list[ModelRequest[Any]] = []

    def answer(one: ModelRequest[Any]) -> ModelResponse[Any]:
        sent.append(one)
        if isinstance(said, Exception):
            raise said
        return ModelResponse([said if isinstance(said, AIMessage) else AIMessage(said)])

    async def later(one: ModelRequest[Any]) -> ModelResponse[Any]:
        return answer(one)

    if is_async:
        return asyncio.run(breakloop_.awrap_model_call(asked, later)), sent
    return breakloop_.wrap_model_call(asked, answer), sent


both = pytest.mark.parametrize("is_async", [False, True])


def test_a_request_is_asked_about_in_the_words_of_a_chat_api() -> None:
    """The whole conversation; calls by name, arguments and id; an error says that it is one (P-3, C-8)."""
    backend = ScriptedBackend()
    messages = [
        *history()[:2],
        ToolMessage("not there", tool_call_id="c1", status="error"),
        ChatMessage(content="hm", role="critic"),
    ]
    asked = request(messages, system_message=SystemMessage("Help."), tools=[search, {"name": "raw"}])
    object.__setattr__(asked, "model", Named())
    ask(GuardAgentMiddleware(Guard(_backend=backend), agent="bot"), asked, is_async=False)
    assert (backend.calls[0].method, backend.calls[0].path) == ("POST", "/v1/chat/completions")
    function = {"name": "search", "arguments": '{"query":"x"}'}
    assert backend.bodies == [
        {
            "model": "gpt-5",
            "messages": [
                {"role": "system", "content": "Help."},
                {"role": "user", "content": "find it"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [{"id": "c1", "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "Error: not there"},
                {"role": "critic", "content": "hm"},
            ],
            "tools": [{"type": "function", "function": {"name": name}} for name in ("search", "raw")],
        }
    ]
    assert backend.named() == ("bot", "first")


def test_a_tool_without_a_name_may_be_any() -> None:
    """What the provider brings itself is not listed, so nothing is `unknown_tool` (LD-4)."""
    backend = ScriptedBackend()
    ask(GuardAgentMiddleware(Guard(_backend=backend)), request(tools=[search, {"type": "web_search"}]), is_async=False)
    assert "tools" not in backend.bodies[0]


@both
def test_a_healthy_request_goes_out_as_it_is(*, is_async: bool) -> None:
    """The very request, and the very answer; settled with what the model said, called and used (P-3)."""
    backend, asked = ScriptedBackend(), request()
    said = AIMessage("I look again.", tool_calls=[called(2)], usage_metadata=USED)
    reply, sent = ask(GuardAgentMiddleware(Guard(_backend=backend)), asked, is_async=is_async, said=said)
    assert sent == [asked]
    assert sent[0] is asked
    assert isinstance(reply, ModelResponse)
    assert reply.result[0] is said
    answer = backend.answers[0]
    assert (answer.status, answer.text, answer.calls) == (200, "I look again.", (Called("search", '{"query":"x"}'),))
    assert answer.usage == Usage(20, 3, 8, 0, 1)


@both
def test_the_note_stands_in_the_tools_result_and_stays_there(*, is_async: bool) -> None:
    """Read now, and in the conversation from now on; the messages before are the very same (LD-5)."""
    asked = request()
    reply, sent = ask(GuardAgentMiddleware(Guard(_backend=ScriptedBackend(WARNED))), asked, is_async=is_async)
    assert sent[0].messages[:2] == asked.messages[:2]
    assert sent[0].messages[2].content == f"no results\n\n{NOTE}"
    assert asked.messages[2].content == "no results"
    assert isinstance(reply, ExtendedModelResponse)
    assert reply.command == Command(update={"messages": [sent[0].messages[2]]})
    assert sent[0].messages[2].id == "third"


@pytest.mark.parametrize(
    ("last", "noted"),
    [
        (HumanMessage("go on", id="u"), f"go on\n\n{NOTE}"),
        (
            HumanMessage([{"type": "text", "text": "look"}], id="u"),
            [{"type": "text", "text": "look"}, {"type": "text", "text": NOTE}],
        ),
        (ToolMessage("", tool_call_id="c1"), NOTE),
        (AIMessage("and so"), "and so"),
    ],
)
def test_where_else_a_note_goes(last: AnyMessage, noted: Any) -> None:
    """After a person's words for this request only; never into the model's own (LD-5)."""
    reply, sent = ask(
        GuardAgentMiddleware(Guard(_backend=ScriptedBackend(WARNED))), request([*history(), last]), is_async=False
    )
    assert sent[0].messages[-1].content == noted
    assert isinstance(reply, ModelResponse)


def test_a_result_that_another_middleware_made_is_not_written_back() -> None:
    """What is not in the state is not ours to put there (P-3)."""
    asked = request()
    other = asked.override(messages=[*asked.messages[:-1], ToolMessage("short", tool_call_id="c1", id="else")])
    reply, _ = ask(GuardAgentMiddleware(Guard(_backend=ScriptedBackend(WARNED))), other, is_async=False)
    assert isinstance(reply, ModelResponse)


@both
def test_a_denial_is_the_last_message(*, is_async: bool) -> None:
    """No tool is called in it, so the agent ends; programs find the facts beside it (P-3)."""
    backend = ScriptedBackend(DENIED)
    reply, sent = ask(GuardAgentMiddleware(Guard(_backend=backend)), request(), is_async=is_async)
    assert (sent, backend.answers) == ([], [])
    assert isinstance(reply, AIMessage)
    assert (reply.content, reply.tool_calls) == (BLOCKED, [])
    told = reply.response_metadata["breakloop"]
    assert (told["error"], told["kind"], told["hit_count"]) == ("recursive_loop_detected", "repeat", 5)


@both
def test_a_denial_is_raised_if_wished(*, is_async: bool) -> None:
    """A denial is raised if wished (P-1, P-3)."""
    guarded = GuardAgentMiddleware(Guard(_backend=ScriptedBackend(DENIED)), on_block="raise")
    with pytest.raises(LoopDetectedError) as caught:
        ask(guarded, request(), is_async=is_async)
    assert caught.value.kind == "repeat"
    with pytest.raises(ValueError, match="on_block"):
        GuardAgentMiddleware(on_block="return")  # type: ignore[arg-type]


@both
def test_a_model_that_fails_is_settled_as_failed(*, is_async: bool) -> None:
    """A try that failed is no step (LD-6)."""
    backend = ScriptedBackend()
    with pytest.raises(TimeoutError):
        ask(GuardAgentMiddleware(Guard(_backend=backend)), request(), is_async=is_async, said=TimeoutError())
    assert [answer.status for answer in backend.answers] == [NO_ANSWER]


def test_a_fault_of_ours_is_not_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in deciding nor in reading what is asked (LD-7)."""
    guard = Guard(_backend=FailingBackend())
    reply, sent = ask(GuardAgentMiddleware(guard), request(), is_async=False)
    assert (reply.result[0].content, len(sent), guard.faults) == ("done", 1, 1)
    monkeypatch.setattr("breakloop.integrations.langchain._chat_message", lambda _: 1 / 0)
    backend = ScriptedBackend(DENIED)
    guard = Guard(_backend=backend)
    reply, sent = ask(GuardAgentMiddleware(guard), request(), is_async=False)
    assert (reply.result[0].content, len(sent), guard.faults, backend.calls) == ("done", 1, 1, [])
    assert GuardAgentMiddleware(guard).node(lambda _: {"messages": ["said"]})({"messages": history()}) == {
        "messages": ["said"]
    }


def test_names_of_the_block_around_go_before_the_frameworks() -> None:
    """And what the middleware was given before both (C-7)."""
    backend = ScriptedBackend()
    with breakloop.agent("outer", session="s-1"):
        ask(GuardAgentMiddleware(Guard(_backend=backend)), request(), is_async=False)
        ask(GuardAgentMiddleware(Guard(_backend=backend), agent="own"), request(), is_async=False)
    ask(GuardAgentMiddleware(Guard(_backend=backend)), request([HumanMessage("no id")]), is_async=False)
    assert [backend.named(number) for number in range(3)] == [("outer", "s-1"), ("own", "s-1"), ("", "")]


# -- tools


def use(guarded: GuardAgentMiddleware, *, is_async: bool, ran: Any = None) -> tuple[Any, list[str]]:
    asked = ToolCallRequest(called(), search, {"messages": history()}, None)  # type: ignore[arg-type]
    seen: list[str] = []

    def run(_: ToolCallRequest) -> Any:
        seen.append(current_agent().session)
        if isinstance(ran, Exception):
            raise ran
        return ran or ToolMessage("no results", tool_call_id="c1")

    async def later(one: ToolCallRequest) -> Any:
        return run(one)

    if is_async:
        return asyncio.run(guarded.awrap_tool_call(asked, later)), seen
    return guarded.wrap_tool_call(asked, run), seen


@both
def test_what_a_tool_does_belongs_to_the_conversation(*, is_async: bool) -> None:
    """And nobody is asked about the call itself (P-3)."""
    backend, made = ScriptedBackend(DENIED), ToolMessage("x", tool_call_id="c1")
    ran, seen = use(GuardAgentMiddleware(Guard(_backend=backend)), is_async=is_async, ran=made)
    assert ran is made
    assert (seen, backend.calls) == (["first"], [])


@both
def test_tools_are_judged_before_if_wished(*, is_async: bool) -> None:
    """As an MCP server's would be, in a session of their own; a denial is the tool's result (K-2, P-3)."""
    backend = ScriptedBackend()
    guarded = GuardAgentMiddleware(Guard(_backend=backend), check_tools=True)
    ran, seen = use(guarded, is_async=is_async)
    assert (ran.content, seen, backend.named()) == ("no results", ["first"], ("", "first/tools"))
    assert (backend.bodies[0]["method"], backend.bodies[0]["params"]) == (
        "tools/call",
        {"name": "search", "arguments": {"query": "x"}},
    )
    assert [answer.text for answer in backend.answers] == ["no results"]
    backend.decisions.append(DENIED)
    ran, seen = use(guarded, is_async=is_async)
    assert (ran.content, ran.status, ran.tool_call_id, ran.name, seen) == (BLOCKED, "error", "c1", "search", [])
    with pytest.raises(LookupError):
        use(guarded, is_async=is_async, ran=LookupError("gone"))
    assert backend.answers[-1].text == "Error: LookupError: gone"
    command: Command[Any] = Command(update={})
    assert use(guarded, is_async=is_async, ran=command)[0] is command


def test_a_kill_switch_for_a_tool() -> None:
    """`tool:name`, before it runs (K-2)."""
    switch = {"scope_key": "tool:name", "scope_value": "search", "reason": "being mended"}
    guarded = GuardAgentMiddleware(
        Guard({"bundle_version": 1, "policies": [], "kill_switches": [switch]}), check_tools=True
    )
    ran, seen = use(guarded, is_async=False)
    assert (ran.status, seen) == ("error", [])
    assert "being mended" in ran.content


# -- nodes of LangGraph


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def graph(node: Any) -> Any:
    made = StateGraph(State)
    made.add_node("model", node)
    made.add_edge(START, "model")
    made.add_edge("model", END)
    return made.compile()


@both
def test_a_node_that_asks_the_model(*, is_async: bool) -> None:
    """Told what the model should read, for this once; settled with what it returns; config is passed on (P-3)."""
    backend = ScriptedBackend(WARNED)
    guarded, seen = GuardAgentMiddleware(Guard(_backend=backend), agent="bot"), []

    def answer(state: State, config: RunnableConfig) -> dict[str, Any]:
        seen.append((state["messages"][-1].content, config["configurable"]["thread_id"]))
        return {"messages": [AIMessage("done", usage_metadata=USED)]}

    async def later(state: State, config: RunnableConfig) -> dict[str, Any]:
        return answer(state, config)

    made = graph(guarded.node(later if is_async else answer, model="gpt-5"))
    given, config = {"messages": history()}, {"configurable": {"thread_id": "t-9"}}
    state = asyncio.run(made.ainvoke(given, config)) if is_async else made.invoke(given, config)
    assert seen == [(f"no results\n\n{NOTE}", "t-9")]
    assert [message.content for message in state["messages"]] == ["find it", "I look.", "no results", "done"]
    assert (backend.named(), backend.bodies[0]["model"]) == (("bot", "t-9"), "gpt-5")
    assert [(answer.text, answer.usage) for answer in backend.answers] == [("done", Usage(20, 3, 8, 0, 1))]


@both
def test_a_node_is_stopped(*, is_async: bool) -> None:
    """With a message that calls no tool, so that `tools_condition` ends; or by raising (P-3)."""

    async def later(state: State) -> State:
        raise AssertionError

    node: Any = later if is_async else lambda _: 1 / 0
    guarded = GuardAgentMiddleware(Guard(_backend=ScriptedBackend(DENIED)))
    made = graph(guarded.node(node))
    state = asyncio.run(made.ainvoke({"messages": history()})) if is_async else made.invoke({"messages": history()})
    assert (state["messages"][-1].content, len(state["messages"])) == (BLOCKED, 4)
    raising = GuardAgentMiddleware(Guard(_backend=ScriptedBackend(DENIED)), on_block="raise").node(node)
    with pytest.raises(LoopDetectedError):
        asyncio.run(raising({"messages": []})) if is_async else raising({"messages": []})


@pytest.mark.parametrize(
    "said",
    [
        AIMessage("done"),
        [AIMessage("done")],
        {"talk": [AIMessage("done")]},
        Command(update={"talk": AIMessage("done")}),
    ],
)
def test_what_a_node_may_return(said: Any) -> None:
    """All forms that LangGraph knows; the conversation may have another name, and hold plain values (P-3)."""
    backend = ScriptedBackend(WARNED)

    def answer(_: Any) -> Any:
        return said

    node = GuardAgentMiddleware(Guard(_backend=backend)).node(answer, key="talk")
    assert node({"talk": [("user", "hello"), {"role": "assistant", "content": "hi"}]}) is said
    assert [message["role"] for message in backend.bodies[0]["messages"]] == ["user", "assistant"]
    assert backend.answers[0].text == "done"


def test_a_node_that_fails_and_one_that_says_nothing() -> None:
    """A state that is no mapping gets no note, and is judged all the same (LD-6)."""
    backend = ScriptedBackend(WARNED)
    guarded = GuardAgentMiddleware(Guard(_backend=backend))
    assert guarded.node(lambda state: {"other": len(state.messages)})(type("S", (), {"messages": history()})()) == {
        "other": 3
    }
    assert (backend.answers[0].status, backend.answers[0].text) == (200, "")
    with pytest.raises(ZeroDivisionError):
        guarded.node(lambda _: 1 / 0)({"messages": history()})
    assert backend.answers[1].status == NO_ANSWER
