"""`Guard`: the library's entry point. Decides in this process or asks a decision service; if that fails, it allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from breakloop.clock import Clock
from breakloop.errors import SettingsError
from breakloop.exceptions import error_for
from breakloop.model.call import Call
from breakloop.model.verdict import Decision
from breakloop.sdk.context import AgentContext, shared_secret
from breakloop.sdk.core import IO, Backend, run_blocking
from breakloop.sdk.decorators import guard_llm, guard_tool
from breakloop.sdk.local_backend import MEMORY, LocalBackend, Policy
from breakloop.sdk.remote_backend import RemoteBackend
from breakloop.sdk.requests import CHAT_PATH, ToolInvocation, json_body, make_answer, request_call
from breakloop.sdk.run import Run
from breakloop.sdk.toolkit import Toolkit

P = ParamSpec("P")
R = TypeVar("R")


class ToolDecorator(Protocol):
    """A decorator that keeps the signature of a function."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


class Guard:
    """Checks LLM requests and the steps of agents. Thread-safe, and usable from any number of tasks:

        guard = Guard()  # built-in protection; or Guard("policy.yaml"), or Guard(url="http://127.0.0.1:8787")
        search = guard.tool(search)

    An error of breakloop, or a decision service that cannot be reached, never stops the program: the decision is
    `allowed` and `degraded`, and `faults` counts it. Methods that begin with `a` are for use on an event loop.
    """

    def __init__(
        self,
        policy: Policy = None,
        *,
        url: str = "",
        token: str = "",
        state: str = MEMORY,
        clock: Clock | None = None,
        _backend: Backend | None = None,
    ) -> None:
        if url and (policy is not None or state != MEMORY):
            raise SettingsError("url: the service has its own policy and state; pass either url= or policy=")
        backend = _backend or (
            RemoteBackend(url, token) if url else LocalBackend(policy, state, clock, shared_secret())
        )
        self._toolkit = Toolkit(backend, clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections and write the log lines that were held back."""
        self._toolkit.backend.close()

    @property
    def faults(self) -> int:
        """The number of decisions that failed and were therefore allowed."""
        return self._toolkit.faults

    # -- requests

    def check(
        self,
        body: Mapping[str, Any] | bytes,
        *,
        path: str = CHAT_PATH,
        headers: Mapping[str, str] | None = None,
        agent: str = "",
        session: str = "",
    ) -> Decision:
        """Decide about an LLM request before it is sent. Body and path are those of the provider's API."""
        return self._toolkit.decide(_call(body, path, headers, AgentContext(agent, session)))

    async def acheck(
        self,
        body: Mapping[str, Any] | bytes,
        *,
        path: str = CHAT_PATH,
        headers: Mapping[str, str] | None = None,
        agent: str = "",
        session: str = "",
    ) -> Decision:
        """Like `check`, on an event loop."""
        return await self._toolkit.asynchronous.decide(_call(body, path, headers, AgentContext(agent, session)))

    def report(
        self,
        decision: Decision,
        *,
        status: int = 200,
        text: str = "",
        calls: Iterable[ToolInvocation] = (),
        usage: Mapping[str, int] | None = None,
    ) -> None:
        """Report the answer to a request that was checked: what the model wrote and called, and its tokens
        (`input_tokens`, `output_tokens`)."""
        self._toolkit.settle(decision, make_answer(status, text, calls, usage))

    async def areport(
        self,
        decision: Decision,
        *,
        status: int = 200,
        text: str = "",
        calls: Iterable[ToolInvocation] = (),
        usage: Mapping[str, int] | None = None,
    ) -> None:
        """Like `report`, on an event loop."""
        await self._toolkit.asynchronous.settle(decision, make_answer(status, text, calls, usage))

    def wait(self, decision: Decision) -> None:
        """Sleep for the delay of a throttle."""
        run_blocking(self._toolkit.blocking.wait(decision))

    async def async_wait(self, decision: Decision) -> None:
        """Like `wait`, on an event loop."""
        await self._toolkit.asynchronous.wait(decision)

    def enforce(self, decision: Decision) -> str:
        """Raise `DeniedError` for a denial and sleep for a throttle. Returns the notice for the model, or ""."""
        return run_blocking(_enforce(self._toolkit.blocking, decision))

    async def aenforce(self, decision: Decision) -> str:
        """Like `enforce`, on an event loop."""
        return await _enforce(self._toolkit.asynchronous, decision)

    # -- agents

    def run(self, agent: str = "", session: str = "", *, model: str = "", task: str = "") -> Run:
        """Return a new run. Without a session, it is a session of its own."""
        return self._toolkit.new_run(AgentContext(agent, session), model=model, task=task)

    def step(
        self,
        calls: Sequence[ToolInvocation] = (),
        results: Sequence[Any] = (),
        *,
        text: str = "",
        user: str = "",
        session: str = "",
        agent: str = "",
        model: str = "",
    ) -> Decision:
        """Report a step of the enclosing run, or of a session. See `Run.step`."""
        run = self._toolkit.run_for(AgentContext(agent, session), model=model)
        return run.step(calls, results, text=text, user=user)

    async def astep(
        self,
        calls: Sequence[ToolInvocation] = (),
        results: Sequence[Any] = (),
        *,
        text: str = "",
        user: str = "",
        session: str = "",
        agent: str = "",
        model: str = "",
    ) -> Decision:
        """Like `step`, on an event loop."""
        run = self._toolkit.run_for(AgentContext(agent, session), model=model)
        return await run.astep(calls, results, text=text, user=user)

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
        """Decorate a tool, sync or async. Each call with its result is a step of the enclosing run.

        A warning is added to the result if that is a text. A blocked call raises `LoopDetectedError`, or returns the
        notice with `on_block="return"`; while it is blocked, the tool does not run.
        """
        if function is None:
            return lambda given: guard_tool(self._toolkit, given, name, on_block)
        return guard_tool(self._toolkit, function, name, on_block)

    def llm(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async, that sends `messages` (or the first text argument) to a model. Each
        request is checked before it is sent; a denial raises, a throttle waits."""
        return guard_llm(self._toolkit, function)


async def _enforce(io: IO, decision: Decision) -> str:
    if not decision.allowed:
        raise error_for(decision)
    await io.wait(decision)
    return decision.notice


def _call(body: Mapping[str, Any] | bytes, path: str, headers: Mapping[str, str] | None, context: AgentContext) -> Call:
    sent = body if isinstance(body, bytes) else json_body(body)
    named = {**(headers or {}), **context.headers()}
    return request_call("POST", path, {"content-type": "application/json", **named}, sent, host="localhost")
