"""Agno: a model object that checks each request of an agent or a team.

    from breakloop.integrations.agno import guard_model
    agent = Agent(model=guard_model(OpenAIChat("gpt-5")), tools=[search])

A notice for the model is added to the end of the request. A request that is landed is sent with tools switched off. A
denial ends the run in Agno's manner: with the status `error`, and the message as its content.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from agno.models.base import Model
from agno.models.message import Message as AgnoMessage
from agno.models.response import ModelResponse

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
    with_methods,
)
from breakloop.sdk.requests import make_answer

__all__ = ["guard_model"]

M = TypeVar("M", bound=Model)


def guard_model(model: M, guard: Guard | None = None, *, agent: str = "") -> M:
    """Return a copy of a model whose requests are checked, streamed or not:

        agent = Agent(model=guard_model(OpenAIChat("gpt-5"), agent="support-bot"), tools=[search])

    A run is a conversation; runs that continue the history of a session are one. One model may serve many agents.
    """
    calls = ModelCalls(guard, agent)

    def read(given: dict[str, Any]) -> Conversation:
        run = given.get("run_response")
        continues = any(one.from_history for one in given["messages"])
        declared = [str((tool.get("function") or {}).get("name") or "") for tool in given.get("tools") or ()]
        return Conversation(
            map(_message, given["messages"]),
            model.id,
            declared if all(declared) else (),
            str(getattr(run, "agent_name", None) or getattr(run, "team_name", None) or ""),
            # Without a session of the user's, all runs of an agent object have one.
            str(getattr(run, "session_id" if continues else "run_id", None) or ""),
        )

    def invoke(**given: Any) -> ModelResponse:
        def make(decision: Decision) -> ModelResponse:
            return _without_calls(model.invoke(**_changed(given, decision)), decision)

        return calls.call(lambda: read(given), make, lambda made: _answer([made]))

    async def ainvoke(**given: Any) -> ModelResponse:
        async def make(decision: Decision) -> ModelResponse:
            return _without_calls(await model.ainvoke(**_changed(given, decision)), decision)

        return await calls.acall(lambda: read(given), make, lambda made: _answer([made]))

    def invoke_stream(**given: Any) -> Iterator[ModelResponse]:
        def make(decision: Decision) -> Iterator[ModelResponse]:
            return (_without_calls(one, decision) for one in model.invoke_stream(**_changed(given, decision)))

        return calls.stream(lambda: read(given), make, _answer)

    def ainvoke_stream(**given: Any) -> AsyncIterator[ModelResponse]:
        def make(decision: Decision) -> AsyncIterator[ModelResponse]:
            pieces = model.ainvoke_stream(**_changed(given, decision))
            return (_without_calls(one, decision) async for one in pieces)

        return calls.astream(lambda: read(given), make, _answer)

    return with_methods(
        model, invoke=invoke, ainvoke=ainvoke, invoke_stream=invoke_stream, ainvoke_stream=ainvoke_stream
    )


def _message(message: AgnoMessage) -> Message:
    if message.role == "assistant":
        made = [(str(one.get("id") or ""), one.get("function") or {}) for one in message.tool_calls or ()]
        calls = [(call_id, str(one.get("name")), one.get("arguments") or {}) for call_id, one in made]
        return assistant_message(message.get_content_string(), calls)
    if message.role == "tool":
        failed = bool(message.tool_call_error)
        return result_message(message.tool_call_id or "", message.get_content_string(), failed=failed)
    return text_message(message.role, message.get_content_string())


def _changed(given: dict[str, Any], decision: Decision) -> dict[str, Any]:
    """Return a request with the notice at its end, and with tools switched off if it is landed."""
    if decision.notice:
        given = {**given, "messages": [*given["messages"], AgnoMessage(role="user", content=marked(decision.notice))]}
    if decision.landed and given.get("tools"):
        given = {**given, "tool_choice": "none"}
    return given


def _without_calls(response: ModelResponse, decision: Decision) -> ModelResponse:
    """Remove the calls that a server made although tools were off: the run ends with what is said."""
    if decision.landed and response.tool_calls:
        response.tool_calls = []
        response.content = response.content or decision.note
    return response


def _answer(pieces: list[ModelResponse]) -> Answer:
    text = "".join(one.content for one in pieces if isinstance(one.content, str))
    made = [call.get("function") or {} for one in pieces for call in one.tool_calls or () if isinstance(call, dict)]
    calls = [(str(one.get("name")), one.get("arguments") or {}) for one in made]
    used = next((one.response_usage for one in reversed(pieces) if one.response_usage), None)
    usage = used and {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_tokens": used.cache_read_tokens,
        "cache_write_tokens": used.cache_write_tokens,
        "reasoning_tokens": used.reasoning_tokens,
    }
    return make_answer(200, text, calls, usage)
