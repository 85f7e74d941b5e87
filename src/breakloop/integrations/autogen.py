"""AutoGen: a model client that checks each request of an agent.

    from breakloop.integrations.autogen import guard_client
    agent = AssistantAgent("support", guard_client(OpenAIChatCompletionClient(model="gpt-5")), tools=[search])

A notice for the model is added to the end of the request. A request that is landed is sent with tools switched off. A
denial ends the run of an agent with `LoopDetectedError` or `DeniedError`; a team wraps it into a `RuntimeError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, TypeVar

from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)

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

__all__ = ["guard_client"]

C = TypeVar("C", bound=ChatCompletionClient)
Given = Sequence[LLMMessage]


def guard_client(client: C, guard: Guard | None = None, *, agent: str = "") -> C:
    """Return a copy of a model client whose requests are checked, streamed or not:

        client = guard_client(OpenAIChatCompletionClient(model="gpt-5"), agent="support-bot")
        agent = AssistantAgent("support", client, tools=[search], max_tool_iterations=20)

    It does not know the run that it serves: requests belong together by what they contain. To name a conversation, use
    `with breakloop.agent(session=...)` around the run.
    """
    calls = ModelCalls(guard, agent)

    def read(messages: Given, more: dict[str, Any]) -> Conversation:
        model = getattr(client, "_create_args", {}).get("model") or ""
        declared = [one["name"] if isinstance(one, dict) else one.name for one in more.get("tools") or ()]
        return Conversation((made for one in messages for made in _messages(one)), str(model), declared)

    async def create(messages: Given, **more: Any) -> CreateResult:
        async def make(decision: Decision) -> CreateResult:
            result = await client.create(_noted(messages, decision), **_settings(more, decision))
            return _without_calls(result, decision)

        return await calls.acall(lambda: read(messages, more), make, _answer)

    def create_stream(messages: Given, **more: Any) -> AsyncIterator[str | CreateResult]:
        async def make(decision: Decision) -> AsyncIterator[str | CreateResult]:
            async for one in client.create_stream(_noted(messages, decision), **_settings(more, decision)):
                yield _without_calls(one, decision) if isinstance(one, CreateResult) else one

        return calls.astream(lambda: read(messages, more), make, _last_answer)

    return with_methods(client, create=create, create_stream=create_stream)


def _messages(message: LLMMessage) -> Iterator[Message]:
    if isinstance(message, FunctionExecutionResultMessage):
        for one in message.content:
            yield result_message(one.call_id, one.content, failed=bool(one.is_error))
    elif isinstance(message, AssistantMessage):
        calls = [] if isinstance(message.content, str) else message.content
        text = message.content if isinstance(message.content, str) else message.thought or ""
        yield assistant_message(text, [(one.id, one.name, one.arguments) for one in calls])
    else:
        yield text_message("user" if isinstance(message, UserMessage) else "system", message.content)


def _noted(messages: Given, decision: Decision) -> list[LLMMessage]:
    note = [UserMessage(content=marked(decision.notice), source="user")] if decision.notice else []
    return [*messages, *note]


def _settings(more: dict[str, Any], decision: Decision) -> dict[str, Any]:
    return {**more, "tool_choice": "none"} if decision.landed and more.get("tools") else more


def _without_calls(result: CreateResult, decision: Decision) -> CreateResult:
    """Remove the calls that a server made although tools were off: the run ends with what is said."""
    if not decision.landed or isinstance(result.content, str):
        return result
    return result.model_copy(update={"content": result.thought or decision.note, "finish_reason": "stop"})


def _last_answer(pieces: list[str | CreateResult]) -> Answer:
    last = pieces[-1] if pieces else None
    return _answer(last) if isinstance(last, CreateResult) else make_answer()


def _answer(result: CreateResult) -> Answer:
    usage = {"input_tokens": result.usage.prompt_tokens, "output_tokens": result.usage.completion_tokens}
    if isinstance(result.content, str):
        return make_answer(200, result.content, (), usage)
    return make_answer(200, result.thought or "", [(one.name, one.arguments) for one in result.content], usage)
