"""One run of an agent, told step by step: a step is what the model did and what came back. Each becomes a request in
the words of a chat API, judged like one; the step that follows settles it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final, Self

from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.model.decision import Decision
from breakloop.sdk.core import answer_of, arguments_text, chat_call
from breakloop.sdk.naming import Names
from breakloop.sdk.transcript import Made, Transcript

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard

_HELD_MAX: Final = 64


class Run:
    """A run. As a context manager it is the one that `@guard.tool` and `guard.step` belong to."""

    def __init__(self, guard: Guard, names: Names, *, model: str = "", task: str = "") -> None:
        self.guard = guard
        self.names = names
        self._transcript = Transcript(model, task)
        self._last: Decision | None = None
        self._usage: Mapping[str, int] | None = None  # what the model used for the last step
        self._held: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._lock = threading.Lock()
        self._entered: list[Token[Run | None]] = []

    @property
    def agent(self) -> str:
        """The agent whose run this is."""
        return self.names.agent

    @property
    def session(self) -> str:
        """The session by which its steps belong together."""
        return self.names.session

    def __enter__(self) -> Self:
        self._entered.append(self.guard.enter(self))
        return self

    def __exit__(self, *_: object) -> None:
        self.guard.leave(self._entered.pop())
        last, answer = self._ended()
        if last is not None:
            self.guard.settle(last, answer)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.guard.leave(self._entered.pop())
        last, answer = self._ended()
        if last is not None:
            await self.guard.asettle(last, answer)

    def step(
        self,
        calls: Sequence[Made] = (),
        results: Sequence[Any] = (),
        *,
        text: str = "",
        user: str = "",
        usage: Mapping[str, int] | None = None,
    ) -> Decision:
        """Tell a step and return what is decided about going on from it; nothing is raised.

        `calls` are (name, arguments), `results` what they returned, in the same order; an exception is a result that
        failed. `text` is what the model said, `user` what a person or the harness said after it.
        """
        call, last, answer = self._told(calls, results, text, user, usage)
        if last is not None:
            self.guard.settle(last, answer)
        self._last = decision = self.guard.judge(call)
        return decision

    def begin(self) -> Decision:
        """Return what is decided about the request that the run opens with, before the model has done anything."""
        self._last = decision = self.guard.judge(chat_call(self._transcript.opening(), self.names))
        return decision

    def answered(self, text: str = "", usage: Mapping[str, int] | None = None) -> None:
        """Tell what the model said where no step follows from it yet: an answer that may be the last."""
        with self._lock:
            last, self._last = self._last, None
            used, self._usage = self._usage or {}, None
        if last is not None:
            both = {name: used.get(name, 0) + (usage or {}).get(name, 0) for name in {*used, *(usage or {})}}
            self.guard.settle(last, answer_of(200, text, usage=both))

    async def astep(
        self,
        calls: Sequence[Made] = (),
        results: Sequence[Any] = (),
        *,
        text: str = "",
        user: str = "",
        usage: Mapping[str, int] | None = None,
    ) -> Decision:
        """The same, without blocking the event loop."""
        call, last, answer = self._told(calls, results, text, user, usage)
        if last is not None:
            await self.guard.asettle(last, answer)
        self._last = decision = await self.guard.ajudge(call)
        return decision

    def _told(
        self, calls: Sequence[Made], results: Sequence[Any], text: str, user: str, usage: Mapping[str, int] | None
    ) -> tuple[Call, Decision | None, Answer]:
        """The step as a request; and the last one, to which what the model did now was the answer. Tokens are charged
        to the step that they are told with, so that those of the first are not lost."""
        with self._lock:
            body = self._transcript.add(calls, results, text, user)
            last, self._last = self._last, None
            used, self._usage = self._usage, usage
        return chat_call(body, self.names), last, answer_of(200, text, calls, used)

    def _ended(self) -> tuple[Decision | None, Answer]:
        last, self._last = self._last, None
        used, self._usage = self._usage, None
        return last, answer_of(200, usage=used)

    # -- calls that were blocked, so that they are not carried out again (`tools`)

    def hold(self, made: Made, result: str) -> None:
        """Remember a blocked call and what it returned."""
        self._held[_key(made)] = result
        while len(self._held) > _HELD_MAX:
            self._held.popitem(last=False)

    def held(self, made: Made) -> str | None:
        """Return what a call returned that was blocked; None for one that was not."""
        return self._held.get(_key(made))

    def release(self, made: Made) -> None:
        """Let a call be carried out again."""
        self._held.pop(_key(made), None)


def _key(made: Made) -> tuple[str, str]:
    return made[0], arguments_text(made[1])
