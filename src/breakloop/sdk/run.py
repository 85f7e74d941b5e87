"""`Run`: the steps of one agent. A step is what the model did and what came back. Each step is checked as the chat
request that would follow from it; the next step, or the end of the run, settles it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, Final, Self

from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Decision
from breakloop.sdk.context import AgentContext
from breakloop.sdk.core import IO, Core, run_blocking
from breakloop.sdk.requests import ToolInvocation, Transcript, arguments_text, chat_call, make_answer, result_text

_BLOCKED_MAX: Final = 64


class BlockedCalls:
    """The tool calls of a run that were denied, each with its result.

    A blocked call is not made again. It is checked once more with the result that it had, and made when that check
    allows it. If it then returns the same result, that step has been counted already.
    """

    def __init__(self) -> None:
        self._results: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._rechecked: OrderedDict[tuple[str, str], tuple[str, Decision]] = OrderedDict()

    def result_of(self, call: ToolInvocation) -> str | None:
        """Return the result of a blocked call; None if the call is not blocked."""
        return self._results.get(_key(call))

    def add(self, call: ToolInvocation, result: str) -> None:
        _put(self._results, _key(call), result)

    def release(self, call: ToolInvocation, result: str, decision: Decision) -> None:
        """Unblock a call that the new check with its earlier result allows."""
        self._results.pop(_key(call), None)
        _put(self._rechecked, _key(call), (result, decision))

    def take_recheck(self, call: ToolInvocation, result: str) -> Decision | None:
        """Return the decision of the new check if the call returned the same result as before."""
        earlier, decision = self._rechecked.pop(_key(call), (None, None))
        return decision if earlier == result else None


def _key(call: ToolInvocation) -> tuple[str, str]:
    return call[0], arguments_text(call[1])


def _put(table: OrderedDict[tuple[str, str], Any], key: tuple[str, str], value: Any) -> None:
    table[key] = value
    while len(table) > _BLOCKED_MAX:
        table.popitem(last=False)


class Run:
    """One run of an agent, made by `Guard.run`. Report steps, or use it as a context manager for guarded tools:

        with guard.run(agent="planner") as run:
            decision = run.step(calls=[("search", {"q": "x"})], results=["nothing found"])

    No method raises for a denial: look at the decision, or pass it to `Guard.enforce`.
    """

    def __init__(
        self,
        core: Core,
        context: AgentContext,
        current: ContextVar[Run | None],
        *,
        model: str = "",
        task: str = "",
    ) -> None:
        self._core = core
        self._context = context
        self._current = current
        self._tokens: list[Token[Run | None]] = []
        self._transcript = Transcript(model, task)
        self._last: Decision | None = None
        self._usage: Mapping[str, int] | None = None  # of the last step
        self._blocked = BlockedCalls()
        self._lock = threading.Lock()

    @property
    def agent(self) -> str:
        return self._context.agent

    @property
    def session(self) -> str:
        return self._context.session

    def __enter__(self) -> Self:
        self._tokens.append(self._current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._current.reset(self._tokens.pop())
        run_blocking(self._finish(self._core.blocking))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self._current.reset(self._tokens.pop())
        await self._finish(self._core.asynchronous)

    def step(
        self,
        calls: Sequence[ToolInvocation] = (),
        results: Sequence[Any] = (),
        *,
        text: str = "",
        user: str = "",
        usage: Mapping[str, int] | None = None,
    ) -> Decision:
        """Report a step and return the decision about going on.

        `calls` are (name, arguments). `results` are what they returned, in the same order; an exception is a failed
        result. `text` is what the model wrote, `user` what a person or the program replied to it.
        """
        return run_blocking(self._step(self._core.blocking, calls, results, text=text, user=user, usage=usage))

    async def astep(
        self,
        calls: Sequence[ToolInvocation] = (),
        results: Sequence[Any] = (),
        *,
        text: str = "",
        user: str = "",
        usage: Mapping[str, int] | None = None,
    ) -> Decision:
        """Like `step`, on an event loop."""
        return await self._step(self._core.asynchronous, calls, results, text=text, user=user, usage=usage)

    def before_tool(self, name: str, arguments: Any) -> Decision:
        """Decide about a tool call that is about to be made. Only a call that was blocked is checked; if the decision
        denies it, do not make it."""
        return run_blocking(self._before_tool(self._core.blocking, (name, arguments)))

    async def abefore_tool(self, name: str, arguments: Any) -> Decision:
        """Like `before_tool`, on an event loop."""
        return await self._before_tool(self._core.asynchronous, (name, arguments))

    def after_tool(self, name: str, arguments: Any, result: Any, usage: Mapping[str, int] | None = None) -> Decision:
        """Report a tool call with its result as a step, and sleep for a throttle. A denial blocks the call."""
        return run_blocking(self._after_tool(self._core.blocking, (name, arguments), result, usage))

    async def aafter_tool(
        self, name: str, arguments: Any, result: Any, usage: Mapping[str, int] | None = None
    ) -> Decision:
        """Like `after_tool`, on an event loop."""
        return await self._after_tool(self._core.asynchronous, (name, arguments), result, usage)

    def begin(self) -> Decision:
        """Decide about the first request of the run, before any step."""
        self._last = decision = self._core.decide(chat_call(self._transcript.opening(), self._context))
        return decision

    def add_answer(self, text: str = "", usage: Mapping[str, int] | None = None) -> None:
        """Record what the model wrote when no step follows from it yet, because it may be its last answer."""
        with self._lock:
            last, self._last = self._last, None
            used, self._usage = self._usage or {}, None
        if last is not None:
            both = {name: used.get(name, 0) + (usage or {}).get(name, 0) for name in {*used, *(usage or {})}}
            self._core.settle(last, make_answer(200, text, usage=both))

    async def _step(
        self,
        io: IO,
        calls: Sequence[ToolInvocation],
        results: Sequence[Any],
        *,
        text: str = "",
        user: str = "",
        usage: Mapping[str, int] | None = None,
    ) -> Decision:
        call, last, answer = self._record(calls, results, text, user, usage)
        if last is not None:
            await io.settle(last, answer)
        self._last = decision = await io.decide(call)
        return decision

    async def _before_tool(self, io: IO, call: ToolInvocation) -> Decision:
        result = self._blocked.result_of(call)
        if result is None:
            return Decision()
        decision = await self._step(io, [call], [result])
        if decision.allowed:
            self._blocked.release(call, result, decision)
        return decision

    async def _after_tool(
        self, io: IO, call: ToolInvocation, result: Any, usage: Mapping[str, int] | None = None
    ) -> Decision:
        decision = self._blocked.take_recheck(call, result_text(result))
        if decision is None:
            decision = await self._step(io, [call], [result], usage=usage)
        elif usage:
            self._usage = usage
        if not decision.allowed:
            self._blocked.add(call, result_text(result))
        await io.wait(decision)
        return decision

    async def _finish(self, io: IO) -> None:
        last, self._last = self._last, None
        used, self._usage = self._usage, None
        if last is not None:
            await io.settle(last, make_answer(usage=used))

    def _record(
        self,
        calls: Sequence[ToolInvocation],
        results: Sequence[Any],
        text: str,
        user: str,
        usage: Mapping[str, int] | None,
    ) -> tuple[Call, Decision | None, Answer]:
        """Return the step as a request, and the last decision with its answer, which is what the model did now. Tokens
        are charged to the step that they are reported with, so that those of the first step are not lost."""
        with self._lock:
            body = self._transcript.add(calls, results, text, user)
            last, self._last = self._last, None
            used, self._usage = self._usage, usage
        return chat_call(body, self._context), last, make_answer(200, text, calls, used)
