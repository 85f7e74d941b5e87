"""Hooks and guardrails for the OpenAI Agents SDK: what is asked, when, and what the model and the program are told.
`tests/e2e/test_openai_agents.py` has agents."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from agents import (
    Agent,
    AgentsException,
    FunctionTool,
    ModelResponse,
    RunContextWrapper,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolOutputGuardrailData,
    ToolOutputImage,
    Usage,
    WebSearchTool,
    function_tool,
)
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

import breakloop
from breakloop import Guard
from breakloop.integrations.openai_agents import GuardRunHooks
from breakloop.model.call import NO_ANSWER, ToolCall
from breakloop.model.call import Usage as Used
from breakloop.model.decision import Decision
from tests.unit.sdk.backends import DENIED, NOTE, WARNED, FailingBackend, ScriptedBackend

T = TypeVar("T")
AGENT = Agent[Any](name="support", model="gpt-5")
USER: Any = {"role": "user", "content": "find it"}
BLOCKED = "Blocked: the same again. (recursive_loop_detected)"


@function_tool
def search(query: str) -> str:
    """Look something up."""
    return "no results"


def made(number: int = 1, query: str = "x") -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        type="function_call", name="search", arguments=f'{{"query":"{query}"}}', call_id=f"c{number}"
    )


def response(*calls: ResponseFunctionToolCall, text: str = "") -> ModelResponse:
    usage = Usage(
        input_tokens=20,
        output_tokens=3,
        input_tokens_details=InputTokensDetails(cached_tokens=8, cache_write_tokens=0),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=1),
    )
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[part])
    return ModelResponse([*([said] if text else []), *calls], usage, "resp_1")


class Run:
    """One run, as the SDK tells of it."""

    def __init__(self, hooks: GuardRunHooks) -> None:
        self.hooks = hooks
        self.context: RunContextWrapper[Any] = RunContextWrapper(None)
        self.items: list[Any] = [USER]

    async def ask(self, *items: Any) -> None:
        self.items.extend(items)
        await self.hooks.on_llm_start(self.context, AGENT, "Help.", list(self.items))

    async def answer(self, *calls: ResponseFunctionToolCall, text: str = "") -> None:
        said = response(*calls, text=text)
        self.items.extend(said.to_input_items())
        await self.hooks.on_llm_end(self.context, AGENT, said)

    def tool(self, call: ResponseFunctionToolCall) -> ToolContext[Any]:
        return ToolContext.from_agent_context(self.context, call.call_id, call, AGENT)

    async def ran(self, call: ResponseFunctionToolCall, output: Any = "no results") -> ToolGuardrailFunctionOutput:
        data = ToolOutputGuardrailData(self.tool(call), AGENT, output)
        told = await self.hooks.tool_output.run(data)
        shown = told.behavior["message"] if told.behavior["type"] == "reject_content" else output
        self.items.append({"type": "function_call_output", "call_id": call.call_id, "output": shown})
        return told

    async def end(self) -> None:
        await self.hooks.on_agent_end(self.context, AGENT, "done")


def do(work: Awaitable[T]) -> T:
    async def waiting() -> T:
        return await work

    return asyncio.run(waiting())


def started(backend: ScriptedBackend, **options: Any) -> Run:
    return Run(GuardRunHooks(Guard(_backend=backend), **options))


def test_a_request_is_asked_about_as_its_api_has_it() -> None:
    """Instructions and input; the run is the session, its first agent the agent; then how it ended (P-3, C-7, C-8)."""
    backend = ScriptedBackend()
    run = started(backend)

    async def work() -> None:
        await run.ask()
        await run.answer(made(), text="I look.")
        await run.hooks.on_llm_start(run.context, Agent[Any](name="other"), None, run.items)

    do(work())
    assert backend.calls[0].path == "/v1/responses"
    assert backend.bodies[0] == {"model": "gpt-5", "instructions": "Help.", "input": [USER]}
    assert backend.bodies[1]["model"] == "unknown"
    assert [item["type"] for item in backend.bodies[1]["input"][1:]] == ["message", "function_call"]
    agent, session = backend.named(0)
    assert (agent, session.startswith("run-"), backend.named(1)) == ("support", True, (agent, session))
    answer = backend.answers[0]
    assert (answer.status, answer.text, answer.calls) == (200, "I look.", (ToolCall("search", '{"query":"x"}'),))
    assert answer.usage == Used(20, 3, 8, 0, 1)
    other = Run(run.hooks)
    do(other.ask())
    assert other.hooks is run.hooks
    assert backend.named()[1] != session


def test_names() -> None:
    """Given ones first, then those of the block around (C-7)."""
    backend = ScriptedBackend()
    with breakloop.agent("outer", session="s-1"):
        do(started(backend).ask())
        do(started(backend, agent="own", session="t-2").ask())
    assert [backend.named(0), backend.named(1)] == [("outer", "s-1"), ("own", "t-2")]


def test_a_round_is_judged_once_with_its_last_result() -> None:
    """Calls at once are one step; the note stands in the result that came last; nothing is asked twice (P-3, C16)."""
    backend = ScriptedBackend(Decision(request_id="r"), WARNED)
    run = started(backend)
    one, two = made(1, "a"), made(2, "b")

    async def work() -> list[str]:
        await run.ask()
        await run.answer(one, two)
        told = [await run.ran(two, "nothing"), await run.ran(one)]
        await run.ask()
        await run.answer(text="done")
        await run.end()
        return [each.behavior["type"] for each in told]

    assert do(work()) == ["allow", "reject_content"]
    assert len(backend.calls) == 2
    items = backend.bodies[1]["input"]
    assert [item.get("call_id") for item in items] == [None, "c1", "c2", "c1", "c2"]
    assert [item["output"] for item in items[3:]] == ["no results", "nothing"]
    assert run.items[4]["output"] == f"no results\n\n{NOTE}"
    assert [answer.text for answer in backend.answers] == ["", "done"]


def test_a_denied_round_stops_the_next_request() -> None:
    """The result stays as it is; the error is the SDK's and ours, and travels (P-3)."""
    run = started(ScriptedBackend(Decision(request_id="r"), DENIED))

    async def work() -> ToolGuardrailFunctionOutput:
        await run.ask()
        await run.answer(made())
        return await run.ran(made())

    assert do(work()).behavior["type"] == "allow"
    with pytest.raises(breakloop.LoopDetectedError) as caught:
        do(run.ask())
    assert isinstance(caught.value, AgentsException)
    assert isinstance(caught.value, breakloop.LoopDetectedError)
    assert (str(caught.value), caught.value.kind, caught.value.run_data) == (BLOCKED, "repeat", None)
    assert isinstance(copy.copy(caught.value), breakloop.LoopDetectedError)
    limit = Decision(allowed=False, reason="rate_limited", status=429, message="Too many.")
    with pytest.raises(breakloop.DeniedError, match="Too many"):
        do(started(ScriptedBackend(limit)).ask())


def test_what_no_guardrail_saw_is_judged_with_the_request() -> None:
    """A handoff beside a tool, or tools without guardrails (P-3)."""
    backend = ScriptedBackend()
    run = started(backend)
    handoff = ResponseFunctionToolCall(type="function_call", name="transfer", arguments="{}", call_id="h")

    async def work() -> None:
        await run.ask()
        await run.answer(made(), handoff)
        await run.ran(made())
        await run.ask({"type": "function_call_output", "call_id": "h", "output": "ok"})

    do(work())
    assert len(backend.calls) == 2
    assert len(backend.bodies[1]["input"]) == 5


def test_a_conversation_that_the_server_keeps() -> None:
    """Where only results are sent, they are judged with the calls that they belong to (D-6)."""
    backend = ScriptedBackend()
    run = started(backend)

    async def work() -> None:
        await run.ask()
        await run.answer(made())
        run.items = [{"type": "function_call_output", "call_id": "c1", "output": "no results"}]
        await run.ask()

    do(work())
    assert [item["type"] for item in backend.bodies[1]["input"]] == ["function_call", "function_call_output"]
    assert backend.bodies[1]["input"][0]["name"] == "search"


def test_a_request_that_was_never_answered() -> None:
    """The next one settles it as failed. One that a tool's result made unnecessary is settled as done (LD-6)."""
    backend = ScriptedBackend()
    run = started(backend)

    async def work() -> None:
        await run.ask()
        await run.ask()
        await run.answer(made())
        await run.ran(made())
        await run.end()
        await run.end()

    do(work())
    assert [answer.status for answer in backend.answers] == [NO_ANSWER, 200, 200]


def test_other_results_than_texts_stay_as_they_are() -> None:
    """An image is not replaced by a note; what the SDK would write as a text is one (P-3)."""

    async def work(output: Any) -> tuple[str, Any]:
        run = started(ScriptedBackend(Decision(request_id="r"), WARNED))
        await run.ask()
        await run.answer(made())
        told = await run.ran(made(), output)
        return told.behavior["type"], run.items[-1]["output"]

    image = ToolOutputImage(image_url="data:,")
    assert do(work(image)) == ("allow", image)
    assert do(work({"n": 1})) == ("reject_content", f"{{'n': 1}}\n\n{NOTE}")


def test_guardrails_without_hooks() -> None:
    """Each call is a step by itself; a denial trips the wire, and tells why (P-3)."""
    backend = ScriptedBackend(WARNED, DENIED)
    run = started(backend)
    told = [do(run.ran(made(1))), do(run.ran(made(2)))]
    assert [each.behavior["type"] for each in told] == ["reject_content", "raise_exception"]
    assert told[1].output_info["kind"] == "repeat"
    assert backend.named()[1].endswith("/alone")
    assert backend.bodies[1]["messages"][-1]["content"] == "no results"


def test_tools_are_judged_before_if_wished() -> None:
    """As an MCP server's would be; a denial is what the model reads instead of a result (K-2)."""
    backend = ScriptedBackend()
    run = started(backend, session="s", check_tools=True)
    data = ToolInputGuardrailData(run.tool(made()), AGENT)
    assert do(run.hooks.tool_input.run(data)).behavior["type"] == "allow"
    assert backend.bodies[0]["params"] == {"name": "search", "arguments": '{"query":"x"}'}
    assert backend.named() == ("support", "s/tools")
    do(run.ran(made()))
    assert [answer.text for answer in backend.answers[:1]] == ["no results"]
    backend.decisions.append(DENIED)
    told = do(run.hooks.tool_input.run(data))
    assert told.behavior == {"type": "reject_content", "message": BLOCKED}


@pytest.mark.parametrize("check_tools", [False, True])
def test_tools_get_their_guardrails(*, check_tools: bool) -> None:
    """Copies; what is no function tool stays as it is (P-3)."""
    hooks, hosted = GuardRunHooks(check_tools=check_tools), WebSearchTool()
    guarded, same = hooks.tools(search, hosted)
    assert same is hosted
    assert isinstance(guarded, FunctionTool)
    assert guarded.tool_output_guardrails == [hooks.tool_output]
    assert guarded.tool_input_guardrails == ([hooks.tool_input] if check_tools else None)
    assert search.tool_output_guardrails is None
    again = hooks.tools(guarded)[0]
    assert isinstance(again, FunctionTool)
    assert len(again.tool_output_guardrails or []) == 2


def test_faults_of_ours_are_not_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """In deciding, in reading a request, an answer, a result (LD-7)."""

    def broken(*_: Any) -> Any:
        raise KeyError("canary")

    async def work(run: Run) -> ToolGuardrailFunctionOutput:
        await run.ask()
        await run.answer(made())
        return await run.ran(made())

    run = started(FailingBackend())
    assert do(work(run)).behavior["type"] == "allow"
    assert run.hooks.guard.faults == 2
    for name, faults in (("chat_call", 1), ("_answer", 1), ("_result", 1)):
        with monkeypatch.context() as patched:
            run = started(ScriptedBackend())
            if name == "chat_call":
                patched.setattr("breakloop.integrations.openai_agents._model", broken)
            else:
                patched.setattr(f"breakloop.integrations.openai_agents.{name}", broken)
            assert do(work(run)).behavior["type"] == "allow"
            assert run.hooks.guard.faults == faults, name


def test_what_is_kept_is_bounded() -> None:
    """Of the last runs only, and of those that ended, nothing that was said (Y-2)."""
    hooks = GuardRunHooks(Guard(_backend=ScriptedBackend()))

    async def work() -> None:
        for _ in range(300):
            run = Run(hooks)
            await run.ask()
            await run.answer(made())
            await run.end()

    do(work())
    assert len(hooks._runs) == 256
    assert {(len(known.items), len(known.results)) for known in hooks._runs.values()} == {(0, 0)}
