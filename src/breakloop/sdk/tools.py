"""`@guard.tool`: a tool function whose calls are steps of the run it is called in.

warned   the tool has run; the note for the model stands at the end of its result, if that is a text
blocked  `LoopDetectedError`, or with `on_block="return"` the note in place of the result
again    the same call while it is blocked is not carried out at all
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from breakloop.exceptions import DeniedError, error_for
from breakloop.model.decision import Decision
from breakloop.sdk.run import Run
from breakloop.sdk.transcript import Made, result_text
from breakloop.wire.steer import END, MARK

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard

P = ParamSpec("P")
R = TypeVar("R")


def guarded(guard: Guard, function: Callable[P, R], name: str, on_block: str) -> Callable[P, R]:
    """Return the tool with its guard around it."""
    if on_block not in {"raise", "return"}:
        raise ValueError('on_block is "raise" or "return"')
    tool = _Tool(guard, function, name or getattr(function, "__name__", "tool"), returns=on_block == "return")
    if is_async(function):

        @wraps(function)
        async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await tool.acall(args, kwargs)

        return cast("Callable[P, R]", later)

    @wraps(function)
    def now(*args: P.args, **kwargs: P.kwargs) -> Any:
        return tool.call(args, kwargs)

    return now


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling it has to be awaited: an async function, also in a partial, or an object called like one."""
    called = getattr(function, "__call__", None)  # noqa: B004 - what it is, not whether there is one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


class _Tool:
    """One tool; `call` and `acall` are the same in both colours."""

    def __init__(self, guard: Guard, function: Callable[..., Any], name: str, *, returns: bool) -> None:
        self._guard = guard
        self._function = function
        self._name = name
        self._returns = returns
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):
            self._signature = None

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run, made = self._guard.run_of(), self._made(args, kwargs)
        before = run.held(made)
        decision = Decision() if before is None else run.step([made], [before])
        if not decision.allowed:
            return self._refused(run, made, before or "", decision)
        run.release(made)
        try:
            result = self._function(*args, **kwargs)
        except DeniedError:  # of a guard further in: that is said already
            raise
        except Exception as error:  # noqa: BLE001 - the tool's own error, which `_failed` raises again
            return self._failed(run, made, error, run.step([made], [error]))
        if before is None or result_text(result) != before:
            decision = run.step([made], [result])
        self._guard.wait(decision)
        return self._done(run, made, result, decision)

    async def acall(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run, made = self._guard.run_of(), self._made(args, kwargs)
        before = run.held(made)
        decision = Decision() if before is None else await run.astep([made], [before])
        if not decision.allowed:
            return self._refused(run, made, before or "", decision)
        run.release(made)
        try:
            result = await self._function(*args, **kwargs)
        except DeniedError:
            raise
        except Exception as error:  # noqa: BLE001 - as in `call`
            return self._failed(run, made, error, await run.astep([made], [error]))
        if before is None or result_text(result) != before:
            decision = await run.astep([made], [result])
        await self._guard.await_(decision)
        return self._done(run, made, result, decision)

    def _made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Made:
        """The call as a model would make it: arguments by name, without `self`."""
        if self._signature is None:
            return self._name, {"args": args, **kwargs}
        try:
            given = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError:  # the function itself says what is wrong with them
            return self._name, {"args": args, **kwargs}
        if "." in getattr(self._function, "__qualname__", ""):
            given.pop("self", None)
        return self._name, given

    def _done(self, run: Run, made: Made, result: Any, decision: Decision) -> Any:
        if not decision.allowed:
            return self._refused(run, made, result_text(result), decision)
        if decision.notice and isinstance(result, str):
            return f"{result}\n\n{MARK} {decision.notice} {END}"
        return result

    def _failed(self, run: Run, made: Made, error: Exception, decision: Decision) -> Any:
        """The tool's own error goes on; a model that reads it reads the note too."""
        if not decision.allowed:
            run.hold(made, result_text(error))
            if self._returns:
                return decision.notice
            raise error_for(decision) from error
        if decision.notice:
            error.add_note(decision.notice)
        raise error

    def _refused(self, run: Run, made: Made, result: str, decision: Decision) -> Any:
        run.hold(made, result)
        if self._returns:
            return decision.notice
        raise error_for(decision)
