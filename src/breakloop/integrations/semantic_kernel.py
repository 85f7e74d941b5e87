"""Semantic Kernel: a chat service that checks each request of an agent or a kernel.

    from breakloop.integrations.semantic_kernel import guard_service
    agent = ChatCompletionAgent(service=guard_service(OpenAIChatCompletion("gpt-5")), plugins=[Search()])

A notice for the model is added to the end of the request. A request that is landed is sent without tools. A denial ends
the run with `LoopDetectedError` or `DeniedError`; `Kernel.invoke` wraps it into a `KernelInvokeException`.

Filters of the framework see functions, and not the requests to a model. `guard_filter` is for agents without a chat
service, whose requests only their provider sees.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.prompt_execution_settings import PromptExecutionSettings
from semantic_kernel.contents import (
    AuthorRole,
    ChatHistory,
    ChatMessageContent,
    FunctionCallContent,
    FunctionResultContent,
    StreamingChatMessageContent,
    StreamingTextContent,
    TextContent,
)
from semantic_kernel.filters import AutoFunctionInvocationContext

from breakloop.model.call import Answer
from breakloop.model.decision import Decision, marked
from breakloop.sdk.context import AgentContext
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
from breakloop.sdk.toolkit import BoundedDict, Run

__all__ = ["guard_filter", "guard_service"]

S = TypeVar("S", bound=ChatCompletionClientBase)
Next = Callable[[AutoFunctionInvocationContext], Awaitable[None]]
Filter = Callable[[AutoFunctionInvocationContext, Next], Awaitable[None]]

_RUNS_MAX: Final = 1000


def guard_service(service: S, guard: Guard | None = None, *, agent: str = "") -> S:
    """Return a copy of a chat service whose requests are checked, streamed or not:

        service = guard_service(OpenAIChatCompletion("gpt-5"), agent="support-bot")
        agent = ChatCompletionAgent(service=service, plugins=[Search()])
        kernel.add_service(service)  # or for a kernel

    It does not know the run that it serves: requests belong together by what they contain. To name a conversation, use
    `with breakloop.agent(session=...)` around the run.
    """
    calls = ModelCalls(guard, agent)
    send = service._inner_get_chat_message_contents  # noqa: SLF001 - one request; the public method makes all of a run
    stream = service._inner_get_streaming_chat_message_contents  # noqa: SLF001 - as above

    def read(history: ChatHistory, settings: PromptExecutionSettings) -> Conversation:
        model = getattr(settings, "ai_model_id", None) or service.ai_model_id
        messages = (made for one in history.messages for made in _messages(one))
        return Conversation(messages, str(model), _declared(settings))

    def prepared(
        history: ChatHistory, settings: PromptExecutionSettings, decision: Decision
    ) -> tuple[ChatHistory, PromptExecutionSettings]:
        if decision.notice:
            note = ChatMessageContent(role=AuthorRole.USER, content=marked(decision.notice))
            history = history.model_copy(update={"messages": [*history.messages, note]})
        if decision.landed:
            settings = settings.model_copy()
            service._reset_function_choice_settings(settings)  # noqa: SLF001 - as the framework does for a last request
        return history, settings

    async def contents(history: ChatHistory, settings: PromptExecutionSettings) -> list[ChatMessageContent]:
        async def make(decision: Decision) -> list[ChatMessageContent]:
            made = await send(*prepared(history, settings, decision))
            return _without_calls(made, decision) if decision.landed else made

        return await calls.acall(lambda: read(history, settings), make, _answer)

    def streamed(
        history: ChatHistory, settings: PromptExecutionSettings, attempt: int = 0
    ) -> AsyncIterator[list[StreamingChatMessageContent]]:
        def make(decision: Decision) -> AsyncIterator[list[StreamingChatMessageContent]]:
            pieces = stream(*prepared(history, settings, decision), attempt)
            return _stream_without_calls(pieces, decision) if decision.landed else pieces

        return calls.astream(lambda: read(history, settings), make, _streamed_answer)

    return with_methods(
        service, _inner_get_chat_message_contents=contents, _inner_get_streaming_chat_message_contents=streamed
    )


def guard_filter(guard: Guard | None = None, *, agent: str = "") -> Filter:
    """Return a filter for agents that have no chat service, such as `OpenAIResponsesAgent` and `AzureAIAgent`:

        kernel.add_filter("auto_function_invocation", guard_filter())
        agent = OpenAIResponsesAgent(kernel=kernel, ...)

    Each call of a function with its result is a step. A notice is added to the result; a denial is raised.
    """
    calls = ModelCalls(guard, agent)
    runs: BoundedDict[int, tuple[ChatHistory | None, Run]] = BoundedDict(_RUNS_MAX)

    def run_of(history: ChatHistory | None) -> Run:
        """Return the run of an invocation, which has one history. It is kept, so that its id is not used again."""
        found = runs.get(id(history))
        if found is None:
            found = runs[id(history)] = history, calls.toolkit.new_run(AgentContext(agent))
        return found[1]

    async def filtered(context: AutoFunctionInvocationContext, next: Next) -> None:  # noqa: A002 - passed by name
        run = run_of(context.chat_history)
        call = context.function.fully_qualified_name, _arguments(context)
        calls.enforce(await run.abefore_tool(*call))
        await next(context)
        result = context.function_result
        value = "" if result is None else str(result)
        decision = calls.enforce(await run.aafter_tool(*call, value))
        if decision.notice and result is not None:
            result.value = f"{value}\n\n{marked(decision.notice)}"

    return filtered


def _arguments(context: AutoFunctionInvocationContext) -> Any:
    made = context.function_call_content
    return dict(context.arguments) if made is None else made.arguments or {}


def _declared(settings: PromptExecutionSettings) -> list[str]:
    tools: Iterable[Any] = getattr(settings, "tools", None) or ()
    names = [str((one.get("function") or one).get("name") or "") if isinstance(one, dict) else "" for one in tools]
    return names if all(names) else []


def _messages(message: ChatMessageContent) -> Iterator[Message]:
    results = [one for one in message.items if isinstance(one, FunctionResultContent)]
    if message.role == AuthorRole.ASSISTANT:
        yield assistant_message(message.content, [(one.id or "", one.name, one.arguments) for one in _calls(message)])
    elif not results:
        yield text_message(message.role.value, message.content)
    for one in results:
        yield result_message(one.id, str(one.result))


def _calls(message: ChatMessageContent) -> list[FunctionCallContent]:
    return [one for one in message.items if isinstance(one, FunctionCallContent)]


def _without_calls(messages: list[ChatMessageContent], decision: Decision) -> list[ChatMessageContent]:
    """Remove the calls that a server made although it got no tools: the run ends with what is said."""
    for message in messages:
        if _calls(message):
            message.items = [one for one in message.items if not isinstance(one, FunctionCallContent)]
            if not message.content:
                message.items.append(TextContent(text=decision.note))
    return messages


async def _stream_without_calls(
    pieces: AsyncIterator[list[StreamingChatMessageContent]], decision: Decision
) -> AsyncIterator[list[StreamingChatMessageContent]]:
    said = False
    async for piece in pieces:
        for message in piece:
            message.items = [one for one in message.items if not isinstance(one, FunctionCallContent)]
            said = said or bool(message.content)
        yield piece
    if not said:
        text = StreamingTextContent(choice_index=0, text=decision.note)
        yield [StreamingChatMessageContent(AuthorRole.ASSISTANT, choice_index=0, items=[text])]


def _streamed_answer(pieces: list[list[StreamingChatMessageContent]]) -> Answer:
    """Return the answer of a stream. The pieces of a call have its index; the first of them has its name."""
    messages = [message for piece in pieces for message in piece]
    made: dict[int | None, list[str]] = {}
    for call in (call for message in messages for call in _calls(message)):
        parts = made.setdefault(call.index, ["", ""])
        parts[0] += call.name or ""
        parts[1] += str(call.arguments or "")
    text = "".join(message.content for message in messages)
    return make_answer(200, text, [(name, arguments) for name, arguments in made.values()], _usage(messages))


def _answer(messages: list[ChatMessageContent]) -> Answer:
    made = [(call.name, call.arguments) for message in messages for call in _calls(message)]
    return make_answer(200, "\n".join(message.content for message in messages), made, _usage(messages))


def _usage(messages: Iterable[ChatMessageContent]) -> dict[str, int] | None:
    """Return the last usage that is reported: each choice of a response has all of it."""
    reported = [message.metadata["usage"] for message in messages if message.metadata.get("usage")]
    if not reported:
        return None
    used = reported[-1]
    cached = getattr(used.prompt_tokens_details, "cached_tokens", None)
    thought = getattr(used.completion_tokens_details, "reasoning_tokens", None)
    return {
        "input_tokens": used.prompt_tokens or 0,
        "output_tokens": used.completion_tokens or 0,
        "cached_tokens": cached or 0,
        "reasoning_tokens": thought or 0,
    }
