"""What integrations use of a `Guard`. `breakloop.integrations` explains how to write one."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from breakloop.clock import Clock
from breakloop.model.call import NO_ANSWER, Answer, Call
from breakloop.model.verdict import Decision
from breakloop.sdk.context import UNNAMED, AgentContext, agent, current_agent
from breakloop.sdk.core import ANSWERED, IO, Backend, Core, Outcome, run_blocking
from breakloop.sdk.requests import STEPS_ONLY
from breakloop.sdk.run import Run

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard

T = TypeVar("T")

_RUNS_MAX: Final = 1000


class GuardedCall(NamedTuple):
    """A call of a framework, and what to do around it."""

    call: Call | None  # None: it is made unchecked
    context: AgentContext  # in force while it is made
    denied: Callable[[Decision], Any]  # returns what stands for the result of a denied call, or raises
    answered: Callable[[Any], Answer]
    failed: Callable[[BaseException], Answer]


class Toolkit(Core):
    """Requests, steps and guarded calls of one `Guard`; `toolkit_of(guard)` returns it."""

    def __init__(self, backend: Backend, clock: Clock | None = None) -> None:
        super().__init__(backend, clock)
        self._own_session = f"guard-{secrets.token_hex(6)}"
        self._runs: OrderedDict[AgentContext, Run] = OrderedDict()
        self._lock = threading.Lock()
        self._current: ContextVar[Run | None] = ContextVar("breakloop_run", default=None)

    def new_run(self, context: AgentContext, *, model: str = "", task: str = "") -> Run:
        """Return a new run; if no session is named, it gets one of its own."""
        named = context.with_defaults(current_agent()).with_defaults(AgentContext("", f"run-{secrets.token_hex(6)}"))
        return Run(self, named, self._current, model=model, task=task)

    def run_for(self, context: AgentContext = UNNAMED, *, model: str = "") -> Run:
        """Return the run of the enclosing `with` block, or else the run of a session. The last 1000 are kept."""
        run = self._current.get()
        if run is not None and not context.session and context.agent in {"", run.agent}:
            return run
        named = context.with_defaults(current_agent()).with_defaults(AgentContext("", self._own_session))
        with self._lock:
            found = self._runs.get(named)
            if found is None:
                found = self._runs[named] = Run(self, named, self._current, model=model)
                if len(self._runs) > _RUNS_MAX:
                    self._runs.popitem(last=False)
            else:
                self._runs.move_to_end(named)
        return found

    def call(self, guarded: GuardedCall, make: Callable[[Decision], T]) -> T:
        """Check a call and make it if it is allowed, or return what `denied` does. `make` gets the decision, for the
        notice that the model should read."""
        outcome = run_blocking(self._call(self.blocking, guarded, make))
        return cast("T", outcome.result())

    async def acall(self, guarded: GuardedCall, make: Callable[[Decision], Awaitable[T]]) -> T:
        """Like `call`, on an event loop."""
        outcome = await self._call(self.asynchronous, guarded, make)
        return cast("T", outcome.result())

    async def _call(self, io: IO, guarded: GuardedCall, make: Callable[[Decision], Any]) -> Outcome:
        decision = Decision() if guarded.call is None else await io.decide(guarded.call)
        if not decision.allowed:
            return Outcome(guarded.denied(decision))
        await io.wait(decision)
        with agent(guarded.context.agent, session=guarded.context.session):
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


def failed_answer(error: BaseException) -> Answer:
    """Return the answer that the error of an SDK stands for: its HTTP status, or none."""
    status = getattr(error, "status_code", NO_ANSWER)
    return Answer(status if isinstance(status, int) else NO_ANSWER)
