"""Pydantic AI: a capability that checks each model request of an agent.

    from breakloop.integrations.pydantic_ai import GuardCapability
    agent = Agent("openai:gpt-5", capabilities=[GuardCapability()])

A notice for the model is added to the end of the request. A request that is landed is sent with tools switched off;
those that carry a structured output stay on. A denial ends the run with `LoopDetectedError` or `DeniedError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import WrapModelRequestHandler
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import ModelRequestContext

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
from breakloop.sdk.requests import make_answer

__all__ = ["GuardCapability"]


class GuardCapability(AbstractCapability[Any]):
    """Checks the model requests of an agent, streamed or not:

        agent = Agent("openai:gpt-5", capabilities=[GuardCapability(agent="support-bot")])

    A conversation is identified by Pydantic AI's `conversation_id`: runs with the same message history are one.
    """

    def __init__(self, guard: Guard | None = None, *, agent: str = "") -> None:
        self._calls = ModelCalls(guard, agent)
        self.guard = self._calls.guard

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        async def make(decision: Decision) -> ModelResponse:
            response = await handler(_changed(request_context, decision))
            return _without_calls(response, request_context, decision) if decision.landed else response

        def read() -> Conversation:
            return Conversation(
                (message for one in request_context.messages for message in _messages(one)),
                request_context.model.model_name,
                (tool.name for tool in request_context.model_request_parameters.tool_defs.values()),
                str(getattr(ctx.agent, "name", None) or ""),
                ctx.conversation_id or ctx.run_id or "",
            )

        return await self._calls.toolkit.acall(self._calls.guarded(read, _answer), make)


def _messages(message: ModelMessage) -> Iterator[Message]:
    if isinstance(message, ModelResponse):
        calls = [(one.tool_call_id, one.tool_name, one.args or {}) for one in message.tool_calls]
        yield assistant_message(message.text or "", calls)
        return
    if message.instructions:
        yield text_message("system", message.instructions)
    for part in message.parts:
        if part.part_kind in {"tool-return", "retry-prompt"} and part.tool_name:
            failed = getattr(part, "outcome", "retried") in {"failed", "retried"}
            content = part.model_response_str() if hasattr(part, "model_response_str") else part.model_response()
            yield result_message(part.tool_call_id, content, failed=failed)
        elif hasattr(part, "model_response"):
            yield text_message("user", part.model_response())
        elif part.part_kind in {"system-prompt", "user-prompt"}:
            yield text_message("system" if part.part_kind == "system-prompt" else "user", part.content)


def _changed(request: ModelRequestContext, decision: Decision) -> ModelRequestContext:
    """Return a request with the notice at its end, and with tools switched off if it is landed."""
    last = request.messages[-1] if request.messages else None
    if decision.notice and isinstance(last, ModelRequest):
        noted = replace(last, parts=[*last.parts, UserPromptPart(marked(decision.notice))])
        request = replace(request, messages=[*request.messages[:-1], noted])
    if decision.landed:
        request = replace(request, model_settings={**(request.model_settings or {}), "tool_choice": "none"})
    return request


def _without_calls(response: ModelResponse, request: ModelRequestContext, decision: Decision) -> ModelResponse:
    """Remove the calls that a server made although tools were off: the run ends with what is said."""
    if not response.tool_calls or request.model_request_parameters.output_tools:
        return response
    kept = [part for part in response.parts if not isinstance(part, ToolCallPart)]
    return replace(response, parts=kept if response.text else [*kept, TextPart(decision.note)])


def _answer(response: ModelResponse) -> Answer:
    used = response.usage
    usage = {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_tokens": used.cache_read_tokens,
        "cache_write_tokens": used.cache_write_tokens,
    }
    calls = [(one.tool_name, one.args or {}) for one in response.tool_calls]
    return make_answer(200, response.text or "", calls, usage)
