"""Hooks for CrewAI: `with GuardCrewHooks(): crew.kickoff()`. A tool's call with its result is a step, as in `tools`; a
model call that no tool's call came before is judged by itself. So each model call is judged once.

warned   the note for the model stands at the end of the tool's result
blocked  the crew stops with CrewAI's `HookAborted`, which is a `LoopDetectedError` too
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Self

from crewai import hooks as crewai_hooks

from breakloop import exceptions
from breakloop.model.call import marked
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import STEPS_ONLY, arguments_text
from breakloop.sdk.guard import Guard
from breakloop.sdk.run import Made, Run, result_text

_KEPT_MAX: Final = 1000
_SOURCE: Final = "breakloop"


# CrewAI logs what a hook raises and goes on, unless it is a `HookAborted`. Programs catch `breakloop.DeniedError` and
# `breakloop.LoopDetectedError`, which these are.
class _DeniedError(exceptions.DeniedError, crewai_hooks.HookAborted):
    def __init__(self, decision: Decision) -> None:
        crewai_hooks.HookAborted.__init__(self, decision.message, _SOURCE)
        exceptions.DeniedError.__init__(self, decision)


class _LoopDetectedError(exceptions.LoopDetectedError, crewai_hooks.HookAborted):
    def __init__(self, decision: Decision) -> None:
        crewai_hooks.HookAborted.__init__(self, decision.message, _SOURCE)
        exceptions.LoopDetectedError.__init__(self, decision)


class GuardCrewHooks:
    """Guards every crew and agent of the process while it is installed: by `with`, or by `install` and `remove`.

    `on_block="return"` does not stop the crew: the model reads as the tool's result why it is blocked, and the call is
    not carried out again.
    """

    def __init__(self, guard: Guard | None = None, *, on_block: Literal["raise", "return"] = "raise") -> None:
        if on_block not in {"raise", "return"}:
            raise ValueError('on_block is "raise" or "return"')
        self.guard = guard or Guard(STEPS_ONLY)
        self._returns = on_block == "return"
        self._installed = 0
        self._lock = threading.Lock()
        self._doing: OrderedDict[tuple[str, str], _AgentTask] = OrderedDict()
        self._used: OrderedDict[int, tuple[int, int]] = OrderedDict()  # tokens by model object, as far as they are told
        self._registered = (
            (crewai_hooks.register_before_llm_call_hook, crewai_hooks.unregister_before_llm_call_hook, self.before_llm),
            (crewai_hooks.register_after_llm_call_hook, crewai_hooks.unregister_after_llm_call_hook, self.after_llm),
            (
                crewai_hooks.register_before_tool_call_hook,
                crewai_hooks.unregister_before_tool_call_hook,
                self.before_tool,
            ),
            (crewai_hooks.register_after_tool_call_hook, crewai_hooks.unregister_after_tool_call_hook, self.after_tool),
        )

    def __enter__(self) -> Self:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def install(self) -> Self:
        """Guard what is started from now on."""
        with self._lock:
            self._installed += 1
            if self._installed == 1:
                for register, _, hook in self._registered:
                    register(hook)
        return self

    def remove(self) -> None:
        """Stop guarding, once this was called as often as `install`. Agents may have kept the hooks; they are idle."""
        with self._lock:
            self._installed -= 1
            if self._installed < 0:
                self._installed = 0
            elif self._installed == 0:
                for _, unregister, hook in self._registered:
                    unregister(hook)

    # -- what CrewAI calls

    def before_llm(self, context: Any) -> None:
        """Judge a model call, unless the results that it is about were judged already."""
        self._safely(self._before_llm, context)

    def after_llm(self, context: Any) -> None:
        """Take note of what the model said, in words: calls of tools are told with their results."""
        self._safely(self._after_llm, context)

    def before_tool(self, context: Any) -> bool | None:
        """Do not carry out a call that is blocked."""
        return False if self._safely(self._before_tool, context) else None

    def after_tool(self, context: Any) -> str | None:
        """Judge a call of a tool with its result; the text replaces that."""
        told: str | None = self._safely(self._after_tool, context)
        return told

    def _safely(self, hook: Callable[[Any], Any], context: Any) -> Any:
        if not self._installed:
            return None
        with self.guard.fail_open():
            return hook(context)
        return None

    def _before_llm(self, context: Any) -> None:
        if context.executor is None:  # asked outside of an agent's loop
            asked = {"model": _model(context.llm), "messages": list(context.messages)}
            decision = self.guard.check(asked, agent=_role(context.agent))
            self.guard.settle(decision)
        else:
            doing = self._of(context, begins=_opening(context.messages))
            if doing.judged:  # with the results that the model is to read now
                doing.judged = False
                return
            decision = doing.step_in_words(context.messages, self._usage(context.llm))
        self._enforce(decision)
        if decision.notice:
            _append(context.messages, marked(decision.notice))

    def _after_llm(self, context: Any) -> None:
        if context.executor is not None:
            self._of(context).run.answered(str(context.response or ""), self._usage(context.llm))

    def _before_tool(self, context: Any) -> bool:
        doing, made = self._of(context), _made(context)
        before = doing.run.held(made)
        if before is None:
            return False
        doing.asked[_key(made)] = decision = doing.run.step([made], [before])
        return not decision.allowed

    def _after_tool(self, context: Any) -> str | None:
        doing, made = self._of(context), _made(context)
        doing.judged = True
        decision = doing.asked.pop(_key(made), None)
        if decision is not None and not decision.allowed:
            return decision.notice
        result = context.tool_result or ""
        if decision is None or result_text(result) != doing.run.held(made):
            usage = self._usage(getattr(context.agent, "llm", None))
            decision = doing.run.step([made], [result], usage=usage)
        doing.run.release(made)
        if not decision.allowed and self._returns:
            doing.run.hold(made, result_text(result))
            return decision.notice
        self._enforce(decision)
        return f"{result}\n\n{marked(decision.notice)}" if decision.notice else None

    def _enforce(self, decision: Decision) -> None:
        if not decision.allowed:
            raise _LoopDetectedError(decision) if decision.is_loop else _DeniedError(decision)
        self.guard.wait(decision)

    # -- whose call it is

    def _of(self, context: Any, *, begins: list[Any] | None = None) -> _AgentTask:
        """An agent's work on a task; begun anew where its conversation is."""
        agent, task = context.agent, context.task
        key = (str(getattr(agent, "id", id(agent))), str(getattr(task, "id", "")))
        with self._lock:
            doing = self._doing.get(key)
            if doing is None or begins is not None:
                model, opening = _model(getattr(agent, "llm", None)), _text(begins[-1]) if begins else ""
                doing = _AgentTask(self.guard.run(_role(agent), model=model, task=opening))
                self._doing[key] = doing
            self._doing.move_to_end(key)
            if len(self._doing) > _KEPT_MAX:
                self._doing.popitem(last=False)
        return doing

    def _usage(self, llm: Any) -> Mapping[str, int]:
        """Tokens that this model object has used since it was asked last, whoever had it do so: none is told twice."""
        summary = getattr(llm, "get_token_usage_summary", None)
        if not callable(summary):
            return {}
        used = summary()
        now = (used.prompt_tokens, used.completion_tokens)
        with self._lock:
            before = self._used.get(id(llm), now)
            self._used[id(llm)] = now
            if len(self._used) > _KEPT_MAX:
                self._used.popitem(last=False)
        return {"input_tokens": max(now[0] - before[0], 0), "output_tokens": max(now[1] - before[1], 0)}


class _AgentTask:
    """An agent's work on a task."""

    __slots__ = ("asked", "begun", "judged", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.begun = False
        self.judged = False  # what the model is asked about next
        self.asked: dict[tuple[str, str], Decision] = {}  # about calls that were blocked, and are made again

    def step_in_words(self, messages: list[Any], usage: Mapping[str, int]) -> Decision:
        """A model call after words instead of a tool's result: the first one, or one that somebody asked back for."""
        if not self.begun:
            self.begun = True
            return self.run.begin()
        after = [index for index, one in enumerate(messages) if one.get("role") == "assistant"]
        said = _text(messages[after[-1]]) if after else ""
        back = messages[after[-1] + 1 :] if after else messages[-1:]
        return self.run.step(text=said, user="\n".join(map(_text, back)), usage=usage)


def _opening(messages: list[Any]) -> list[Any] | None:
    """The messages where they are a conversation's beginning: nothing in them is the model's."""
    return messages if messages and all(one.get("role") in {"system", "user"} for one in messages) else None


def _append(messages: list[Any], note: str) -> None:
    """Put a note at the end of the conversation, into a text of the user's where that ends it."""
    last = messages[-1] if messages else {}
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        messages[-1] = {**last, "content": f"{last['content']}\n\n{note}"}
    else:
        messages.append({"role": "user", "content": note})


def _made(context: Any) -> Made:
    return str(context.tool_name), dict(context.tool_input or {})


def _key(made: Made) -> tuple[str, str]:
    return made[0], arguments_text(made[1])


def _text(message: Any) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else arguments_text(content) if content else ""


def _role(agent: Any) -> str:
    return str(getattr(agent, "role", "") or "").strip()


def _model(llm: Any) -> str:
    return str(getattr(llm, "model", "") or "")
