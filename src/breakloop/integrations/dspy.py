"""DSPy: a language model that checks each request of a program.

    from breakloop.integrations.dspy import guard_lm
    dspy.configure(lm=guard_lm(dspy.LM("openai/gpt-5")))

Callbacks of DSPy cannot stop a program, and the errors of tools become observations, so the language model is guarded.
`ReAct` sends its whole run as one message, whose steps are read. A notice for the model is added to the end of the
request. A denial ends the program with `LoopDetectedError` or `DeniedError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dspy import BaseLM

from breakloop.model.call import Answer
from breakloop.model.decision import Decision, marked
from breakloop.sdk.guard import Guard
from breakloop.sdk.model_calls import Conversation, Message, ModelCalls, text_message
from breakloop.sdk.requests import make_answer

__all__ = ["guard_lm"]

L = TypeVar("L", bound=BaseLM)


def guard_lm(lm: L, guard: Guard | None = None, *, agent: str = "") -> L:
    """Return a copy of a language model whose requests are checked:

        dspy.configure(lm=guard_lm(dspy.LM("openai/gpt-5"), agent="support-bot"))

    It does not know the program that it serves: requests belong together by what they contain. To name a conversation,
    use `with breakloop.agent(session=...)` around the call of the program.
    """
    kind = type(lm)
    made: L = lm.copy()
    # The names of the class stay, so that a saved program loads with a language model of the usual class.
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made.__class__ = type(kind.__name__, (_GuardedLM, kind), named)
    made.breakloop_calls = ModelCalls(guard, agent)
    return made


class _GuardedLM:
    """Stands before the class of a language model."""

    breakloop_calls: ModelCalls
    model: str
    history: list[Any]

    def __call__(self, prompt: Any = None, *, messages: Any = None, **more: Any) -> Any:
        ask: Callable[..., Any] = super().__call__  # type: ignore[misc]  # of the class behind this one
        given = _messages(prompt, messages)
        if given is None:  # a typed request: it is not read
            return ask(prompt, messages=messages, **more)

        def make(decision: Decision) -> Any:
            if decision.notice:
                return ask(messages=_noted(given, decision), **_settings(more, decision))
            return ask(prompt, messages=messages, **more)

        return self.breakloop_calls.call(lambda: self._read(given, more), make, self._answer)

    async def acall(self, prompt: Any = None, *, messages: Any = None, **more: Any) -> Any:
        ask: Callable[..., Any] = super().acall  # type: ignore[misc]  # as above
        given = _messages(prompt, messages)
        if given is None:
            return await ask(prompt, messages=messages, **more)

        async def make(decision: Decision) -> Any:
            if decision.notice:
                return await ask(messages=_noted(given, decision), **_settings(more, decision))
            return await ask(prompt, messages=messages, **more)

        return await self.breakloop_calls.acall(lambda: self._read(given, more), make, self._answer)

    def _read(self, messages: list[Message], more: dict[str, Any]) -> Conversation:
        declared = [str((tool.get("function") or tool).get("name") or "") for tool in more.get("tools") or ()]
        return Conversation(messages, self.model.rpartition("/")[2], declared if all(declared) else ())

    def _answer(self, outputs: Any) -> Answer:
        last: Any = self.history[-1] if self.history else {}
        used = (last.get("usage") if isinstance(last, dict) else None) or {}
        usage = {
            "input_tokens": used.get("prompt_tokens") or 0,
            "output_tokens": used.get("completion_tokens") or 0,
        }
        text = "\n".join(_texts(outputs))
        return make_answer(200, text, (), usage if used else None)


def _messages(prompt: Any, messages: Any) -> list[Message] | None:
    if messages:
        return list(messages)
    return [text_message("user", prompt)] if isinstance(prompt, str) else None


def _noted(messages: list[Message], decision: Decision) -> list[Message]:
    return [*messages, text_message("user", marked(decision.notice))]


def _settings(more: dict[str, Any], decision: Decision) -> dict[str, Any]:
    return {**more, "tool_choice": "none"} if decision.landed and more.get("tools") else more


def _texts(outputs: Any) -> Iterator[str]:
    for one in outputs if isinstance(outputs, list) else ():
        yield str((one.get("text") if isinstance(one, dict) else one) or "")
