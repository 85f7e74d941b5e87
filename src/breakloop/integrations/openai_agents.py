"""OpenAI Agents SDK (SPEC P-3): run hooks that judge each request to the model and stop the run, and tool guardrails
that let the model recover first.

A round of tools is judged when the last of its results is there, so that the note can stand in that result; a request
whose round was judged is not judged again. What no guardrail saw (handoffs, hosted tools) is judged with the request.
"""

from __future__ import annotations

import copy
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from agents import (
    Agent,
    AgentsException,
    FunctionTool,
    ItemHelpers,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    Tool,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
    ToolOutputGuardrail,
    ToolOutputGuardrailData,
)

from breakloop import exceptions
from breakloop.model.call import NO_ANSWER, Answer, marked
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import (
    STEPS_ONLY,
    AgentContext,
    answer_of,
    arguments_text,
    chat_call,
    current,
    facts,
    tool_call,
)
from breakloop.sdk.guard import Guard
from breakloop.sdk.run import Run

_PATH: Final = "/v1/responses"
_RUNS_KEPT: Final = 256
_CALL: Final = "function_call"

Item = Mapping[str, Any]


# The SDK adds `run_data` only to an `AgentsException`, and turns any other error of an agent that is a tool into a
# `UserError`. Programs catch `breakloop.DeniedError` and `breakloop.LoopDetectedError`, which these are.
class _DeniedError(exceptions.DeniedError, AgentsException):
    def __init__(self, decision: Decision, text: str = "") -> None:
        AgentsException.__init__(self)
        exceptions.DeniedError.__init__(self, decision, text)


class _LoopDetectedError(exceptions.LoopDetectedError, AgentsException):
    def __init__(self, decision: Decision, text: str = "") -> None:
        AgentsException.__init__(self)
        exceptions.LoopDetectedError.__init__(self, decision, text)


class _RunState:
    """What is known of a run: its names, the request under way, and the round of tool calls that follows from it."""

    def __init__(self, names: AgentContext, usage: object) -> None:
        self.names = names
        self.usage = usage  # by which the run is known; kept, so that nobody else gets its id
        self.decision: Decision | None = None  # of the request under way, or of the next where a round was judged
        self.alone: Run | None = None  # of tools that nobody announced: no hooks there, or an agent that is a tool
        self.asked: dict[str, Decision] = {}  # about tool calls, before they were made
        self.forget()

    def forget(self) -> None:
        """Let go of what was said."""
        self.head: dict[str, Any] = {}
        self.items: list[Item] = []  # of the last request, and what the model answered
        self.waiting: dict[str, Item | None] = {}  # tool calls of that answer, and their results
        self.is_judged = False

    def begin(self, head: dict[str, Any], items: list[Item]) -> None:
        """A request goes out."""
        self.forget()
        self.head, self.items = head, items

    def called(self, made: list[Item]) -> None:
        """The model has answered."""
        self.items = [*self.items, *made]
        self.waiting = {str(item.get("call_id")): None for item in made if item.get("type") == _CALL}

    def body(self, items: list[Item]) -> bytes:
        """The request to the model as its API has it."""
        return arguments_text({**self.head, "input": items}).encode("utf-8", "replace")

    def whole(self, items: list[Item]) -> list[Item]:
        """A request's input with the calls that its results belong to, where the server keeps the conversation."""
        there = {item.get("call_id") for item in items if item.get("type") == _CALL}
        results = {item.get("call_id") for item in items if item.get("type") == f"{_CALL}_output"} - there
        return [*(item for item in self.items if item.get("type") == _CALL and item["call_id"] in results), *items]


class GuardRunHooks(RunHooks[Any]):
    """`Runner.run(agent, "...", hooks=GuardRunHooks())`. A run is one conversation, unless `session` names it; its
    agent is the one that it begins with. `tools` gives tools their guardrails, by which the model is told;
    `judge_tools` asks before each call, too, so that kill switches and limits on `tool:name` hold before it is made."""

    def __init__(
        self, guard: Guard | None = None, *, agent: str = "", session: str = "", judge_tools: bool = False
    ) -> None:
        self.guard = guard or Guard(STEPS_ONLY)
        self._own = AgentContext(agent, session)
        self._judges_tools = judge_tools
        self._runs: OrderedDict[int, _RunState] = OrderedDict()
        self.tool_input: ToolInputGuardrail[Any] = ToolInputGuardrail(self._before_tool, "breakloop")
        self.tool_output: ToolOutputGuardrail[Any] = ToolOutputGuardrail(self._after_tool, "breakloop")

    def tools(self, *tools: Tool) -> list[Tool]:
        """Return copies of function tools with guardrails: `Agent(tools=hooks.tools(search, read))`."""
        return [self._guarded(tool) if isinstance(tool, FunctionTool) else tool for tool in tools]

    # -- the model

    async def on_llm_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], system_prompt: str | None, input_items: Any
    ) -> None:
        """Judge a request, or take what was decided when its tools were through; raises for a denial."""
        known = self._known(context, agent)
        last, known.decision = known.decision, None
        if last is not None and not known.is_judged:  # nothing came back: a try that failed
            await self.guard.asettle(last, Answer(NO_ANSWER))
            last = None
        try:
            items = known.whole(list(input_items))
            known.begin({"model": _model(agent), "instructions": system_prompt or ""}, items)
            call = chat_call(known.body(items), known.names, _PATH)
        except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not stop an agent
            self.guard.fault(error)
            return
        decision = last or await self.guard.ajudge(call)
        if not decision.allowed:
            known.forget()
            raise (_LoopDetectedError if decision.is_loop else _DeniedError)(decision)
        await self.guard.await_(decision)
        known.decision = decision

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        """Tell how it was answered, and wait for the tools that the model wants."""
        known = self._known(context, agent)
        decision, known.decision = known.decision, None
        answer = answer_of()
        with self.guard.fail_open():
            made: list[Any] = response.to_input_items()
            known.called(made)
            answer = _answer(made, response)
        if decision is not None:
            await self.guard.asettle(decision, answer)

    async def on_agent_end(self, context: RunContextWrapper[Any], agent: Any, output: Any) -> None:  # noqa: ARG002
        """Let go of what was said. Names stay: an agent that is a tool ends while its run goes on."""
        known = self._known(context, agent)
        decision, known.decision = known.decision, None
        known.forget()
        if decision is not None:  # made for a request that is not sent: a tool's result was the answer
            await self.guard.asettle(decision, answer_of())

    # -- tools

    async def _before_tool(self, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        context = data.context
        known = self._known(context, data.agent)
        decision = await self.guard.ajudge(tool_call(context.tool_name, context.tool_arguments, known.names))
        if not decision.allowed:
            return ToolGuardrailFunctionOutput.reject_content(decision.notice, facts(decision))
        await self.guard.await_(decision)
        known.asked[context.tool_call_id] = decision
        return ToolGuardrailFunctionOutput.allow()

    async def _after_tool(self, data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        """Judge a round with its last result. What follows from a denial is `on_llm_start`'s, which raises it."""
        known = self._known(data.context, data.agent)
        try:
            result = _result(data)
        except Exception as error:  # noqa: BLE001 - as in `on_llm_start`
            self.guard.fault(error)
            return ToolGuardrailFunctionOutput.allow()
        said = result["output"]
        asked = known.asked.pop(data.context.tool_call_id, None)
        if asked is not None:
            await self.guard.asettle(asked, answer_of(text=arguments_text(said)))
        if data.context.tool_call_id not in known.waiting:
            return await self._alone(known, data, said)
        known.waiting[data.context.tool_call_id] = result
        results = [one for one in known.waiting.values() if one is not None]
        if len(results) < len(known.waiting):
            return ToolGuardrailFunctionOutput.allow()
        known.is_judged = True
        call = chat_call(known.body([*known.items, *results]), known.names, _PATH)
        known.decision = await self.guard.ajudge(call)
        return _told(known.decision if known.decision.allowed else Decision(), said)

    async def _alone(self, known: _RunState, data: ToolOutputGuardrailData, said: Any) -> ToolGuardrailFunctionOutput:
        """Judge one call as a step by itself. No hook is there to raise, so it trips the guardrail's wire."""
        if known.alone is None:
            known.alone = self.guard.run(known.names.agent, f"{known.names.session}/alone")
        made = (data.context.tool_name, data.context.tool_arguments)
        decision = await known.alone.astep([made], [said])
        if not decision.allowed:
            return ToolGuardrailFunctionOutput.raise_exception(facts(decision))
        await self.guard.await_(decision)
        return _told(decision, said)

    def _guarded(self, tool: FunctionTool) -> FunctionTool:
        made = copy.copy(tool)
        made.tool_output_guardrails = [*(tool.tool_output_guardrails or ()), self.tool_output]
        if self._judges_tools:
            made.tool_input_guardrails = [*(tool.tool_input_guardrails or ()), self.tool_input]
        return made

    def _known(self, context: RunContextWrapper[Any], agent: Any) -> _RunState:
        """The run that a context belongs to: all of a run's contexts share one count of tokens."""
        key = id(context.usage)
        known = self._runs.get(key)
        if known is None:
            names = self._own.over(current())
            names = names.over(AgentContext(str(getattr(agent, "name", "")), f"run-{secrets.token_hex(6)}"))
            known = self._runs[key] = _RunState(names, context.usage)
            if len(self._runs) > _RUNS_KEPT:
                self._runs.popitem(last=False)
        return known


def _told(decision: Decision, said: Any) -> ToolGuardrailFunctionOutput:
    """A tool's result with the note behind it, where it is a text; else as it is."""
    if not decision.notice or not isinstance(said, str):
        return ToolGuardrailFunctionOutput.allow()
    return ToolGuardrailFunctionOutput.reject_content(f"{said}\n\n{marked(decision.notice)}", facts(decision))


def _result(data: ToolOutputGuardrailData) -> Item:
    """A tool's result as the model will read it."""
    made = data.context.tool_call
    if made is None:
        return {"type": f"{_CALL}_output", "call_id": data.context.tool_call_id, "output": data.output}
    return dict(ItemHelpers.tool_call_output_item(made, data.output))


def _answer(made: list[Any], response: ModelResponse) -> Answer:
    calls = [(item["name"], item["arguments"]) for item in made if item.get("type") == _CALL]
    parts = [part for item in made if item.get("type") == "message" for part in item.get("content") or ()]
    used = response.usage
    usage = {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_tokens": used.input_tokens_details.cached_tokens or 0,
        "reasoning_tokens": used.output_tokens_details.reasoning_tokens or 0,
    }
    return answer_of(200, "\n".join(part.get("text") or "" for part in parts), calls, usage)


def _model(agent: Any) -> str:
    model = getattr(agent, "model", None)
    return model if isinstance(model, str) else str(getattr(model, "model", None) or "unknown")
