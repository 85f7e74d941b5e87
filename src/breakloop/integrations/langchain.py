"""LangChain: a middleware for `create_agent`, and `node` for a LangGraph graph of your own.

    from breakloop.integrations.langchain import GuardAgentMiddleware
    agent = create_agent(model, tools, middleware=[GuardAgentMiddleware()])

Each request to the model is checked with its whole conversation, as at a gateway. A notice for the model is added to
the last message; in the result of a tool it stays there. A request that is landed is sent with tools switched off, so
that the agent ends with an answer. A denial becomes the last message, or is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeVar

from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage, convert_to_messages
from langgraph.config import get_config
from langgraph.types import Command

from breakloop.exceptions import error_for
from breakloop.model.call import Answer, Call
from breakloop.model.decision import Decision, marked
from breakloop.sdk.context import UNNAMED, AgentContext, current_agent
from breakloop.sdk.guard import Guard
from breakloop.sdk.model_calls import assistant_message
from breakloop.sdk.requests import arguments_text, chat_call, denial_details, make_answer, result_text, tool_call
from breakloop.sdk.toolkit import GuardedCall, steps_guard, toolkit_of

__all__ = ["GuardAgentMiddleware"]

MESSAGES: Final = "messages"
_ROLES: Final = {"human": "user", "system": "system", "function": "function"}

_TOOLS_OFF: Final[Mapping[str, Any]] = {  # by the type of the model, as its `bind_tools` takes it
    "openai-chat": "none",
    "azure-openai-chat": "none",
    "anthropic-chat": {"type": "none"},
}

Node = TypeVar("Node", bound=Callable[..., Any])
Reply = ModelResponse[Any] | AIMessage | ExtendedModelResponse[Any]
ToolOutput = ToolMessage | Command[Any]


class GuardAgentMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Checks the model calls of an agent:

        middleware = GuardAgentMiddleware(agent="support-bot")
        agent = create_agent(model, tools, middleware=[middleware])

    A conversation is identified by its `thread_id`, or else by the id of its first message. A denial becomes the last
    message of the agent; with `on_block="raise"` it is raised. With `check_tools`, each tool call is checked before it
    is made, so that kill switches and limits on `tool:name` apply to it.
    """

    def __init__(
        self,
        guard: Guard | None = None,
        *,
        agent: str = "",
        on_block: Literal["end", "raise"] = "end",
        check_tools: bool = False,
    ) -> None:
        super().__init__()
        if on_block not in {"end", "raise"}:
            raise ValueError('on_block must be "end" or "raise"')
        self.guard = guard or steps_guard()
        self._toolkit = toolkit_of(self.guard)
        self._agent = agent
        self._raises = on_block == "raise"
        self._check_tools = check_tools

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Reply:
        def make(decision: Decision) -> Reply:
            sent = _with_note(request, decision)
            if decision.landed:
                return _without_calls(handler(_without_tools(sent)), sent, decision)
            return _keep_note(request, sent, handler(sent))

        return self._toolkit.call(self._model_call(request), make)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Reply:
        async def make(decision: Decision) -> Reply:
            sent = _with_note(request, decision)
            if decision.landed:
                return _without_calls(await handler(_without_tools(sent)), sent, decision)
            return _keep_note(request, sent, await handler(sent))

        return await self._toolkit.acall(self._model_call(request), make)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolOutput]) -> ToolOutput:
        return self._toolkit.call(self._tool_call(request), lambda _: handler(request))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        return await self._toolkit.acall(self._tool_call(request), lambda _: handler(request))

    def node(self, function: Node, *, model: str = "", key: str = MESSAGES) -> Node:
        """Guard the node of a LangGraph graph that calls the model: `graph.add_node("model", middleware.node(ask))`.

        `key` is where the state has the conversation. A denial is added to it as a message of the model without tool
        calls, or raised.
        """

        def prepare(state: Any, *args: Any, **kwargs: Any) -> tuple[GuardedCall, Callable[[Decision], Any]]:
            def make(decision: Decision) -> Any:
                return function(_state_with_note(state, key, decision), *args, **kwargs)

            return self._node_call(state, model, key), make

        return self._toolkit.wrap(function, prepare)

    def _model_call(self, request: ModelRequest[Any]) -> GuardedCall:
        context, call = UNNAMED, None
        with self._toolkit.fail_open():
            system = [request.system_message] if request.system_message else []
            context = self._context(request.state.get(MESSAGES) or request.messages)
            call = _chat(_model(request.model), [*system, *request.messages], request.tools, context)
        return GuardedCall(call, context, self._denied, _answer)

    def _node_call(self, state: Any, model: str, key: str) -> GuardedCall:
        context, call = UNNAMED, None
        with self._toolkit.fail_open():
            messages = convert_to_messages(_state_messages(state, key))
            context = self._context(messages)
            call = _chat(model, messages, (), context)
        answer = partial(_update_answer, key=key)
        return GuardedCall(call, context, lambda decision: {key: [self._denied(decision)]}, answer)

    def _tool_call(self, request: ToolCallRequest) -> GuardedCall:
        made = request.tool_call
        context = self._context(_state_messages(request.state, MESSAGES))
        call = tool_call(made["name"], made["args"], context) if self._check_tools else None
        denied = partial(_denied_tool, request)
        return GuardedCall(call, context, denied, _tool_answer, lambda error: make_answer(text=result_text(error)))

    def _context(self, messages: Sequence[Any]) -> AgentContext:
        try:
            config: Mapping[str, Any] = get_config()
        except RuntimeError:  # outside a graph
            config = {}
        thread = (config.get("configurable") or {}).get("thread_id")
        first = getattr(messages[0], "id", None) if messages else None
        named = (config.get("metadata") or {}).get("lc_agent_name")
        framework = AgentContext(str(named or ""), str(thread or first or ""))
        return AgentContext(self._agent).with_defaults(current_agent()).with_defaults(framework)

    def _denied(self, decision: Decision) -> AIMessage:
        if self._raises:
            raise error_for(decision)
        return AIMessage(decision.notice, response_metadata={"breakloop": denial_details(decision)})


def _chat(model: str, messages: Sequence[BaseMessage], tools: Sequence[Any], context: AgentContext) -> Call:
    """Return the request as a chat API takes it, with the names of the declared tools."""
    body: dict[str, Any] = {"model": model or "unknown", MESSAGES: [_chat_message(message) for message in messages]}
    declared = [tool.get("name") if isinstance(tool, dict) else tool.name for tool in tools]
    if declared and all(declared):  # a tool of the provider has no name: the model may call what is not declared
        body["tools"] = [{"type": "function", "function": {"name": name}} for name in declared]
    return chat_call(arguments_text(body).encode("utf-8", "replace"), context)


def _chat_message(message: BaseMessage) -> dict[str, Any]:
    if isinstance(message, AIMessage):
        content = message.content
        calls = [*message.tool_calls, *message.invalid_tool_calls]
        text = content if isinstance(content, str) else str(message.text)
        return assistant_message(text, [(str(one["id"]), one["name"] or "", one["args"]) for one in calls])
    if isinstance(message, ToolMessage):
        content = message.content
        if message.status == "error" and isinstance(content, str) and not content.startswith("Error"):
            content = f"Error: {content}"  # a chat API has no flag for it
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    return {"role": getattr(message, "role", "") or _ROLES.get(message.type, "user"), "content": message.content}


def _model(model: Any) -> str:
    return str(getattr(model, "model_name", "") or getattr(model, "model", "") or "")


def _answer(reply: Reply) -> Answer:
    if isinstance(reply, ExtendedModelResponse):
        reply = reply.model_response
    return _last_answer([reply] if isinstance(reply, AIMessage) else reply.result)


def _update_answer(update: Any, *, key: str) -> Answer:
    """Return the answer in what a node returns: a message, a list of them, an update of the state, or a command."""
    if isinstance(update, Command):
        update = update.update
    if isinstance(update, Mapping):
        update = update.get(key)
    return _last_answer(update if isinstance(update, list | tuple) else [update])


def _last_answer(messages: Sequence[Any]) -> Answer:
    last = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    if last is None:
        return make_answer()
    usage: dict[str, int] = {}
    if last.usage_metadata is not None:
        reported: Any = last.usage_metadata
        inside, outside = reported.get("input_token_details") or {}, reported.get("output_token_details") or {}
        usage = {
            "input_tokens": reported["input_tokens"],
            "output_tokens": reported["output_tokens"],
            "cached_tokens": inside.get("cache_read") or 0,
            "cache_write_tokens": inside.get("cache_creation") or 0,
            "reasoning_tokens": outside.get("reasoning") or 0,
        }
    return make_answer(200, str(last.text), [(one["name"], one["args"]) for one in last.tool_calls], usage)


def _message_with_note(message: Any, decision: Decision) -> Any:
    """Return a message with the notice at its end; None if there is no notice, or the message is the model's own."""
    note = marked(decision.notice)
    if not note or not isinstance(message, BaseMessage) or isinstance(message, AIMessage):
        return None
    content = message.content
    text = {"type": "text", "text": note}
    noted = (f"{content}\n\n{note}" if content else note) if isinstance(content, str) else [*content, text]
    return message.model_copy(update={"content": noted})


def _with_note(request: ModelRequest[Any], decision: Decision) -> ModelRequest[Any]:
    last = _message_with_note(request.messages[-1] if request.messages else None, decision)
    return request if last is None else request.override(messages=[*request.messages[:-1], last])


def _without_tools(request: ModelRequest[Any]) -> ModelRequest[Any]:
    """Return a request whose answer is the last: tools stay declared where the model's class can switch them off."""
    choice = _TOOLS_OFF.get(str(getattr(request.model, "_llm_type", "")))
    if not request.tools or choice is None or request.response_format is not None:
        return request.override(tools=[])  # a structured answer is still asked for
    return request.override(tool_choice=choice)


def _without_calls(response: ModelResponse[Any], request: ModelRequest[Any], decision: Decision) -> ModelResponse[Any]:
    """Remove the calls that a server made although tools were off: the agent ends with what is said."""
    last = response.result[-1] if response.result else None
    if not isinstance(last, AIMessage) or not last.tool_calls or request.response_format is not None:
        return response
    more = {name: value for name, value in last.additional_kwargs.items() if name != "tool_calls"}
    said = {"content": str(last.text) or decision.note, "tool_calls": [], "additional_kwargs": more}
    return replace(response, result=[*response.result[:-1], last.model_copy(update=said)])


def _state_with_note(state: Any, key: str, decision: Decision) -> Any:
    messages = _state_messages(state, key)
    last = _message_with_note(messages[-1] if messages else None, decision)
    return {**state, key: [*messages[:-1], last]} if last is not None and isinstance(state, Mapping) else state


def _keep_note(request: ModelRequest[Any], sent: ModelRequest[Any], response: ModelResponse[Any]) -> Reply:
    """Keep the notice in the conversation if it is in the result of a tool; the message of a person stays as it was."""
    if sent is request:
        return response
    last: AnyMessage = sent.messages[-1]
    known = request.state.get(MESSAGES) or [last]
    if not isinstance(last, ToolMessage) or last.id is None or known[-1].id != last.id:
        return response
    return ExtendedModelResponse(response, Command(update={MESSAGES: [last]}))


def _state_messages(state: Any, key: str) -> list[Any]:
    found = state.get(key) if isinstance(state, Mapping) else getattr(state, key, state)
    return list(found) if isinstance(found, list | tuple) else []


def _denied_tool(request: ToolCallRequest, decision: Decision) -> ToolMessage:
    """Return the denial as the result of the tool, so that the model can do something else."""
    made = request.tool_call
    return ToolMessage(decision.notice, tool_call_id=made["id"], name=made["name"], status="error")


def _tool_answer(output: Any) -> Answer:
    return make_answer(text=result_text(output.content)) if isinstance(output, ToolMessage) else make_answer()
