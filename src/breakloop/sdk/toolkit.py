"""`Run`, the steps of one agent, and `Toolkit`, which makes runs: what integrations use of a `Guard`
(`breakloop.integrations` explains how to write one).

A step is what the model did and what came back. Each step is checked as the chat request that would follow from it; the
next step, or the end of the run, settles it.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, cast

from breakloop.clock import Clock
from breakloop.model.call import NO_ANSWER, Answer, Call
from breakloop.model.decision import Decision
from breakloop.sdk.context import UNNAMED, AgentContext, agent, current_agent
from breakloop.sdk.core import ANSWERED, IO, Backend, Core, Outcome, run_blocking, sync_and_async, wrap_function
from breakloop.sdk.requests import (
    STEPS_ONLY,
    ToolInvocation,
    Transcript,
    arguments_text,
    chat_call,
    make_answer,
    result_text,
)

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard

K = TypeVar("K")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_RUNS_MAX: Final = 1000
_BLOCKED_MAX: Final = 64


class BoundedDict(OrderedDict[K, T]):
    """Keeps the entries that were set last, `limit` at most."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: T) -> None:
        self.pop(key, None)  # so that it becomes the last one
        super().__setitem__(key, value)
        if len(self) > self._limit:
            self.popitem(last=False)


class Run:
    """One run of an agent, made by `Guard.run`. Report steps, or use it as a context manager for guarded tools:

        with guard.run(agent="planner") as run:
            decision = run.step(calls=[("search", {"q": "x"})], results=["nothing found"])

    No method raises for a denial: look at the decision, or pass it to `Guard.enforce`.
    """

    def __init__(self, toolkit: Toolkit, context: AgentContext, *, model: str = "", task: str = "") -> None:
        self._toolkit = toolkit
        self._context = context
        self._tokens: list[Token[Run | None]] = []
        self._transcript = Transcript(model, task)
        self._last: Decision | None = None
        self._usage: Mapping[str, int] | None = None  # of the last step
        # A call that was denied is not made again. It is checked once more with the result that it had, and made if
        # that check allows it. If it then returns the same result, the step has been counted already.
        self._blocked: BoundedDict[ToolInvocation, str] = BoundedDict(_BLOCKED_MAX)
        self._rechecked: BoundedDict[ToolInvocation, tuple[str, Decision]] = BoundedDict(_BLOCKED_MAX)
        self._lock = threading.Lock()

    @property
    def agent(self) -> str:
        return self._context.agent

    @property
    def session(self) -> str:
        return self._context.session

    def __enter__(self) -> Self:
        self._tokens.append(self._toolkit.current_run.set(self))
        return self

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def _leave(self, io: IO, *_: object) -> None:
        self._toolkit.current_run.reset(self._tokens.pop())
        last, self._last = self._last, None
        used, self._usage = self._usage, None
        if last is not None:
            await io.settle(last, make_answer(usage=used))

    __exit__, __aexit__ = sync_and_async(_leave)

    async def _step(
        self,
        io: IO,
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
        call, last, answer = self._record(calls, results, text, user, usage)
        if last is not None:
            await io.settle(last, answer)
        self._last = decision = await io.decide(call)
        return decision

    step, astep = sync_and_async(_step)

    async def _before_tool(self, io: IO, name: str, arguments: Any) -> Decision:
        """Decide about a tool call that is about to be made. Only a call that was blocked is checked; if the decision
        denies it, do not make it."""
        if not self._blocked:
            return Decision()
        key = name, arguments_text(arguments)
        result = self._blocked.get(key)
        if result is None:
            return Decision()
        decision = await self._step(io, [(name, arguments)], [result])
        if decision.allowed:
            self._blocked.pop(key, None)
            self._rechecked[key] = result, decision
        return decision

    before_tool, abefore_tool = sync_and_async(_before_tool)

    async def _after_tool(
        self, io: IO, name: str, arguments: Any, result: Any, usage: Mapping[str, int] | None = None
    ) -> Decision:
        """Report a tool call with its result as a step, and sleep for a throttle. A denial blocks the call."""
        key, text = (name, arguments_text(arguments)), result_text(result)
        earlier, decision = self._rechecked.pop(key, (None, None))
        if decision is None or earlier != text:
            decision = await self._step(io, [(name, arguments)], [result], usage=usage)
        elif usage:
            self._usage = usage
        if not decision.allowed:
            self._blocked[key] = text
        await io.wait(decision)
        return decision

    after_tool, aafter_tool = sync_and_async(_after_tool)

    def begin(self) -> Decision:
        """Decide about the first request of the run, before any step."""
        self._last = decision = self._toolkit.decide(chat_call(self._transcript.opening(), self._context))
        return decision

    def add_answer(self, text: str = "", usage: Mapping[str, int] | None = None) -> None:
        """Record what the model wrote when no step follows from it yet, because it may be its last answer."""
        with self._lock:
            last, self._last = self._last, None
            used, self._usage = self._usage or {}, None
        if last is not None:
            total = {name: used.get(name, 0) + (usage or {}).get(name, 0) for name in {*used, *(usage or {})}}
            self._toolkit.settle(last, make_answer(200, text, usage=total))

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


def failed_answer(error: BaseException) -> Answer:
    """Return the answer that the error of an SDK stands for: its HTTP status, or none."""
    status = getattr(error, "status_code", NO_ANSWER)
    return Answer(status if isinstance(status, int) else NO_ANSWER)


class GuardedCall(NamedTuple):
    """A call of a framework, and what to do around it."""

    call: Call | None  # None: it is made unchecked
    context: AgentContext  # in force while it is made
    denied: Callable[[Decision], Any]  # returns what stands for the result of a denied call, or raises
    answered: Callable[[Any], Answer]
    failed: Callable[[BaseException], Answer] = failed_answer


class Toolkit(Core):
    """Requests, steps and guarded calls of one `Guard`; `toolkit_of(guard)` returns it."""

    def __init__(self, backend: Backend, clock: Clock | None = None) -> None:
        super().__init__(backend, clock)
        self._own_session = f"guard-{secrets.token_hex(6)}"
        self._runs: BoundedDict[AgentContext, Run] = BoundedDict(_RUNS_MAX)
        self._lock = threading.Lock()
        self.current_run: ContextVar[Run | None] = ContextVar("breakloop_run", default=None)

    def new_run(self, context: AgentContext, *, model: str = "", task: str = "") -> Run:
        """Return a new run; if no session is named, it gets one of its own."""
        named = context.with_defaults(current_agent()).with_defaults(AgentContext("", f"run-{secrets.token_hex(6)}"))
        return Run(self, named, model=model, task=task)

    def run_for(self, context: AgentContext = UNNAMED, *, model: str = "") -> Run:
        """Return the run of the enclosing `with` block, or else the run of a session. The last 1000 are kept."""
        run = self.current_run.get()
        if run is not None and not context.session and context.agent in {"", run.agent}:
            return run
        named = context.with_defaults(current_agent()).with_defaults(AgentContext("", self._own_session))
        with self._lock:
            self._runs[named] = run = self._runs.get(named) or Run(self, named, model=model)
        return run

    def context(self) -> AgentContext:
        """Return the names of the enclosing run, or else of the enclosing `with agent(...)` block."""
        run = self.current_run.get()
        return current_agent() if run is None else run._context

    def call(self, guarded: GuardedCall, make: Callable[[Decision], T]) -> T:
        """Check a call and make it if it is allowed, or return what `denied` does. `make` gets the decision, for the
        notice that the model should read."""
        outcome = run_blocking(self._call(self.blocking, guarded, make))
        return cast("T", outcome.result())

    async def acall(self, guarded: GuardedCall, make: Callable[[Decision], Awaitable[T]]) -> T:
        """Like `call`, on an event loop."""
        outcome = await self._call(self.asynchronous, guarded, make)
        return cast("T", outcome.result())

    def wrap(self, function: F, prepare: Callable[..., tuple[GuardedCall, Callable[[Decision], Any]]]) -> F:
        """Return a function, sync or async, whose calls are guarded. `prepare` gets their arguments."""
        return cast(
            "F", wrap_function(self, function, lambda io, args, kwargs: self._call(io, *prepare(*args, **kwargs)))
        )

    async def _call(self, io: IO, guarded: GuardedCall, make: Callable[[Decision], Any]) -> Outcome:
        decision = Decision() if guarded.call is None else await io.decide(guarded.call)
        if not decision.allowed:
            return Outcome(guarded.denied(decision))
        await io.wait(decision)
        named = guarded.context
        with agent(named.agent, session=named.session, parent=named.parent):
            outcome = await io.invoke(lambda: make(decision))
        await io.settle(decision, self._answer(guarded, outcome))
        return outcome

    def _answer(self, guarded: GuardedCall, outcome: Outcome) -> Answer:
        with self.fail_open():
            return guarded.answered(outcome.value) if outcome.error is None else guarded.failed(outcome.error)
        return ANSWERED if outcome.error is None else Answer(NO_ANSWER)


def toolkit_of(guard: Guard) -> Toolkit:
    return guard._toolkit


def steps_guard() -> Guard:
    """Return the guard of an integration that was given none: in this process, looking at steps alone. The engine is
    loaded only when this is called."""
    made: Guard = import_module("breakloop.sdk.guard").Guard(STEPS_ONLY)
    return made
