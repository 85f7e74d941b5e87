"""`ModelCalls`: what integrations share that see each request of a framework to its model. The conversation is written
as a request of OpenAI's chat API and checked as a whole, as at a gateway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from breakloop.exceptions import error_for
from breakloop.model.call import NO_ANSWER, Answer
from breakloop.model.decision import Decision
from breakloop.sdk.context import UNNAMED, AgentContext, current_agent
from breakloop.sdk.core import ANSWERED, IO, sync_and_async
from breakloop.sdk.requests import arguments_text, chat_call, result_text
from breakloop.sdk.toolkit import BoundedDict, GuardedCall, failed_answer, steps_guard, toolkit_of

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard

_CALLS_MAX: Final = 1000

T = TypeVar("T")
Message = dict[str, Any]


class Conversation(NamedTuple):
    """A request to a model, as plain values."""

    messages: Iterable[Message]
    model: str = ""
    tools: Iterable[str] = ()  # the names of those that are declared
    agent: str = ""  # as the framework names it
    session: str = ""


Read = Callable[[], Conversation]


def text_message(role: str, content: Any) -> Message:
    return {"role": role, "content": content if isinstance(content, str) else result_text(content)}


def assistant_message(text: str, calls: Iterable[tuple[str, str, Any]] = ()) -> Message:
    """Return what a model answered. `calls` are (id, name, arguments)."""
    message: Message = {"role": "assistant", "content": text}
    made = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": arguments_text(arguments)}}
        for one, name, arguments in calls
    ]
    return {**message, "tool_calls": made} if made else message


def result_message(call_id: str, result: Any, *, failed: bool = False) -> Message:
    text = result_text(result)
    if failed and not text.startswith("Error"):
        text = f"Error: {text}"  # a chat API has no flag for it
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def raise_denial(decision: Decision) -> NoReturn:
    raise error_for(decision)


class ModelCalls:
    """Checks the model calls of a framework. `read` returns the conversation of a call; if that fails, the call is
    made unchecked."""

    def __init__(self, guard: Guard | None = None, agent: str = "") -> None:
        self.guard = guard or steps_guard()
        self._toolkit = self.toolkit = toolkit_of(self.guard)
        self._own = AgentContext(agent)
        self._open: BoundedDict[Hashable, Decision] = BoundedDict(_CALLS_MAX)  # between `begin` and `end`

    def guarded(
        self,
        read: Read,
        answered: Callable[[Any], Answer],
        denied: Callable[[Decision], Any] = raise_denial,
    ) -> GuardedCall:
        """Return a call for `Toolkit.call` and `acall`, where the framework lets an integration make the call."""
        context, call = UNNAMED, None
        with self.toolkit.fail_open():
            said = read()
            framework = AgentContext(said.agent, said.session)
            context = self._own.with_defaults(current_agent()).with_defaults(framework)
            body: Message = {"model": said.model or "unknown", "messages": list(said.messages)}
            declared = list(said.tools)
            if declared:
                body["tools"] = [{"type": "function", "function": {"name": name}} for name in declared]
            call = chat_call(arguments_text(body).encode("utf-8", "replace"), context)
        return GuardedCall(call, context, denied, answered)

    async def _begin(self, io: IO, key: Hashable, read: Read) -> Decision:
        """Decide about a call before it is made, and wait for a throttle. `end` with the same key settles it. No denial
        is raised."""
        await self._end(io, key, lambda: Answer(NO_ANSWER))  # a call before it that never ended
        call = self.guarded(read, lambda _: ANSWERED).call
        if call is None:
            return Decision()
        decision = await io.decide(call)
        if decision.allowed:
            self._open[key] = decision
            await io.wait(decision)
        return decision

    begin, abegin = sync_and_async(_begin)

    async def _end(self, io: IO, key: Hashable, read: Callable[[], Answer]) -> Decision:
        """Settle a call with its answer, and return the decision about it."""
        decision = self._open.pop(key, None)
        if decision is None:
            return Decision()
        answer = ANSWERED
        with self.toolkit.fail_open():
            answer = read()
        await io.settle(decision, answer)
        return decision

    end, aend = sync_and_async(_end)

    # For a framework without hooks: around the methods of a model object. Denials are raised.

    def call(self, read: Read, make: Callable[[Decision], T], answered: Callable[[T], Answer]) -> T:
        return self.toolkit.call(self.guarded(read, answered), make)

    async def acall(self, read: Read, make: Callable[[Decision], Awaitable[T]], answered: Callable[[T], Answer]) -> T:
        return await self.toolkit.acall(self.guarded(read, answered), make)

    def stream(
        self, read: Read, make: Callable[[Decision], Iterator[T]], answered: Callable[[list[T]], Answer]
    ) -> Iterator[T]:
        """Pass on the pieces of an answer; `answered` gets all of them."""
        key, pieces = object(), list[T]()
        ended = partial(answered, pieces)
        try:
            for piece in make(self.enforce(self.begin(key, read))):
                pieces.append(piece)
                yield piece
        except Exception as error:
            ended = partial(failed_answer, error)
            raise
        finally:
            self.end(key, ended)

    async def astream(
        self, read: Read, make: Callable[[Decision], AsyncIterator[T]], answered: Callable[[list[T]], Answer]
    ) -> AsyncIterator[T]:
        key, pieces = object(), list[T]()
        ended = partial(answered, pieces)
        try:
            async for piece in make(self.enforce(await self.abegin(key, read))):
                pieces.append(piece)
                yield piece
        except Exception as error:
            ended = partial(failed_answer, error)
            raise
        finally:
            await self.aend(key, ended)

    def enforce(self, decision: Decision) -> Decision:
        if not decision.allowed:
            raise_denial(decision)
        return decision


def with_methods(model: T, **methods: Callable[..., Any]) -> T:
    """Return a copy of a model object with other methods: its class stays what the framework expects."""
    made = copy(model)
    for name, method in methods.items():
        object.__setattr__(made, name, method)
    return made
