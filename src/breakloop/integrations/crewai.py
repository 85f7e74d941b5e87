"""Hooks for CrewAI:

    from breakloop.integrations.crewai import GuardCrewHooks
    with GuardCrewHooks(): crew.kickoff()

Each tool call with its result is a step. A model call that follows no tool call is checked by itself, so each model
call is checked once. A warning is added to the result of the tool. An agent that is landed answers without tools, as at
the end of its `max_iter`. A denial stops the crew with CrewAI's `HookAborted`, which is a `breakloop.LoopDetectedError`
too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, Literal, Self, TypeVar

from crewai import hooks as crewai_hooks

from breakloop import exceptions
from breakloop.model.decision import Decision, marked
from breakloop.sdk.context import AgentContext
from breakloop.sdk.guard import Guard
from breakloop.sdk.requests import ToolInvocation, arguments_text
from breakloop.sdk.toolkit import BoundedDict, Run, steps_guard, toolkit_of

__all__ = ["GuardCrewHooks"]

T = TypeVar("T")

_TASKS_MAX: Final = 1000


# CrewAI logs the errors of hooks and goes on, except for `HookAborted`. Programs catch the breakloop base classes.
class _DeniedError(exceptions.DeniedError, crewai_hooks.HookAborted):
    def __init__(self, decision: Decision) -> None:
        crewai_hooks.HookAborted.__init__(self, decision.message, "breakloop")
        super().__init__(decision)


class _LoopDetectedError(_DeniedError, exceptions.LoopDetectedError):
    pass


def _hook(method: Callable[[GuardCrewHooks, Any], T]) -> Callable[[GuardCrewHooks, Any], T | None]:
    @wraps(method)
    def called(self: GuardCrewHooks, context: Any) -> T | None:
        if self._installed:
            with self._toolkit.fail_open():
                return method(self, context)
        return None

    return called


class GuardCrewHooks:
    """Guards every crew and agent of the process, inside a `with` block or between `install()` and `remove()`:

        with GuardCrewHooks(on_block="return"):
            crew.kickoff()

    With `on_block="return"` the crew is not stopped: the model reads why its call is blocked as the result of the tool,
    and the call is not made again.
    """

    def __init__(self, guard: Guard | None = None, *, on_block: Literal["raise", "return"] = "raise") -> None:
        if on_block not in {"raise", "return"}:
            raise ValueError('on_block must be "raise" or "return"')
        self.guard = guard or steps_guard()
        self._toolkit = toolkit_of(self.guard)
        self._returns = on_block == "return"
        self._installed = 0
        self._lock = threading.Lock()
        self._tasks: BoundedDict[tuple[str, str], _AgentTask] = BoundedDict(_TASKS_MAX)
        self._landing: BoundedDict[int, _AgentTask] = BoundedDict(_TASKS_MAX)  # by model object: it answers next
        self._used: BoundedDict[int, tuple[int, int]] = BoundedDict(_TASKS_MAX)  # tokens reported, by model object
        self._hooks = {
            "before_llm_call": self.before_llm,
            "after_llm_call": self.after_llm,
            "before_tool_call": self.before_tool,
            "after_tool_call": self.after_tool,
        }

    def __enter__(self) -> Self:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def install(self) -> Self:
        """Guard what is started after this call."""
        with self._lock:
            self._installed += 1
            if self._installed == 1:
                for name, hook in self._hooks.items():
                    getattr(crewai_hooks, f"register_{name}_hook")(hook)
        return self

    def remove(self) -> None:
        """Stop guarding, after as many calls as of `install`. Agents may keep the hooks, which then do nothing."""
        with self._lock:
            self._installed -= 1
            if self._installed < 0:
                self._installed = 0
            elif self._installed == 0:
                for name, hook in self._hooks.items():
                    getattr(crewai_hooks, f"unregister_{name}_hook")(hook)

    # -- called by CrewAI

    @_hook
    def before_llm(self, context: Any) -> None:
        """Check a model call, unless the results that it is about were checked already."""
        if context.executor is None:  # outside an agent's loop
            if id(context.llm) in self._landing:  # the answer that CrewAI asks for at the end of an agent's loop
                return
            request = {"model": _model(context.llm), "messages": list(context.messages)}
            decision = self.guard.check(request, agent=_role(context.agent))
            self._toolkit.settle(decision)
        else:
            task = self._task(context, begins=_opening(context.messages))
            task.executor = weakref.ref(context.executor)
            if task.is_checked:  # with the results that the model reads now
                task.is_checked = False
                return
            decision = task.check_text(context.messages, self._usage(context.llm))
            if decision.landed:
                task.land()
        self._raise_denial(decision)
        self.guard.wait(decision)
        if decision.notice:
            _append(context.messages, marked(decision.notice))

    @_hook
    def after_llm(self, context: Any) -> None:
        """Record the text of the model. Its tool calls are recorded with their results."""
        task = self._landing.pop(id(context.llm), None) if context.executor is None else self._task(context)
        if task is not None:
            task.run.add_answer(str(context.response or ""), self._usage(context.llm))

    @_hook
    def before_tool(self, context: Any) -> bool | None:
        """Return False if the call is blocked."""
        task, call = self._task(context), _tool_call(context)
        decision = task.run.before_tool(*call)
        if decision.allowed:
            return None
        task.denied[arguments_text(call)] = decision
        return False

    @_hook
    def after_tool(self, context: Any) -> str | None:
        """Check a tool call with its result; the text that is returned replaces the result. CrewAI calls this for a
        call that `before_tool` blocked, too."""
        task, call = self._task(context), _tool_call(context)
        task.is_checked = True
        result = context.tool_result or ""
        decision = task.denied.pop(arguments_text(call), None)
        if decision is None:
            usage = self._usage(getattr(context.agent, "llm", None))
            decision = task.run.after_tool(*call, result, usage)
        if not decision.allowed and self._returns:
            return decision.notice
        self._raise_denial(decision)
        executor = task.land() if decision.landed else None
        if executor is not None:
            self._landing[id(executor.llm)] = task
        return f"{result}\n\n{marked(decision.notice)}" if decision.notice else None

    def _raise_denial(self, decision: Decision) -> None:
        if not decision.allowed:
            raise _LoopDetectedError(decision) if decision.is_loop else _DeniedError(decision)

    # -- agents and tasks

    def _task(self, context: Any, *, begins: list[Any] | None = None) -> _AgentTask:
        """Return the agent's work on a task. A new conversation (`begins`) starts a new run."""
        agent, task = context.agent, context.task
        key = (str(getattr(agent, "id", id(agent))), str(getattr(task, "id", "")))
        with self._lock:
            found = self._tasks.get(key)
            if found is None or begins is not None:
                model, opening = _model(getattr(agent, "llm", None)), _text(begins[-1]) if begins else ""
                run = self._toolkit.new_run(AgentContext(_role(agent)), model=model, task=opening)
                found = _AgentTask(run)
            self._tasks[key] = found
        return found

    def _usage(self, llm: Any) -> Mapping[str, int]:
        """Return the tokens that a model object has used since the last call of this method."""
        summary = getattr(llm, "get_token_usage_summary", None)
        if not callable(summary):
            return {}
        used = summary()
        now = (used.prompt_tokens, used.completion_tokens)
        with self._lock:
            before = self._used.get(id(llm), now)
            self._used[id(llm)] = now
        return {"input_tokens": max(now[0] - before[0], 0), "output_tokens": max(now[1] - before[1], 0)}


@dataclass
class _AgentTask:
    """The work of an agent on a task."""

    run: Run
    has_begun: bool = False
    is_checked: bool = False  # the next model call, with the results that it is about
    denied: dict[str, Decision] = field(default_factory=dict)  # between the hooks before and after a tool call
    executor: Callable[[], Any] = lambda: None

    def land(self) -> Any:
        """End the agent's loop as `max_iter` does: CrewAI asks for the answer without offering tools. Returns what runs
        the loop; None if it has no such number."""
        executor = self.executor()
        most = getattr(executor, "max_iter", None)
        if most is None:
            return None
        executor.iterations = most
        return executor

    def check_text(self, messages: list[Any], usage: Mapping[str, int]) -> Decision:
        """Check a model call that follows a text instead of a tool result: the first one, or one after a reply."""
        if not self.has_begun:
            self.has_begun = True
            return self.run.begin()
        answers = [index for index, one in enumerate(messages) if one.get("role") == "assistant"]
        text = _text(messages[answers[-1]]) if answers else ""
        replies = messages[answers[-1] + 1 :] if answers else messages[-1:]
        return self.run.step(text=text, user="\n".join(map(_text, replies)), usage=usage)


def _opening(messages: list[Any]) -> list[Any] | None:
    """Return the messages if they begin a conversation: none of them is the model's."""
    return messages if messages and all(one.get("role") in {"system", "user"} for one in messages) else None


def _append(messages: list[Any], note: str) -> None:
    """Add a note to the end of the conversation; to its last message if that is a text of the user."""
    last = messages[-1] if messages else {}
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        messages[-1] = {**last, "content": f"{last['content']}\n\n{note}"}
    else:
        messages.append({"role": "user", "content": note})


def _tool_call(context: Any) -> ToolInvocation:
    return str(context.tool_name), dict(context.tool_input or {})


def _text(message: Any) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else arguments_text(content) if content else ""


def _role(agent: Any) -> str:
    return str(getattr(agent, "role", "") or "").strip()


def _model(llm: Any) -> str:
    return str(getattr(llm, "model", "") or "")
