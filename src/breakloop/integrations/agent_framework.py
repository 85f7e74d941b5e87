"""Microsoft Agent Framework: a chat middleware that checks each request of an agent to its model.

    from breakloop.integrations.agent_framework import GuardChatMiddleware
    agent = Agent(client, tools=[search], middleware=[GuardChatMiddleware()])

A notice for the model is added to the end of the request. A request that is landed is sent with tools switched off. A
denial ends the run with `LoopDetectedError` or `DeniedError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from agent_framework import ChatContext, ChatMiddleware, ChatResponse, ChatResponseUpdate, Content
from agent_framework import Message as ChatMessage

from breakloop.model.call import Answer
from breakloop.model.decision import Decision, marked
from breakloop.sdk.guard import Guard
from breakloop.sdk.model_calls import (
    Conversation,
    Message,
    ModelCalls,
    assistant_message,
    raise_denial,
    result_message,
    text_message,
)
from breakloop.sdk.requests import make_answer
from breakloop.sdk.toolkit import BoundedDict, failed_answer

__all__ = ["GuardChatMiddleware"]

_KEPT_MAX: Final = 1000


class GuardChatMiddleware(ChatMiddleware):
    """Checks the requests of an agent, or of a chat client, streamed or not:

        agent = Agent(client, name="support-bot", tools=[search], middleware=[GuardChatMiddleware()])

    A conversation is a session of the framework; without one, requests belong together by what they contain. If the
    provider keeps the history, the middleware remembers it, by the id that the provider gave it.
    """

    def __init__(self, guard: Guard | None = None, *, agent: str = "") -> None:
        self._calls = ModelCalls(guard, agent)
        self.guard = self._calls.guard
        self._kept: BoundedDict[str, tuple[str, list[Message]]] = BoundedDict(_KEPT_MAX)  # session and history, by id

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        options: Mapping[str, Any] = context.options or {}
        session, earlier = self._kept.get(str(options.get("conversation_id")), ("", []))
        if context.session is not None:
            session = context.session.session_id
        messages = list(earlier)

        def read() -> Conversation:
            messages.extend(message for one in context.messages for message in _messages(one))
            tools = [str(getattr(tool, "name", "")) for tool in options.get("tools") or ()]
            model = options.get("model") or getattr(context.client, "model", "")
            return Conversation(messages, str(model or ""), tools if all(tools) else (), session=session)

        key = id(context)
        decision = await self._calls.abegin(key, read)
        if not decision.allowed:
            raise_denial(decision)
        if decision.notice:
            context.messages = [*context.messages, ChatMessage("user", [marked(decision.notice)])]
        if decision.landed:
            context.options = {**options, "tool_choice": "none"}
            context.stream_transform_hooks.append(_stream_without_calls(decision))

        async def end(response: ChatResponse[Any]) -> ChatResponse[Any]:
            await self._calls.aend(key, lambda: _answer(response))
            if response.conversation_id:  # the next request has only what is new
                self._kept[response.conversation_id] = session, [*messages, *_said(response)]
            return _without_calls(response, decision) if decision.landed else response

        context.stream_result_hooks.append(end)
        try:
            await call_next()
        except Exception as error:
            failure = failed_answer(error)
            await self._calls.aend(key, lambda: failure)
            raise
        if isinstance(context.result, ChatResponse):
            context.result = await end(context.result)


def _messages(message: ChatMessage) -> Iterator[Message]:
    calls = _function_calls(message)
    results = [one for one in message.contents if one.type == "function_result"]
    if message.role == "assistant":
        yield assistant_message(message.text, calls)
    elif not results:
        yield text_message(str(message.role), message.text)
    for one in results:
        yield result_message(one.call_id or "", one.result, failed=one.exception is not None)


def _function_calls(message: ChatMessage) -> list[tuple[str, str, Any]]:
    made = [one for one in message.contents if one.type == "function_call"]
    return [(one.call_id or "", one.name or "", one.arguments or {}) for one in made]


def _said(response: ChatResponse[Any]) -> Iterator[Message]:
    for message in response.messages:
        yield from _messages(message)


def _without_calls(response: ChatResponse[Any], decision: Decision) -> ChatResponse[Any]:
    """Remove the calls that a server made although tools were off: the run ends with what is said."""
    for message in response.messages:
        if _function_calls(message):
            kept = [one for one in message.contents if one.type != "function_call"]
            message.contents = kept if message.text else [*kept, Content.from_text(decision.note)]
    return response


def _stream_without_calls(decision: Decision) -> Callable[[ChatResponseUpdate], ChatResponseUpdate]:
    """Return a hook that does the same with the pieces of a stream."""
    said = False

    def changed(update: ChatResponseUpdate) -> ChatResponseUpdate:
        nonlocal said
        said = said or bool(update.text)
        kept = [one for one in update.contents if one.type != "function_call"]
        if len(kept) < len(update.contents):
            update.contents = kept if said else [*kept, Content.from_text(decision.note)]
            said = True
        return update

    return changed


def _answer(response: ChatResponse[Any]) -> Answer:
    used: Mapping[str, Any] = response.usage_details or {}
    usage = {
        "input_tokens": used.get("input_token_count") or 0,
        "output_tokens": used.get("output_token_count") or 0,
        "cached_tokens": used.get("cache_read_input_token_count") or 0,
        "cache_write_tokens": used.get("cache_creation_input_token_count") or 0,
        "reasoning_tokens": used.get("reasoning_output_token_count") or 0,
    }
    calls = [(name, arguments) for one in response.messages for _, name, arguments in _function_calls(one)]
    return make_answer(200, response.text, calls, usage if used else None)
