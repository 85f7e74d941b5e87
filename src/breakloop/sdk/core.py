"""`Core`: asks a backend, counts and logs what fails, and lets the program go on.

A procedure is written once, as a coroutine over `IO`. `sync_and_async` makes two methods of it, and `wrap_function`
runs it in the place of a function. `run_blocking` drives it where nothing may suspend.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from breakloop.clock import Clock, SystemClock
from breakloop.errors import SettingsError
from breakloop.exceptions import DeniedError
from breakloop.model.call import Answer, Call
from breakloop.model.decision import Decision
from breakloop.observe.log import log
from breakloop.sdk.remote_backend import UnreadableAnswerError
from breakloop.sdk.requests import DecisionHandle

ANSWERED: Final = Answer(200, complete=True)
LOG_INTERVAL_S: Final = 60.0

P = ParamSpec("P")
T = TypeVar("T")


class Backend(Protocol):
    """Decides: in this process (`LocalBackend`) or by a decision service (`RemoteBackend`)."""

    blocking: bool  # waits for a network

    def decide(self, call: Call) -> Decision: ...

    def settle(self, decision: Decision, answer: Answer) -> None: ...

    def close(self) -> None: ...


class Outcome(NamedTuple):
    """How a function of the program ended. A value, because a coroutine cannot pass on a `StopIteration`."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class Core:
    """Asks a backend and fails open: an error of the backend, or of breakloop itself, allows the call. `blocking` and
    `asynchronous` are its two `IO`s."""

    def __init__(self, backend: Backend, clock: Clock | None = None) -> None:
        self.backend = backend
        self.faults = 0
        self.blocking = IO(self)
        self.asynchronous: IO = _AsyncIO(self)
        self._clock = clock or SystemClock()
        self._logged_at = -LOG_INTERVAL_S
        self._left_out = 0  # faults that were not logged

    def decide(self, call: Call) -> Decision:
        try:
            return self.backend.decide(call)
        except Exception as error:  # noqa: BLE001 - the outermost edge: our fault must not stop an agent
            return self.fault(error, call)

    def settle(self, decision: Decision, answer: Answer = ANSWERED) -> None:
        """Record the answer to an allowed request."""
        if decision.allowed and decision.request_id:
            with self.fail_open():
                self.backend.settle(decision, answer)

    def fail_open(self) -> FailOpen:
        """Return a context manager that turns an error of breakloop into a counted fault."""
        return FailOpen(self)

    def fault(self, error: Exception, call: Call | None = None) -> Decision:
        """Count a fault and allow the call."""
        self.faults += 1
        self._log_fault(error)
        return Decision(degraded=True, _handle=DecisionHandle(call))

    def _log_fault(self, error: Exception) -> None:
        """Log the first fault, then one a minute with the number of those between; never what was asked about."""
        now = self._clock.now()
        if 0 <= now - self._logged_at < LOG_INTERVAL_S:
            self._left_out += 1
            return
        fields: dict[str, object] = {"error": f"{describe_fault(error)}; the request was allowed"}
        url = getattr(self.backend, "where", "")  # of a decision service
        if url:
            fields["url"] = url
        if self._left_out:
            fields["left_out"] = self._left_out
        self._logged_at, self._left_out = now, 0
        log(logging.ERROR, "guard.fault", fields)


class IO:
    """What a procedure may wait for. This one blocks; `_AsyncIO` does not."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def decide(self, call: Call) -> Decision:
        return self._core.decide(call)

    async def settle(self, decision: Decision, answer: Answer = ANSWERED) -> None:
        self._core.settle(decision, answer)

    async def wait(self, decision: Decision) -> None:
        """Sleep for the delay of a throttle."""
        if decision.delay_seconds:
            time.sleep(decision.delay_seconds)  # noqa: TID251, ASYNC251 - driven by `run_blocking`

    async def invoke(self, function: Callable[[], Any]) -> Outcome:
        """Call a function of the program; on an event loop, await what it returns."""
        try:
            return Outcome(function())
        except BaseException as error:  # noqa: BLE001 - `Outcome.result` raises it
            return Outcome(error=error)


class _AsyncIO(IO):
    async def decide(self, call: Call) -> Decision:
        if self._core.backend.blocking:
            return await asyncio.to_thread(self._core.decide, call)
        return self._core.decide(call)

    async def settle(self, decision: Decision, answer: Answer = ANSWERED) -> None:
        if self._core.backend.blocking:
            return await asyncio.to_thread(self._core.settle, decision, answer)
        return self._core.settle(decision, answer)

    async def wait(self, decision: Decision) -> None:
        if decision.delay_seconds:
            await asyncio.sleep(decision.delay_seconds)

    async def invoke(self, function: Callable[[], Any]) -> Outcome:
        try:
            return Outcome(await function())
        except BaseException as error:  # noqa: BLE001 - as above
            return Outcome(error=error)


def run_blocking(procedure: Coroutine[Any, Any, T]) -> T:
    """Run a procedure over `Core.blocking`, which never suspends, without an event loop."""
    try:
        procedure.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise RuntimeError("a synchronous call tried to await")


class _HasCore(Protocol):
    @property
    def _toolkit(self) -> Core: ...


S = TypeVar("S", bound=_HasCore)


def sync_and_async(
    procedure: Callable[Concatenate[S, IO, P], Coroutine[Any, Any, T]],
) -> tuple[Callable[Concatenate[S, P], T], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Return a method that takes an `io` as two methods that do not: one that blocks, and one for an event loop."""

    @wraps(procedure)
    def blocking(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(procedure(self, self._toolkit.blocking, *args, **kwargs))

    @wraps(procedure)
    async def asynchronous(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await procedure(self, self._toolkit.asynchronous, *args, **kwargs)

    signature = inspect.signature(procedure)
    shown = [one for one in signature.parameters.values() if one.name != "io"]
    for method in (blocking, asynchronous):
        vars(method)["__signature__"] = signature.replace(parameters=shown)
    return blocking, asynchronous


def wrap_function(
    core: Core, function: Callable[P, T], procedure: Callable[[IO, Any, Any], Coroutine[Any, Any, Outcome]]
) -> Callable[P, T]:
    """Return a function, sync or async as the given one, that runs `procedure(io, args, kwargs)` in its place."""
    called = getattr(function, "__call__", None)  # noqa: B004 - of a callable object, the method is inspected
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):

        @wraps(function)
        async def asynchronous(*args: P.args, **kwargs: P.kwargs) -> Any:
            return (await procedure(core.asynchronous, args, kwargs)).result()

        return cast("Callable[P, T]", asynchronous)

    @wraps(function)
    def blocking(*args: P.args, **kwargs: P.kwargs) -> Any:
        return run_blocking(procedure(core.blocking, args, kwargs)).result()

    return blocking


class FailOpen:
    """`with core.fail_open():` around breakloop's own code in the program's path. An error in the block is counted and
    logged, and the program goes on after the block. A denial is not a fault and passes."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, DeniedError):
            return False
        self._core.fault(error)
        return True


def describe_fault(error: Exception) -> str:
    """Return why a decision failed. An unknown error may quote the request, so only its type is named."""
    kind = type(error).__name__
    if isinstance(error, UnreadableAnswerError):
        return f"{error} (is that the traffic port of breakloop?)"
    if isinstance(error, SettingsError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"{kind}: no response in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{kind}: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return f"{kind}: the host name cannot be resolved"
    if isinstance(error, ConnectionError) and error.strerror:  # `http.client.RemoteDisconnected` has none
        return f"{kind}: {error.strerror}"
    return kind
