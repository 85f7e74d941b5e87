"""AG2: a middleware that checks each request of an agent to its model.

    from breakloop.integrations.ag2 import GuardMiddleware
    agent = Agent("support", config=OpenAIConfig("gpt-5"), tools=[search], middleware=[GuardMiddleware()])

A notice for the model is added to the end of the request. An agent that is landed is asked for its answer: a middleware
cannot switch tools off, so calls in that answer are removed. A denial ends the run with `LoopDetectedError` or
`DeniedError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ag2.annotations import Context
from ag2.events import (
    BaseEvent,
    DataInput,
    Input,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextInput,
    ToolCallsEvent,
    ToolErrorEvent,
    ToolResultsEvent,
)
from ag2.middleware import BaseMiddleware, LLMCall
from ag2.utils import AGENT_CONTEXT_DEPENDENCY_KEY, MODEL_CONFIG_CONTEXT_DEPENDENCY_KEY

from breakloop.model.call import Answer
from breakloop.model.decision import Decision, marked
from breakloop.sdk.guard import Guard
from breakloop.sdk.model_calls import (
    Conversation,
    Message,
    ModelCalls,
    assistant_message,
    result_message,
    text_message,
)
from breakloop.sdk.requests import make_answer, result_text

__all__ = ["GuardMiddleware"]


class GuardMiddleware:
    """Checks the model requests of an agent, streamed or not:

        agent = Agent("support-bot", config=config, tools=[search], middleware=[GuardMiddleware()])

    A conversation is a stream of the framework: `agent.ask` begins one, and `reply.ask` continues it.
    """

    def __init__(self, guard: Guard | None = None, *, agent: str = "") -> None:
        self._calls = ModelCalls(guard, agent)
        self.guard = self._calls.guard

    def __call__(self, event: BaseEvent, context: Context) -> BaseMiddleware:
        """Return the middleware of one turn."""
        return _Turn(event, context, self._calls)


class _Turn(BaseMiddleware):
    def __init__(self, event: BaseEvent, context: Context, calls: ModelCalls) -> None:
        super().__init__(event, context)
        self._calls = calls

    async def on_llm_call(self, call_next: LLMCall, events: Sequence[BaseEvent], context: Context) -> ModelResponse:
        async def make(decision: Decision) -> ModelResponse:
            note = [ModelRequest([TextInput(marked(decision.notice))])] if decision.notice else []
            response = await call_next([*events, *note], context)
            return _without_calls(response, decision) if decision.landed else response

        return await self._calls.acall(lambda: _read(events, context), make, _answer)


def _read(events: Sequence[BaseEvent], context: Context) -> Conversation:
    named = context.dependencies
    system = [text_message("system", "\n".join(context.prompt))] if context.prompt else []
    return Conversation(
        [*system, *(message for event in events for message in _messages(event))],
        str(getattr(named.get(MODEL_CONFIG_CONTEXT_DEPENDENCY_KEY), "model", "") or ""),
        agent=str(getattr(named.get(AGENT_CONTEXT_DEPENDENCY_KEY), "name", "") or ""),
        session=str(context.stream.id),
    )


def _messages(event: BaseEvent) -> Iterator[Message]:
    """Yield what an event is for the model. Others, such as usage and pieces of a stream, are not sent to it."""
    if isinstance(event, ModelResponse):
        made = [(one.id, one.name, one.arguments) for one in event.tool_calls.calls]
        yield assistant_message(event.content or "", made)
    elif isinstance(event, ToolResultsEvent):
        for one in event.results:
            yield result_message(one.parent_id, _text(one.result.parts), failed=isinstance(one, ToolErrorEvent))
    elif isinstance(event, ModelRequest):
        yield text_message("user", _text(event.parts))


def _text(parts: Sequence[Input]) -> str:
    return "\n".join(_part(part) for part in parts)


def _part(part: Input) -> str:
    if isinstance(part, TextInput):
        return str(part.content)
    return result_text(part.data) if isinstance(part, DataInput) else repr(part)


def _without_calls(response: ModelResponse, decision: Decision) -> ModelResponse:
    """Remove the calls of an answer: the run ends with what is said."""
    if response.tool_calls.calls:
        response.tool_calls = ToolCallsEvent()
        response.message = response.message or ModelMessage(decision.note)
    return response


def _answer(response: ModelResponse) -> Answer:
    used = response.usage
    usage: dict[str, Any] = {
        "input_tokens": int(used.prompt_tokens or 0),
        "output_tokens": int(used.completion_tokens or 0),
        "cached_tokens": int(used.cache_read_input_tokens or 0),
        "cache_write_tokens": int(used.cache_creation_input_tokens or 0),
        "reasoning_tokens": int(used.thinking_tokens or 0),
    }
    made = [(one.name, one.arguments) for one in response.tool_calls.calls]
    return make_answer(200, response.content or "", made, usage if used else None)
