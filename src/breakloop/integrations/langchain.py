"""LangChain (SPEC P-3): a middleware for `create_agent`, and `node` for a LangGraph graph of one's own.

Each request to the model is judged with its whole conversation, as a gateway would see it. What the model is to read
stands at the end of the last message; in a tool's result it stays there. A denial is the last message, or raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Final, Literal, TypeVar, cast

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
from breakloop.model.call import Answer, Call, marked
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
from breakloop.sdk.decorators import is_async, status_of
from breakloop.sdk.guard import Guard
from breakloop.sdk.http import GuardedCall, acall_guarded, call_guarded
from breakloop.sdk.run import result_text

MESSAGES: Final = "messages"
_ROLES: Final = {"human": "user", "system": "system", "function": "function"}

Asks = TypeVar("Asks", bound=Callable[..., Any])
Reply = ModelResponse[Any] | AIMessage | ExtendedModelResponse[Any]
Ran = ToolMessage | Command[Any]


class GuardAgentMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """`create_agent(model, tools, middleware=[GuardAgentMiddleware()])`. Without a guard, steps are judged in process.

    A conversation is known by its `thread_id`, else by the id of its first message. `judge_tools` asks before each tool
    call too, so that kill switches and limits on `tool:name` hold before anything is done.
    """

    def __init__(
        self,
        guard: Guard | None = None,
        *,
        agent: str = "",
        on_block: Literal["end", "raise"] = "end",
        judge_tools: bool = False,
    ) -> None:
        super().__init__()
        if on_block not in {"end", "raise"}:
            raise ValueError('on_block is "end" or "raise"')
        self.guard = guard or Guard(STEPS_ONLY)
        self._agent = agent
        self._raises = on_block == "raise"
        self._judges_tools = judge_tools

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Reply:
        """Judge a request, answer it in the model's stead, or send it on."""

        def make(decision: Decision) -> Reply:
            sent = _noted(request, decision)
            return _kept(request, sent, handler(sent))

        return call_guarded(self.guard, self._asking(request), make)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Reply:
        """The same, without blocking the event loop."""

        async def make(decision: Decision) -> Reply:
            sent = _noted(request, decision)
            return _kept(request, sent, await handler(sent))

        return await acall_guarded(self.guard, self._asking(request), make)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Ran]) -> Ran:
        """Run a tool; what it does itself belongs to the same conversation. With `judge_tools`, ask before."""
        return call_guarded(self.guard, self._using(request), lambda _: handler(request))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Ran]]
    ) -> Ran:
        """The same, without blocking the event loop."""
        return await acall_guarded(self.guard, self._using(request), lambda _: handler(request))

    def node(self, function: Asks, *, model: str = "", key: str = MESSAGES) -> Asks:
        """Guard the node of a LangGraph graph that asks the model: `graph.add_node("model", breakloop.node(ask))`.

        `key` is where the state has the conversation. A denial is added to it as a message of the model's that calls no
        tool, or raised.
        """
        if is_async(function):

            @wraps(function)
            async def later(state: Any, *args: Any, **kwargs: Any) -> Any:
                around = self._turn(state, model, key)
                make: Callable[[Decision], Awaitable[Any]] = lambda decision: function(  # noqa: E731
                    _noted_state(state, key, decision), *args, **kwargs
                )
                return await acall_guarded(self.guard, around, make)

            return cast("Asks", later)

        @wraps(function)
        def now(state: Any, *args: Any, **kwargs: Any) -> Any:
            around = self._turn(state, model, key)
            return call_guarded(
                self.guard, around, lambda decision: function(_noted_state(state, key, decision), *args, **kwargs)
            )

        return cast("Asks", now)

    def _asking(self, request: ModelRequest[Any]) -> GuardedCall:
        names, call = AgentContext(), None
        with self.guard.fail_open():
            system = [request.system_message] if request.system_message else []
            names = self._names(request.state.get(MESSAGES) or request.messages)
            call = _chat(_model(request.model), [*system, *request.messages], request.tools, names)
        return GuardedCall(call, names, self._stopped, _said, _failed)

    def _turn(self, state: Any, model: str, key: str) -> GuardedCall:
        names, call = AgentContext(), None
        with self.guard.fail_open():
            messages = convert_to_messages(_state_messages(state, key))
            names = self._names(messages)
            call = _chat(model, messages, (), names)
        said = partial(_update_said, key=key)
        return GuardedCall(call, names, lambda decision: {key: [self._stopped(decision)]}, said, _failed)

    def _using(self, request: ToolCallRequest) -> GuardedCall:
        made = request.tool_call
        names = self._names(_state_messages(request.state, MESSAGES))
        call = tool_call(made["name"], made["args"], names) if self._judges_tools else None
        return GuardedCall(
            call, names, partial(_refused, request), _result, lambda error: answer_of(text=result_text(error))
        )

    def _names(self, messages: Sequence[Any]) -> AgentContext:
        try:
            config: Mapping[str, Any] = get_config()
        except RuntimeError:  # outside of a graph
            config = {}
        thread = (config.get("configurable") or {}).get("thread_id")
        first = getattr(messages[0], "id", None) if messages else None
        named = (config.get("metadata") or {}).get("lc_agent_name")
        return (
            AgentContext(self._agent).over(current()).over(AgentContext(str(named or ""), str(thread or first or "")))
        )

    def _stopped(self, decision: Decision) -> AIMessage:
        if self._raises:
            raise error_for(decision)
        return AIMessage(decision.notice, response_metadata={"breakloop": facts(decision)})


def _chat(model: str, messages: Sequence[BaseMessage], tools: Sequence[Any], names: AgentContext) -> Call:
    """The request in the words of a chat API; of declared tools, the names."""
    body: dict[str, Any] = {"model": model or "unknown", MESSAGES: [_written(message) for message in messages]}
    declared = [tool.get("name") if isinstance(tool, dict) else tool.name for tool in tools]
    if declared and all(declared):  # a tool of the provider's own has no name: then it is not known what may be called
        body["tools"] = [{"type": "function", "function": {"name": name}} for name in declared]
    return chat_call(arguments_text(body).encode("utf-8", "replace"), names)


def _written(message: BaseMessage) -> dict[str, Any]:
    if isinstance(message, AIMessage):
        said = message.content
        made: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else str(message.text)}
        calls = [*message.tool_calls, *message.invalid_tool_calls]
        if calls:
            made["tool_calls"] = [_called(str(one["id"]), one["name"] or "", one["args"]) for one in calls]
        return made
    if isinstance(message, ToolMessage):
        said = message.content
        if message.status == "error" and isinstance(said, str) and not said.startswith("Error"):
            said = f"Error: {said}"  # a chat API has no flag for it
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": said}
    return {"role": getattr(message, "role", "") or _ROLES.get(message.type, "user"), "content": message.content}


def _called(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments_text(arguments)}}


def _model(model: Any) -> str:
    return str(getattr(model, "model_name", "") or getattr(model, "model", "") or "")


def _said(reply: Reply) -> Answer:
    """What the model said, from anything that stands for its answer."""
    if isinstance(reply, ExtendedModelResponse):
        reply = reply.model_response
    return _last_said([reply] if isinstance(reply, AIMessage) else reply.result)


def _update_said(update: Any, *, key: str) -> Answer:
    """The same of what a node returns: a message, a list of them, an update of the state, or a command."""
    if isinstance(update, Command):
        update = update.update
    if isinstance(update, Mapping):
        update = update.get(key)
    return _last_said(update if isinstance(update, list | tuple) else [update])


def _last_said(messages: Sequence[Any]) -> Answer:
    said = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    if said is None:
        return answer_of()
    usage: dict[str, int] = {}
    if said.usage_metadata is not None:
        told: Any = said.usage_metadata
        inside, outside = told.get("input_token_details") or {}, told.get("output_token_details") or {}
        usage = {
            "input_tokens": told["input_tokens"],
            "output_tokens": told["output_tokens"],
            "cached_tokens": inside.get("cache_read") or 0,
            "cache_write_tokens": inside.get("cache_creation") or 0,
            "reasoning_tokens": outside.get("reasoning") or 0,
        }
    return answer_of(200, str(said.text), [(one["name"], one["args"]) for one in said.tool_calls], usage)


def _failed(error: BaseException) -> Answer:
    return Answer(status_of(error))


def _with_note(message: Any, decision: Decision) -> Any:
    """The last message with the note at its end; None where there is none, or it is the model's own."""
    note = marked(decision.notice)
    if not note or not isinstance(message, BaseMessage) or isinstance(message, AIMessage):
        return None
    said = message.content
    text = {"type": "text", "text": note}
    noted = (f"{said}\n\n{note}" if said else note) if isinstance(said, str) else [*said, text]
    return message.model_copy(update={"content": noted})


def _noted(request: ModelRequest[Any], decision: Decision) -> ModelRequest[Any]:
    last = _with_note(request.messages[-1] if request.messages else None, decision)
    return request if last is None else request.override(messages=[*request.messages[:-1], last])


def _noted_state(state: Any, key: str, decision: Decision) -> Any:
    messages = _state_messages(state, key)
    last = _with_note(messages[-1] if messages else None, decision)
    return {**state, key: [*messages[:-1], last]} if last is not None and isinstance(state, Mapping) else state


def _kept(request: ModelRequest[Any], sent: ModelRequest[Any], response: ModelResponse[Any]) -> Reply:
    """What the model read in a tool's result stays in the conversation; what a person wrote stays as it is."""
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


def _refused(request: ToolCallRequest, decision: Decision) -> ToolMessage:
    """Why, as the tool's result: the model may do something else."""
    made = request.tool_call
    return ToolMessage(decision.notice, tool_call_id=made["id"], name=made["name"], status="error")


def _result(ran: Any) -> Answer:
    return answer_of(text=result_text(ran.content)) if isinstance(ran, ToolMessage) else answer_of()
