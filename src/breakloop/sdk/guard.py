"""`Guard` (SPEC D-4, P-1): the library's one entrance. Decides in this process, or asks a decision service; sync and
async faces over one core. A fault of ours allows, is counted, and logged (`fault_log`)."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, Final, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from breakloop.clock import Clock
from breakloop.errors import SettingsError
from breakloop.exceptions import error_for
from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Decision
from breakloop.sdk import backend, decorators
from breakloop.sdk.backend import AgentContext, FailOpen, FaultLog, current
from breakloop.sdk.environment import shared_secret
from breakloop.sdk.local_backend import MEMORY, LocalBackend, Policy
from breakloop.sdk.remote_backend import RemoteBackend
from breakloop.sdk.run import Made, Run

_RUNS_KEPT: Final = 1000
_DONE: Final = Answer(200, complete=True)

P = ParamSpec("P")
R = TypeVar("R")


class ToolDecorator(Protocol):
    """A decorator that leaves the signature of a function as it is."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Return the function, guarded."""
        ...


class Backend(Protocol):
    """Where it is decided."""

    blocking: bool  # it waits for a network

    def decide(self, call: Call) -> Decision:
        """Judge a call."""
        ...

    def settle(self, decision: Decision, answer: Answer) -> None:
        """Take note of how an allowed call was answered."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Guard:
    """Judges LLM requests and the steps of agents. May be used from several threads and tasks at once."""

    def __init__(
        self,
        policy: Policy = None,
        *,
        url: str = "",
        token: str = "",
        state: str = MEMORY,
        clock: Clock | None = None,
        door: Backend | None = None,
    ) -> None:
        if url and (policy is not None or state != MEMORY):
            raise SettingsError("url: the service has policy and state of its own; give either url= or policy=")
        self._door: Backend = door or (
            RemoteBackend(url, token) if url else LocalBackend(policy, state, clock, shared_secret())
        )
        self._fault_log = FaultLog(getattr(self._door, "where", ""), clock)
        self.faults = 0  # decisions that failed for a mistake of ours or a service that is not there, and were allowed
        self._own_session = f"guard-{secrets.token_hex(6)}"
        self._runs: OrderedDict[AgentContext, Run] = OrderedDict()
        self._lock = threading.Lock()
        self._current: ContextVar[Run | None] = ContextVar("breakloop_run", default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is open."""
        self._door.close()

    # -- requests

    def check(
        self,
        body: Mapping[str, Any] | bytes,
        *,
        path: str = backend.CHAT_PATH,
        headers: Mapping[str, str] | None = None,
        agent: str = "",
        session: str = "",
    ) -> Decision:
        """Decide about an LLM request before it is sent; nothing is raised. Body and path are the provider's."""
        return self.judge(_call(body, path, headers, AgentContext(agent, session)))

    async def acheck(
        self,
        body: Mapping[str, Any] | bytes,
        *,
        path: str = backend.CHAT_PATH,
        headers: Mapping[str, str] | None = None,
        agent: str = "",
        session: str = "",
    ) -> Decision:
        """The same, without blocking the event loop."""
        return await self.ajudge(_call(body, path, headers, AgentContext(agent, session)))

    def judge(self, call: Call) -> Decision:
        """Decide about a call that is made already: what integrations ask."""
        try:
            return self._door.decide(call)
        except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not stop an agent
            return self.fault(error, call)

    async def ajudge(self, call: Call) -> Decision:
        """The same, without blocking the event loop."""
        return await asyncio.to_thread(self.judge, call) if self._door.blocking else self.judge(call)

    def settle(self, decision: Decision, answer: Answer = _DONE) -> None:
        """Tell how an allowed request was answered; `breakloop.sdk.backend.answer_of` makes answers of plain values."""
        if not decision.allowed or not decision.request_id:
            return
        with self.fail_open():
            self._door.settle(decision, answer)

    async def asettle(self, decision: Decision, answer: Answer = _DONE) -> None:
        """The same, without blocking the event loop."""
        if self._door.blocking:
            await asyncio.to_thread(self.settle, decision, answer)
        else:
            self.settle(decision, answer)

    def report(
        self,
        decision: Decision,
        *,
        status: int = 200,
        text: str = "",
        calls: Iterable[Made] = (),
        usage: Mapping[str, int] | None = None,
    ) -> None:
        """Settle in plain values: what the model said and called, and its tokens (`input_tokens`, `output_tokens`)."""
        self.settle(decision, backend.answer_of(status, text, calls, usage))

    def wait(self, decision: Decision) -> None:
        """Sleep as long as a throttle says."""
        if decision.delay_seconds:
            time.sleep(decision.delay_seconds)  # noqa: TID251 - whoever calls this has asked to be held up

    async def await_(self, decision: Decision) -> None:
        """The same, without blocking the event loop."""
        if decision.delay_seconds:
            await asyncio.sleep(decision.delay_seconds)

    def enforce(self, decision: Decision) -> str:
        """Raise for a denial and sleep for a throttle; returns what the model should be told, or ""."""
        if not decision.allowed:
            raise error_for(decision)
        self.wait(decision)
        return decision.notice

    async def aenforce(self, decision: Decision) -> str:
        """The same, without blocking the event loop."""
        if not decision.allowed:
            raise error_for(decision)
        await self.await_(decision)
        return decision.notice

    # -- custom loops

    def run(self, agent: str = "", session: str = "", *, model: str = "", task: str = "") -> Run:
        """Return a new run; without a session, one of its own. `with guard.run(agent="x") as run: run.step(...)`."""
        names = AgentContext(agent, session).over(current())
        return Run(self, names._replace(session=names.session or f"run-{secrets.token_hex(6)}"), model=model, task=task)

    def step(
        self,
        calls: Sequence[Made] = (),
        results: Sequence[Any] = (),
        *,
        text: str = "",
        user: str = "",
        session: str = "",
        agent: str = "",
        model: str = "",
    ) -> Decision:
        """Tell a step of the run that this is in, or of a session: see `Run.step`."""
        return self.run_of(agent, session, model).step(calls, results, text=text, user=user)

    async def astep(
        self,
        calls: Sequence[Made] = (),
        results: Sequence[Any] = (),
        *,
        text: str = "",
        user: str = "",
        session: str = "",
        agent: str = "",
        model: str = "",
    ) -> Decision:
        """The same, without blocking the event loop."""
        return await self.run_of(agent, session, model).astep(calls, results, text=text, user=user)

    def run_of(self, agent: str = "", session: str = "", model: str = "") -> Run:
        """Return the run that is under way here, or the one of a session; the last thousand are kept."""
        run = self._current.get()
        if run is not None and not session and agent in {"", run.agent}:
            return run
        names = AgentContext(agent, session).over(current())
        names = names._replace(session=names.session or self._own_session)
        with self._lock:
            found = self._runs.get(names)
            if found is None:
                found = self._runs[names] = Run(self, names, model=model)
                if len(self._runs) > _RUNS_KEPT:
                    self._runs.popitem(last=False)
            else:
                self._runs.move_to_end(names)
        return found

    def enter(self, run: Run) -> Token[Run | None]:
        """Make it the run that is under way here: what `with run:` does."""
        return self._current.set(run)

    def leave(self, token: Token[Run | None]) -> None:
        """Go back to the run before."""
        self._current.reset(token)

    @overload
    def tool(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def tool(
        self, function: None = None, /, *, name: str = "", on_block: Literal["raise", "return"] = "raise"
    ) -> ToolDecorator: ...

    def tool(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        name: str = "",
        on_block: Literal["raise", "return"] = "raise",
    ) -> Any:
        """Decorate a tool, sync or async: each call with its result is a step.."""
        if function is None:
            return lambda given: decorators.guard_tool(self, given, name, on_block)
        return decorators.guard_tool(self, function, name, on_block)

    def llm(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate what asks the model, sync or async: each request is judged before.."""
        return decorators.guard_llm(self, function)

    def fail_open(self) -> FailOpen:
        """Return a context manager in which an error of ours becomes a fault; the program goes on after the block."""
        return FailOpen(self.fault)

    def fault(self, error: Exception, call: Call | None = None) -> Decision:
        """Count a mistake of ours, log it (once a minute), allow. What was asked about is never logged (SPEC Y-1)."""
        self.faults += 1
        self._fault_log.tell(error)
        return Decision(degraded=True, call=call)


def _call(body: Mapping[str, Any] | bytes, path: str, headers: Mapping[str, str] | None, names: AgentContext) -> Call:
    sent = body if isinstance(body, bytes) else _written(body)
    named = {**(headers or {}), **names.headers()}
    return backend.request_call("POST", path, {"content-type": "application/json", **named}, sent, host="localhost")


def _written(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(body), default=_plain).encode()
    except (TypeError, ValueError, RecursionError):  # what could not be sent either is judged by its head
        return b""


def _plain(value: Any) -> Any:
    """Objects of an SDK among plain messages."""
    dump = getattr(value, "model_dump", None)
    return dump(exclude_none=True) if callable(dump) else repr(value)
