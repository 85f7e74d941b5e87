"""Strands Agents: hooks that check each model request of an agent.

    from breakloop.integrations.strands import GuardHooks
    agent = Agent(tools=[search], hooks=[GuardHooks()])

A notice for the model is added to the end of the request. An agent that is landed is asked for its answer: Strands has
no way to switch tools off, so calls in that answer are removed. A denial ends the run with `LoopDetectedError` or
`DeniedError`.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from strands.hooks import AgentInitializedEvent, HookProvider, HookRegistry
from strands.middleware import InvokeModelContext, InvokeModelStage
from strands.types.events import ModelStopReason
from strands.types.exceptions import EventLoopException

from breakloop import exceptions
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
from breakloop.sdk.toolkit import failed_answer

__all__ = ["GuardHooks"]


# Strands raises an `EventLoopException` as it is, and wraps any other error into one. Programs catch the breakloop base
# classes.
class _DeniedError(exceptions.DeniedError, EventLoopException):
    def __init__(self, decision: Decision, text: str = "") -> None:
        super().__init__(decision, text)
        EventLoopException.__init__(self, self)


class _LoopDetectedError(_DeniedError, exceptions.LoopDetectedError):
    pass


class GuardHooks(HookProvider):
    """Checks the model requests of an agent, streamed or not:

        agent = Agent(name="support-bot", tools=[search], hooks=[GuardHooks()])

    A conversation is that of an agent object: its session, if it has a session manager.
    """

    def __init__(self, guard: Guard | None = None, *, agent: str = "") -> None:
        self._calls = ModelCalls(guard, agent)
        self.guard = self._calls.guard
        self._sessions: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def register_hooks(self, registry: HookRegistry, **_: Any) -> None:
        registry.add_callback(AgentInitializedEvent, self._started)

    def _started(self, event: AgentInitializedEvent) -> None:
        event.agent.add_middleware(InvokeModelStage, self._model_call)

    async def _model_call(
        self, context: InvokeModelContext, next_fn: Callable[[InvokeModelContext], AsyncIterator[Any]]
    ) -> AsyncIterator[Any]:
        decision = await self._calls.abegin(id(context), lambda: self._read(context))
        if not decision.allowed:
            raise _LoopDetectedError(decision) if decision.is_loop else _DeniedError(decision)
        answer: Answer | None = None
        try:
            async for event in next_fn(_with_note(context, decision)):
                if isinstance(event, ModelStopReason):
                    with self._calls.toolkit.fail_open():
                        answer = _answer(event)
                        event = _without_calls(event, decision) if decision.landed else event  # noqa: PLW2901
                yield event
        except Exception as error:
            answer = failed_answer(error)
            raise
        finally:
            ended = answer or make_answer()
            await self._calls.aend(id(context), lambda: ended)

    def _read(self, context: InvokeModelContext) -> Conversation:
        agent: Any = context.agent
        manager = getattr(agent, "_session_manager", None)
        session = getattr(manager, "session_id", None) or self._sessions.setdefault(
            agent, f"agent-{secrets.token_hex(6)}"
        )
        config: Mapping[str, Any] = context.model.get_config()
        return Conversation(
            (message for one in _messages(context) for message in one),
            str(config.get("model_id") or ""),
            [spec["name"] for spec in context.tool_specs],
            str(getattr(agent, "name", "") or ""),
            str(session),
        )


def _messages(context: InvokeModelContext) -> Iterator[Iterator[Message]]:
    if context.system_prompt:
        yield iter([text_message("system", context.system_prompt)])
    for message in context.messages:
        yield _message(message["role"], message["content"])


def _message(role: str, blocks: list[Any]) -> Iterator[Message]:
    text = "\n".join(block["text"] for block in blocks if "text" in block)
    if role == "assistant":
        uses = [block["toolUse"] for block in blocks if "toolUse" in block]
        yield assistant_message(text, [(use["toolUseId"], use["name"], use["input"]) for use in uses])
        return
    for result in (block["toolResult"] for block in blocks if "toolResult" in block):
        parts = [part.get("text", part) for part in result["content"]]
        content = parts[0] if len(parts) == 1 else parts
        yield result_message(result["toolUseId"], content, failed=result.get("status") == "error")
    if text:
        yield text_message("user", text)


def _with_note(context: InvokeModelContext, decision: Decision) -> InvokeModelContext:
    """Return a request with the notice at its end: the last message is copied, and is the user's."""
    if not decision.notice or not context.messages:
        return context
    last = context.messages[-1]
    noted: Any = {**last, "content": [*last["content"], {"text": marked(decision.notice)}]}
    return context.replace(messages=[*context.messages[:-1], noted])


def _without_calls(event: ModelStopReason, decision: Decision) -> ModelStopReason:
    """Return the end of an answer without calls of tools: the run ends with what is said."""
    _, message, usage, metrics = event["stop"]
    said: list[Any] = [block for block in message["content"] if "toolUse" not in block]
    if not any(block.get("text") for block in said):
        said = [*said, {"text": decision.note}]
    return ModelStopReason("end_turn", {**message, "content": said}, usage, metrics)


def _answer(event: ModelStopReason) -> Answer:
    _, message, used, _ = event["stop"]
    uses = [block["toolUse"] for block in message["content"] if "toolUse" in block]
    text = "".join(block.get("text", "") for block in message["content"])
    usage = {
        "input_tokens": used["inputTokens"],
        "output_tokens": used["outputTokens"],
        "cached_tokens": used.get("cacheReadInputTokens", 0),
        "cache_write_tokens": used.get("cacheWriteInputTokens", 0),
    }
    return make_answer(200, text, [(use["name"], use["input"]) for use in uses], usage)
