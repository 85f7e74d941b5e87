"""`@guard.tool`: a tool function whose calls are steps of the run it is called in.

warned   the tool has run; the note for the model stands at the end of its result, if that is a text
blocked  `LoopDetectedError`, or with `on_block="return"` the note in place of the result
again    the same call while it is blocked is not carried out at all

`@guard.llm`: a function that asks a model, judged before each request and settled with what it returns.

Conversation and model are found by name (`messages`, else the first text; `model`). A denial raises, a throttle waits,
and a note for the model is appended to the messages where `steer` is the policy's action.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar, cast

from breakloop.dialects import anthropic, gemini, openai_chat, openai_responses, steer
from breakloop.dialects.reader import reader
from breakloop.exceptions import DeniedError, error_for
from breakloop.model.call import END, MARK, NO_ANSWER, Answer
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import CHAT_PATH
from breakloop.sdk.run import Made, Run, result_text

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard


P = ParamSpec("P")
R = TypeVar("R")


def guard_tool(guard: Guard, function: Callable[P, R], name: str, on_block: str) -> Callable[P, R]:
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


# By which field an answer is known.
_DIALECTS: Final = {
    "choices": openai_chat.DIALECT,
    "output": openai_responses.DIALECT,
    "content": anthropic.DIALECT,
    "candidates": gemini.DIALECT,
}


class _Asked(NamedTuple):
    """One call of the function: what it will be given, and the request that it stands for."""

    bound: inspect.BoundArguments
    body: dict[str, Any]


def guard_llm(guard: Guard, function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with its guard around it."""
    signature = inspect.signature(function)
    asks: Callable[..., Any] = function
    if is_async(function):

        @wraps(function)
        async def later(*args: P.args, **kwargs: P.kwargs) -> Any:
            asked = _asked(signature, args, kwargs)
            decision = await guard.acheck(asked.body, path=CHAT_PATH)
            await guard.aenforce(decision)
            _steered(asked, decision)
            try:
                result = await asks(*asked.bound.args, **asked.bound.kwargs)
            except BaseException as error:
                await guard.asettle(decision, Answer(status_of(error)))
                raise
            await guard.asettle(decision, answer_in(result))
            return result

        return cast("Callable[P, R]", later)

    @wraps(function)
    def now(*args: P.args, **kwargs: P.kwargs) -> R:
        asked = _asked(signature, args, kwargs)
        decision = guard.check(asked.body, path=CHAT_PATH)
        guard.enforce(decision)
        _steered(asked, decision)
        try:
            result = function(*asked.bound.args, **asked.bound.kwargs)
        except BaseException as error:
            guard.settle(decision, Answer(status_of(error)))
            raise
        guard.settle(decision, answer_in(result))
        return result

    return now


def answer_in(result: Any) -> Answer:
    """Return what a model said, from a text, a dictionary or an SDK's object; of anything else, that it answered."""
    if isinstance(result, str):
        return Answer(200, text=result, complete=True)
    dump = getattr(result, "model_dump", None)
    content = dump(mode="json") if callable(dump) else result
    if not isinstance(content, Mapping):
        return Answer(200, complete=True)
    dialect = next((dialect for field, dialect in _DIALECTS.items() if field in content), "")
    reading = reader(dialect, b"application/json")
    if reading is None:
        return Answer(200, complete=True)
    try:
        reading.feed(json.dumps(content, default=repr).encode())
    except (TypeError, ValueError):
        return Answer(200, complete=True)
    return reading.answer(200, complete=True)


def _asked(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Asked:
    bound = signature.bind(*args, **kwargs)
    given: dict[str, Any] = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    messages = given.get("messages")
    if not isinstance(messages, list):
        prompt = next((value for value in given.values() if isinstance(value, str)), "")
        messages = [{"role": "user", "content": prompt}]
    return _Asked(bound, {"model": str(given.get("model", "unknown")), "messages": messages})


def _steered(asked: _Asked, decision: Decision) -> None:
    """Append the note to the messages, where they are a parameter of that name."""
    call, arguments = decision.call, asked.bound.arguments
    if not decision.note or call is None or not isinstance(arguments.get("messages"), list):
        return
    body = steer.append(openai_chat.DIALECT, call.body, decision.note)
    if body is not None:
        arguments["messages"] = json.loads(body)["messages"]


def status_of(error: BaseException) -> int:
    """Return the HTTP status that an SDK's error tells of; none where no answer came."""
    status = getattr(error, "status_code", NO_ANSWER)
    return status if isinstance(status, int) else NO_ANSWER
