"""`@guard.llm`: a function that asks a model, judged before each request and settled with what it returns.

Conversation and model are found by name (`messages`, else the first text; `model`). A denial raises, a throttle waits,
and a note for the model is appended to the messages where `steer` is the policy's action."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar, cast

from breakloop.model.answer import NO_ANSWER, Answer
from breakloop.model.decision import Decision
from breakloop.sdk.core import CHAT_PATH
from breakloop.sdk.tools import is_async
from breakloop.wire import anthropic_messages, gemini, openai_chat, openai_responses, steer
from breakloop.wire.answer import reader

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard

P = ParamSpec("P")
R = TypeVar("R")

# By which field an answer is known.
_DIALECTS: Final = {
    "choices": openai_chat.DIALECT,
    "output": openai_responses.DIALECT,
    "content": anthropic_messages.DIALECT,
    "candidates": gemini.DIALECT,
}


class _Asked(NamedTuple):
    """One call of the function: what it will be given, and the request that it stands for."""

    bound: inspect.BoundArguments
    body: dict[str, Any]


def guarded(guard: Guard, function: Callable[P, R]) -> Callable[P, R]:
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
