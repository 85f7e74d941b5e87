"""OpenAI Agents SDK: run hooks that check each model call and stop the run, and tool guardrails that first let the
model recover.

    from breakloop.integrations.openai_agents import GuardRunHooks
    result = await Runner.run(agent, "...", hooks=GuardRunHooks())

The tool calls of one answer are checked when the last of their results is there, so that a notice can be added to that
result; the model call that follows is not checked again. Calls that no guardrail sees, such as handoffs and hosted
tools, are checked with the next model call.

Hooks cannot change a request. A model of `hooks.models()` or `hooks.model(...)` switches tools off in a request that is
landed, so that the run ends with an answer.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Final

from agents import (
    Agent,
    AgentsException,
    FunctionTool,
    ItemHelpers,
    Model,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    MultiProvider,
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
from breakloop.model.call import NO_ANSWER, Answer
from breakloop.model.decision import Decision, marked
from breakloop.sdk.context import AgentContext, current_agent
from breakloop.sdk.guard import Guard
from breakloop.sdk.requests import arguments_text, chat_call, denial_details, make_answer, tool_call
from breakloop.sdk.toolkit import BoundedDict, Run, steps_guard, toolkit_of

__all__ = ["GuardRunHooks"]

_PATH: Final = "/v1/responses"
_RUNS_MAX: Final = 256
_CALL: Final = "function_call"
_ARGUMENTS: Final = (
    "system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing",
)  # fmt: skip

Item = Mapping[str, Any]


# The SDK adds `run_data` only to an `AgentsException`, and turns any other error of an agent that is used as a tool
# into a `UserError`. Programs catch the breakloop base classes.
class _DeniedError(exceptions.DeniedError, AgentsException):
    def __init__(self, decision: Decision, text: str = "") -> None:
        AgentsException.__init__(self)
        super().__init__(decision, text)


class _LoopDetectedError(_DeniedError, exceptions.LoopDetectedError):
    pass


class _RunState:
    """A run: the model call in progress, and the tool calls of its answer."""

    def __init__(self, context: AgentContext, usage: object) -> None:
        self.context = context
        self.usage = usage  # identifies the run; kept so that its id is not used again
        self.decision: Decision | None = None  # of the model call in progress, or of the next if that is checked
        self.unannounced: Run | None = None  # for tool calls of no known answer: no hooks, or an agent used as a tool
        self.checked_tools: dict[str, Decision] = {}  # decisions before the tool calls, by their ids
        self.clear()

    def clear(self) -> None:
        self.head: dict[str, Any] = {}
        self.items: list[Item] = []  # of the last request, and of the model's answer
        self.results: dict[str, Item | None] = {}  # of the tool calls in that answer, by their ids
        self.is_checked = False

    def start(self, head: dict[str, Any], items: list[Item]) -> None:
        """Record a request to the model."""
        self.clear()
        self.head, self.items = head, items

    def add_answer(self, items: list[Item]) -> None:
        self.items = [*self.items, *items]
        self.results = {str(item.get("call_id")): None for item in items if item.get("type") == _CALL}

    def body(self, items: list[Item]) -> bytes:
        """Return the request to the model as its API takes it."""
        return arguments_text({**self.head, "input": items}).encode("utf-8", "replace")

    def with_calls(self, items: list[Item]) -> list[Item]:
        """Return the input of a request, with the calls that its results belong to. They are missing if the server
        keeps the conversation."""
        there = {item.get("call_id") for item in items if item.get("type") == _CALL}
        results = {item.get("call_id") for item in items if item.get("type") == f"{_CALL}_output"} - there
        return [*(item for item in self.items if item.get("type") == _CALL and item["call_id"] in results), *items]


class GuardRunHooks(RunHooks[Any]):
    """Checks a run of agents, and its tools:

        hooks = GuardRunHooks()
        agent = Agent(name="support", tools=hooks.tools(search, read))
        result = await Runner.run(agent, "...", hooks=hooks)

    A run is one conversation, unless `session` names it; its agent is the one that it begins with. With `check_tools`,
    each tool call is checked before it is made, so that kill switches and limits on `tool:name` apply to it. For
    `action: land`, the run also needs the models: `run_config=RunConfig(model_provider=hooks.models())`.
    """

    def __init__(
        self, guard: Guard | None = None, *, agent: str = "", session: str = "", check_tools: bool = False
    ) -> None:
        self.guard = guard or steps_guard()
        self._toolkit = toolkit_of(self.guard)
        self._io = self._toolkit.asynchronous
        self._own = AgentContext(agent, session)
        self._check_tools = check_tools
        self._runs: BoundedDict[int, _RunState] = BoundedDict(_RUNS_MAX)
        # Decisions to land, by the id of the request's input, which the hook and the model have in common. The input is
        # kept, so that its id is not used again.
        self._landed: BoundedDict[int, tuple[Any, Decision]] = BoundedDict(_RUNS_MAX)
        self.tool_input: ToolInputGuardrail[Any] = ToolInputGuardrail(self._before_tool, "breakloop")
        self.tool_output: ToolOutputGuardrail[Any] = ToolOutputGuardrail(self._after_tool, "breakloop")

    def tools(self, *tools: Tool) -> list[Tool]:
        """Return copies of function tools with guardrails, by which the model reads notices."""
        return [self._guarded(tool) if isinstance(tool, FunctionTool) else tool for tool in tools]

    def models(self, provider: ModelProvider | None = None) -> ModelProvider:
        """Return a provider for `RunConfig`, for agents that name their model. The default is that of the SDK."""
        return _LandingProvider(self, provider or MultiProvider())

    def model(self, model: Model) -> Model:
        """Return a model for an agent that has a model object: `Agent(model=hooks.model(LitellmModel(...)))`."""
        return _LandingModel(self, model)

    def landing(self, given: Any) -> Decision | None:
        """Return the decision about the request with this input, if it is landed."""
        found = self._landed.get(id(given))
        return None if found is None else found[1]

    # -- model calls

    async def on_llm_start(
        self, context: RunContextWrapper[Any], agent: Agent[Any], system_prompt: str | None, input_items: Any
    ) -> None:
        """Check a request, or use the decision that was made with the results of its tools. Raises for a denial."""
        state = self._state(context, agent)
        last, state.decision = state.decision, None
        if last is not None and not state.is_checked:  # no answer came: a failed try
            await self._io.settle(last, Answer(NO_ANSWER))
            last = None
        call = None
        with self._toolkit.fail_open():
            items = state.with_calls(list(input_items))
            state.start({"model": _model(agent), "instructions": system_prompt or ""}, items)
            call = chat_call(state.body(items), state.context, _PATH)
        if call is None:
            return
        decision = last or await self._io.decide(call)
        if not decision.allowed:
            state.clear()
            raise (_LoopDetectedError if decision.is_loop else _DeniedError)(decision)
        await self._io.wait(decision)
        state.decision = decision
        if decision.landed:
            self._landed[id(input_items)] = input_items, decision

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        state = self._state(context, agent)
        decision, state.decision = state.decision, None
        answer = make_answer()
        with self._toolkit.fail_open():
            items: list[Any] = response.to_input_items()
            state.add_answer(items)
            answer = _answer(items, response)
        if decision is not None:
            await self._io.settle(decision, answer)

    async def on_agent_end(self, context: RunContextWrapper[Any], agent: Any, output: Any) -> None:  # noqa: ARG002
        """Clear the conversation. Its names stay: an agent that is used as a tool ends while its run goes on."""
        state = self._state(context, agent)
        decision, state.decision = state.decision, None
        state.clear()
        if decision is not None:  # for a request that is not sent: the result of a tool was the final output
            await self._io.settle(decision, make_answer())

    # -- tools

    async def _before_tool(self, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        context = data.context
        state = self._state(context, data.agent)
        decision = await self._io.decide(tool_call(context.tool_name, context.tool_arguments, state.context))
        if not decision.allowed:
            return ToolGuardrailFunctionOutput.reject_content(decision.notice, denial_details(decision))
        await self._io.wait(decision)
        state.checked_tools[context.tool_call_id] = decision
        return ToolGuardrailFunctionOutput.allow()

    async def _after_tool(self, data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        """Check the tool calls of an answer with the last result. `on_llm_start` raises if they are denied."""
        state = self._state(data.context, data.agent)
        result = None
        with self._toolkit.fail_open():
            result = _result(data)
        if result is None:
            return ToolGuardrailFunctionOutput.allow()
        output = result["output"]
        before = state.checked_tools.pop(data.context.tool_call_id, None)
        if before is not None:
            await self._io.settle(before, make_answer(text=arguments_text(output)))
        if data.context.tool_call_id not in state.results:
            return await self._check_unannounced(state, data, output)
        state.results[data.context.tool_call_id] = result
        results = [one for one in state.results.values() if one is not None]
        if len(results) < len(state.results):
            return ToolGuardrailFunctionOutput.allow()
        state.is_checked = True
        call = chat_call(state.body([*state.items, *results]), state.context, _PATH)
        state.decision = await self._io.decide(call)
        return _with_note(state.decision if state.decision.allowed else Decision(), output)

    async def _check_unannounced(
        self, state: _RunState, data: ToolOutputGuardrailData, output: Any
    ) -> ToolGuardrailFunctionOutput:
        """Check one call as a step by itself. No hook can raise for it, so a denial trips the guardrail."""
        if state.unannounced is None:
            session = f"{state.context.session}/alone"
            state.unannounced = self._toolkit.new_run(state.context._replace(session=session))
        decision = await state.unannounced.aafter_tool(data.context.tool_name, data.context.tool_arguments, output)
        if not decision.allowed:
            return ToolGuardrailFunctionOutput.raise_exception(denial_details(decision))
        return _with_note(decision, output)

    def _guarded(self, tool: FunctionTool) -> FunctionTool:
        guarded = copy.copy(tool)
        guarded.tool_output_guardrails = [*(tool.tool_output_guardrails or ()), self.tool_output]
        if self._check_tools:
            guarded.tool_input_guardrails = [*(tool.tool_input_guardrails or ()), self.tool_input]
        return guarded

    def _state(self, context: RunContextWrapper[Any], agent: Any) -> _RunState:
        """Return the run that a context belongs to: all contexts of a run share one usage object."""
        key = id(context.usage)
        found = self._runs.get(key)
        if found is None:
            framework = AgentContext(str(getattr(agent, "name", "")), f"run-{secrets.token_hex(6)}")
            names = self._own.with_defaults(current_agent()).with_defaults(framework)
            found = self._runs[key] = _RunState(names, context.usage)
        return found


class _LandingModel(Model):
    """A model that gets landed requests with tools switched off, and every other request as it is."""

    def __init__(self, hooks: GuardRunHooks, model: Model) -> None:
        self._hooks = hooks
        self._model = model

    def __getattr__(self, name: str) -> Any:  # such as the name of the model, and what the SDK asks for by name
        return getattr(self._model, name)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return await self._model.get_response(**self._landed(args, kwargs))

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        return self._model.stream_response(**self._landed(args, kwargs))

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        await self._model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)  # noqa: SLF001 - it is for the model that was run

    def _landed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a request by name, changed if it is landed."""
        given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        decision = self._hooks.landing(given["input"])
        if decision is None:
            return given
        note = marked(decision.note)
        if not any(note in str(item.get("output")) for item in given["input"]):  # a guardrail adds it to a result
            given["input"] = [*given["input"], {"role": "user", "content": note}]
        if given["tools"] or given["handoffs"]:  # without any, the API refuses the choice
            settings: ModelSettings = given["model_settings"]
            given["model_settings"] = replace(settings, tool_choice="none")
        return given


class _LandingProvider(ModelProvider):
    def __init__(self, hooks: GuardRunHooks, provider: ModelProvider) -> None:
        self._hooks = hooks
        self._provider = provider

    def get_model(self, model_name: str | None) -> Model:
        return _LandingModel(self._hooks, self._provider.get_model(model_name))

    async def aclose(self) -> None:
        await self._provider.aclose()


def _with_note(decision: Decision, output: Any) -> ToolGuardrailFunctionOutput:
    """Return the result of a tool with the notice after it, if the result is a text."""
    if not decision.notice or not isinstance(output, str):
        return ToolGuardrailFunctionOutput.allow()
    text = f"{output}\n\n{marked(decision.notice)}"
    return ToolGuardrailFunctionOutput.reject_content(text, denial_details(decision))


def _result(data: ToolOutputGuardrailData) -> Item:
    """Return the result of a tool as the model will read it."""
    made = data.context.tool_call
    if made is None:
        return {"type": f"{_CALL}_output", "call_id": data.context.tool_call_id, "output": data.output}
    return dict(ItemHelpers.tool_call_output_item(made, data.output))


def _answer(items: list[Any], response: ModelResponse) -> Answer:
    calls = [(item["name"], item["arguments"]) for item in items if item.get("type") == _CALL]
    parts = [part for item in items if item.get("type") == "message" for part in item.get("content") or ()]
    used = response.usage
    usage = {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_tokens": used.input_tokens_details.cached_tokens or 0,
        "reasoning_tokens": used.output_tokens_details.reasoning_tokens or 0,
    }
    return make_answer(200, "\n".join(part.get("text") or "" for part in parts), calls, usage)


def _model(agent: Any) -> str:
    model = getattr(agent, "model", None)
    return model if isinstance(model, str) else str(getattr(model, "model", None) or "unknown")
