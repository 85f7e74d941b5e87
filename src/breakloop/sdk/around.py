"""What the integrations of frameworks do around a call of theirs, in both colours: judge, stop or wait, let it be made
under its names, settle. What a call says, and what stands for a denied one, is each framework's own file's business."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.model.decision import Decision
from breakloop.sdk.guard import Guard
from breakloop.sdk.naming import Names, agent

T = TypeVar("T")

_ANSWERED = Answer(200, complete=True)


class Around(NamedTuple):
    """One call. Without a `Call` it is made unjudged: nobody asked, or it could not be read."""

    call: Call | None
    names: Names
    stopped: Callable[[Decision], Any]  # what stands for the result of a denied one; may raise instead
    answered: Callable[[Any], Answer]
    failed: Callable[[BaseException], Answer]


def through(guard: Guard, around: Around, make: Callable[[Decision], T]) -> T:
    """Make a call if it may be made; `make` is told the decision, whose notice the model should read."""
    decision = Decision() if around.call is None else guard.judge(around.call)
    if not decision.allowed:
        return around.stopped(decision)  # type: ignore[no-any-return]
    guard.wait(decision)
    try:
        with agent(around.names.agent, session=around.names.session):
            made = make(decision)
    except BaseException as error:
        guard.settle(decision, around.failed(error))
        raise
    guard.settle(decision, _answer(guard, around, made))
    return made


async def athrough(guard: Guard, around: Around, make: Callable[[Decision], Awaitable[T]]) -> T:
    """The same, without blocking the event loop."""
    decision = Decision() if around.call is None else await guard.ajudge(around.call)
    if not decision.allowed:
        return around.stopped(decision)  # type: ignore[no-any-return]
    await guard.await_(decision)
    try:
        with agent(around.names.agent, session=around.names.session):
            made = await make(decision)
    except BaseException as error:
        await guard.asettle(decision, around.failed(error))
        raise
    await guard.asettle(decision, _answer(guard, around, made))
    return made


def _answer(guard: Guard, around: Around, made: Any) -> Answer:
    with guard.fail_open():
        return around.answered(made)
    return _ANSWERED
