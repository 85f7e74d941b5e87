"""The decorators `@guard.tool` and `@guard.llm`, for sync and async functions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from breakloop.dialects import openai_chat, registry
from breakloop.dialects.reader import reader
from breakloop.exceptions import DeniedError, error_for
from breakloop.model.call import Answer, marked
from breakloop.model.verdict import Decision
from breakloop.sdk.context import UNNAMED
from breakloop.sdk.core import ANSWERED, IO, Outcome, run_blocking
from breakloop.sdk.requests import chat_call, handle_of, json_body
from breakloop.sdk.toolkit import GuardedCall, Toolkit, failed_answer

P = ParamSpec("P")
R = TypeVar("R")


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether the result of a function has to be awaited. Sees through partials and callable objects."""
    called = getattr(function, "__call__", None)  # noqa: B004 - the method itself is inspected
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def guard_tool(toolkit: Toolkit, function: Callable[P, R], name: str, on_block: str) -> Callable[P, R]:
    if on_block not in {"raise", "return"}:
        raise ValueError('on_block must be "raise" or "return"')
    tool = _Tool(toolkit, function, name or getattr(function, "__name__", "tool"), returns=on_block == "return")
    if is_async(function):

        @wraps(function)
        async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            return (await tool.invoke(toolkit.asynchronous, args, kwargs)).result()

        return cast("Callable[P, R]", guarded_async)

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
        return run_blocking(tool.invoke(toolkit.blocking, args, kwargs)).result()

    return guarded


class _Tool:
    def __init__(self, toolkit: Toolkit, function: Callable[..., Any], name: str, *, returns: bool) -> None:
        self._toolkit = toolkit
        self._function = function
        self._name = name
        self._returns = returns
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):
            self._signature = None

    async def invoke(self, io: IO, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        run, call = self._toolkit.run_for(), (self._name, self._arguments(args, kwargs))
        decision = await run._before_tool(io, call)
        if not decision.allowed:
            return self._denied(decision)
        outcome = await io.invoke(lambda: self._function(*args, **kwargs))
        error = outcome.error
        if error is not None and (isinstance(error, DeniedError) or not isinstance(error, Exception)):
            return outcome  # an inner guard has reported it, or the program is ending
        decision = await run._after_tool(io, call, outcome.value if error is None else error)
        if not decision.allowed:
            return self._denied(decision, error)
        if decision.notice and error is not None:
            error.add_note(decision.notice)
        elif decision.notice and isinstance(outcome.value, str):
            return Outcome(f"{outcome.value}\n\n{marked(decision.notice)}")
        return outcome

    def _denied(self, decision: Decision, cause: BaseException | None = None) -> Outcome:
        if self._returns:
            return Outcome(decision.notice)
        error = error_for(decision)
        error.__cause__ = cause
        return Outcome(error=error)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, as a model would pass them, without `self`."""
        if self._signature is None:
            return {"args": args, **kwargs}
        try:
            given = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError:  # the function will raise the same error
            return {"args": args, **kwargs}
        if "." in getattr(self._function, "__qualname__", ""):
            given.pop("self", None)
        return given


def guard_llm(toolkit: Toolkit, function: Callable[P, R]) -> Callable[P, R]:
    signature = inspect.signature(function)
    send: Callable[..., Any] = function

    def prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[GuardedCall, Callable[[Decision], Any]]:
        request = _request(signature, args, kwargs)
        call = chat_call(json_body(request.body), UNNAMED)

        def make(decision: Decision) -> Any:
            _steer(request, decision)
            return send(*request.bound.args, **request.bound.kwargs)

        return GuardedCall(call, UNNAMED, _raise_denial, answer_in, failed_answer), make

    if is_async(function):

        @wraps(function)
        async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await toolkit.acall(*prepare(args, kwargs))

        return cast("Callable[P, R]", guarded_async)

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", toolkit.call(*prepare(args, kwargs)))

    return guarded


def _raise_denial(decision: Decision) -> Any:
    raise error_for(decision)


def answer_in(result: Any) -> Answer:
    """Return the answer in a text, a dictionary or an object of an SDK; for anything else, only that one came."""
    if isinstance(result, str):
        return Answer(200, text=result, complete=True)
    dump = getattr(result, "model_dump", None)
    content = dump(mode="json") if callable(dump) else result
    if not isinstance(content, Mapping):
        return ANSWERED
    dialect = registry.DIALECTS.of_answer(content)
    reading = None if dialect is None else reader(dialect.name, b"application/json")
    if reading is None:
        return ANSWERED
    try:
        reading.feed(json.dumps(content, default=repr).encode())
    except (TypeError, ValueError):
        return ANSWERED
    return reading.answer(200, complete=True)


class _Request(NamedTuple):
    """The arguments of one call of the function, and the LLM request that they stand for."""

    bound: inspect.BoundArguments
    body: dict[str, Any]


def _request(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Request:
    bound = signature.bind(*args, **kwargs)
    given: dict[str, Any] = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    messages = given.get("messages")
    if not isinstance(messages, list):
        prompt = next((value for value in given.values() if isinstance(value, str)), "")
        messages = [{"role": "user", "content": prompt}]
    return _Request(bound, {"model": str(given.get("model", "unknown")), "messages": messages})


def _steer(request: _Request, decision: Decision) -> None:
    """Append the note of `steer` to the argument `messages`, if the function has one."""
    call, arguments = handle_of(decision).call, request.bound.arguments
    if not decision.note or call is None or not isinstance(arguments.get("messages"), list):
        return
    body = registry.DIALECTS[openai_chat.NAME].append_note(call.body, decision.note)
    if body is not None:
        arguments["messages"] = json.loads(body)["messages"]
