"""Haystack: hooks that check each model request of an agent.

    from breakloop.integrations.haystack import guard_hooks
    agent = Agent(chat_generator=OpenAIChatGenerator(), tools=[search], hooks=guard_hooks())

A notice for the model is added to the conversation. An agent that is landed is asked for its answer: hooks cannot
switch tools off, so calls in that answer are removed. A denial ends the run with `LoopDetectedError` or `DeniedError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from haystack.components.agents.state import State, replace_values
from haystack.dataclasses import ChatMessage
from haystack.hooks import Hook

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

__all__ = ["guard_hooks"]


def guard_hooks(guard: Guard | None = None, *, agent: str = "") -> dict[Any, list[Hook]]:
    """Return the hooks for `Agent(hooks=...)`; add your own to the lists:

        agent = Agent(chat_generator=generator, tools=[search], hooks=guard_hooks(agent="support-bot"))

    Requests belong together by what they contain. To name a conversation, use `with breakloop.agent(session=...)`
    around the run.
    """
    calls = ModelCalls(guard, agent)
    after = _AfterModel(calls)
    return {"before_llm": [_BeforeModel(calls)], "before_tool": [after], "on_exit": [after]}


class _Hook:
    def __init__(self, calls: ModelCalls) -> None:
        self._calls = calls

    def to_dict(self) -> dict[str, Any]:
        raise NotImplementedError("breakloop's hooks cannot be saved: pass guard_hooks() to the agent that you load")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> _Hook:
        raise NotImplementedError("breakloop's hooks cannot be loaded: pass guard_hooks() to the agent")


class _BeforeModel(_Hook):
    def run(self, state: State) -> None:
        self._apply(state, self._calls.begin(id(state), lambda: _read(state)))

    async def run_async(self, state: State) -> None:
        self._apply(state, await self._calls.abegin(id(state), lambda: _read(state)))

    def _apply(self, state: State, decision: Decision) -> None:
        if state.data.get("stop_run") is None:
            self._calls.enforce(decision)
        if decision.notice:
            state.set("messages", [ChatMessage.from_user(marked(decision.notice))])


class _AfterModel(_Hook):
    def run(self, state: State) -> None:
        self._apply(state, self._calls.end(id(state), lambda: _answer(state.data["messages"][-1])))

    async def run_async(self, state: State) -> None:
        self._apply(state, await self._calls.aend(id(state), lambda: _answer(state.data["messages"][-1])))

    def _apply(self, state: State, decision: Decision) -> None:
        """Remove the calls of an agent that is landed, and end its run with what is said."""
        last = state.data["messages"][-1]
        if decision.landed and last.tool_calls:
            said = ChatMessage.from_assistant(last.text or decision.note, meta=last.meta)
            state.set("messages", [*state.data["messages"][:-1], said], handler_override=replace_values)
            state.set("stop_run", "landed")


def _read(state: State) -> Conversation:
    messages: list[ChatMessage] = state.data["messages"]
    tools = [tool.name for tool in state.data.get("tools") or ()]
    model = next((one.meta["model"] for one in reversed(messages) if one.meta.get("model")), "")
    return Conversation((made for one in messages for made in _messages(one)), str(model), tools)


def _messages(message: ChatMessage) -> Iterator[Message]:
    role = str(message.role.value)
    if role == "assistant":
        made = [(one.id or "", one.tool_name, one.arguments) for one in message.tool_calls]
        yield assistant_message(message.text or "", made)
    elif role == "tool":
        for one in message.tool_call_results:
            yield result_message(one.origin.id or "", one.result, failed=one.error)
    else:
        yield text_message(role, "\n".join(message.texts))


def _answer(message: ChatMessage) -> Answer:
    used = message.meta.get("usage") or {}
    usage = {"input_tokens": used.get("prompt_tokens") or 0, "output_tokens": used.get("completion_tokens") or 0}
    calls = [(one.tool_name, one.arguments) for one in message.tool_calls]
    return make_answer(200, message.text or "", calls, usage if used else None)
