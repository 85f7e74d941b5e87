"""LlamaIndex: an LLM object that checks each request of an agent or a query engine.

    from breakloop.integrations.llama_index import guard_llm
    agent = FunctionAgent(llm=guard_llm(OpenAI("gpt-5")), tools=[search])

A notice for the model is added to the end of the request. A request that is landed is sent with tools switched off,
where the LLM takes a `tool_choice`. A denial ends the run with `LoopDetectedError` or `DeniedError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, TextBlock, ToolCallBlock
from llama_index.core.llms.llm import LLM

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

__all__ = ["guard_llm"]

L = TypeVar("L", bound=LLM)
Given = Sequence[ChatMessage]


def guard_llm(llm: L, guard: Guard | None = None, *, agent: str = "") -> L:
    """Return a copy of an LLM whose chat requests are checked, streamed or not:

        agent = FunctionAgent(llm=guard_llm(OpenAI("gpt-5"), agent="support-bot"), tools=[search])

    An LLM does not know the run that it serves: requests belong together by what they contain. To name a conversation,
    use `with breakloop.agent(session=...)` around the run.
    """
    calls = ModelCalls(guard, agent)

    def read(messages: Given, more: Mapping[str, Any]) -> Conversation:
        declared = [str((tool.get("function") or tool).get("name") or "") for tool in more.get("tools") or ()]
        return Conversation(map(_message, messages), llm.metadata.model_name, declared if all(declared) else ())

    def chat(messages: Given, **more: Any) -> ChatResponse:
        def make(decision: Decision) -> ChatResponse:
            return _without_calls(llm.chat(_noted(messages, decision), **_settings(more, decision)), decision)

        return calls.call(lambda: read(messages, more), make, _answer)

    async def achat(messages: Given, **more: Any) -> ChatResponse:
        async def make(decision: Decision) -> ChatResponse:
            response = await llm.achat(_noted(messages, decision), **_settings(more, decision))
            return _without_calls(response, decision)

        return await calls.acall(lambda: read(messages, more), make, _answer)

    def stream_chat(messages: Given, **more: Any) -> Iterator[ChatResponse]:
        def make(decision: Decision) -> Iterator[ChatResponse]:
            pieces = llm.stream_chat(_noted(messages, decision), **_settings(more, decision))
            return (_without_calls(one, decision) for one in pieces)

        return calls.stream(lambda: read(messages, more), make, _last_answer)

    async def astream_chat(messages: Given, **more: Any) -> AsyncIterator[ChatResponse]:
        async def make(decision: Decision) -> AsyncIterator[ChatResponse]:
            pieces = await llm.astream_chat(_noted(messages, decision), **_settings(more, decision))
            async for one in pieces:
                yield _without_calls(one, decision)

        return calls.astream(lambda: read(messages, more), make, _last_answer)

    return with_methods(llm, chat=chat, achat=achat, stream_chat=stream_chat, astream_chat=astream_chat)


def _message(message: ChatMessage) -> Message:
    role = str(getattr(message.role, "value", message.role))
    if role == "assistant":
        return assistant_message(message.content or "", _calls(message))
    if role == "tool":
        return result_message(str(message.additional_kwargs.get("tool_call_id") or ""), message.content or "")
    return text_message(role, message.content or "")


def _calls(message: ChatMessage) -> list[tuple[str, str, Any]]:
    made = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    return [(block.tool_call_id or "", block.tool_name, block.tool_kwargs) for block in made]


def _noted(messages: Given, decision: Decision) -> list[ChatMessage]:
    note = [ChatMessage(role="user", content=marked(decision.notice))] if decision.notice else []
    return [*messages, *note]


def _settings(more: dict[str, Any], decision: Decision) -> dict[str, Any]:
    return {**more, "tool_choice": "none"} if decision.landed and more.get("tool_choice") else more


def _without_calls(response: ChatResponse, decision: Decision) -> ChatResponse:
    """Remove the calls that a server made although tools were off: the run ends with what is said."""
    if decision.landed and _calls(response.message):
        kept = [block for block in response.message.blocks if not isinstance(block, ToolCallBlock)]
        response.message.blocks = kept if response.message.content else [TextBlock(text=decision.note)]
        response.message.additional_kwargs.pop("tool_calls", None)
    return response


def _last_answer(pieces: list[ChatResponse]) -> Answer:
    """Return the answer of a stream, each piece of which has all that was said so far."""
    return _answer(pieces[-1]) if pieces else make_answer()


def _answer(response: ChatResponse) -> Answer:
    reported = response.additional_kwargs
    usage = {
        "input_tokens": reported.get("prompt_tokens") or 0,
        "output_tokens": reported.get("completion_tokens") or 0,
    }
    calls = [(name, arguments) for _, name, arguments in _calls(response.message)]
    return make_answer(200, response.message.content or "", calls, usage if any(usage.values()) else None)
