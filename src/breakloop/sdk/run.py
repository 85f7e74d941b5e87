"""One run of an agent, told step by step: a step is what the model did and what came back. Each becomes a request in
the words of a chat API, judged like one; the step that follows settles it.

What a custom loop did, written as the chat request that would come next: so detectors judge it as they judge LLM
traffic. Bounded: the oldest steps are forgotten, and long results are cut and told apart by a digest.

Calls of tools as steps, where somebody else carries them out: judged when they have returned, and when they are
about to be made again though they were blocked. In both colours. `tools` does the same around a function.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextvars import Token
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Self

from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import AgentContext, answer_of, arguments_text, chat_call

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard


Made = tuple[str, Any]  # a tool call: its name and its arguments

RESULT_MAX_CHARS: Final = 8 * 1024
_BYTES_MAX: Final = 128 * 1024
_BYTES_KEPT: Final = 16 * 1024  # of the newest, when there are more


class Transcript:
    """One conversation as it grows."""

    __slots__ = ("_calls", "_head", "_messages", "_size", "_token")

    def __init__(self, model: str, task: str) -> None:
        opening = {"role": "user", "content": task or "Begin."}
        self._head = b'{"model":%s,"messages":[%s' % (_bytes(model or "unknown"), _bytes(opening))
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._token = secrets.token_hex(6)  # ids of calls are never those of another run
        self._calls = 0

    def add(self, calls: Sequence[Made], results: Sequence[Any], text: str, user: str) -> bytes:
        """Take in a step: what the model said and called, and what came back. Returns the whole request."""
        check_calls(calls)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        ids = [self._id() for _ in calls]
        if calls:
            message["tool_calls"] = [
                {"id": one, "type": "function", "function": {"name": name, "arguments": arguments_text(arguments)}}
                for one, (name, arguments) in zip(ids, calls, strict=True)
            ]
        self._keep(message)
        for index, result in enumerate(results):
            tool = ids[index] if index < len(ids) else self._id()
            self._keep({"role": "tool", "tool_call_id": tool, "content": result_text(result)})
        if user or not results:
            self._keep({"role": "user", "content": user})
        self._forget()
        return b"%s,%s]}" % (self._head, b",".join(self._messages))

    def opening(self) -> bytes:
        """Return the request that everything begins with."""
        return self._head + b"]}"

    def _keep(self, message: dict[str, Any]) -> None:
        written = _bytes(message)
        self._messages.append(written)
        self._size += len(written)

    def _forget(self) -> None:
        """Cut rarely and deep: a context that shrinks with every step would look like one that is being lost."""
        if self._size > _BYTES_MAX:
            while self._size > _BYTES_KEPT and len(self._messages) > 1:
                self._size -= len(self._messages.popleft())
            while len(self._messages) > 1 and not self._messages[0].startswith(b'{"role":"assistant"'):
                self._size -= len(self._messages.popleft())

    def _id(self) -> str:
        self._calls += 1
        return f"call_{self._token}{self._calls}"


def check_calls(calls: Any) -> None:
    """Raise `TypeError` for what are no calls, which is a mistake in the program that tells them."""
    if not isinstance(calls, str | bytes | Mapping) and all(
        isinstance(one, tuple | list) and len(one) == 2 and isinstance(one[0], str) for one in calls
    ):
        return
    raise TypeError('calls: must be a list of (name, arguments), such as [("search", {"query": "x"})]')


def result_text(result: Any) -> str:
    """Return what a tool returned (or raised) as a model would be shown it; errors in a form that says so."""
    if isinstance(result, str):
        text = result
    elif isinstance(result, BaseException):
        text = f"Error: {type(result).__name__}: {_said(result)}"
    elif isinstance(result, bytes | bytearray):
        text = f"<{len(result)} bytes {blake2b(result, digest_size=8).hexdigest()}>"
    else:
        text = arguments_text(result)
    if len(text) <= RESULT_MAX_CHARS:
        return text
    whole = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[:RESULT_MAX_CHARS]}\n<{len(text) - RESULT_MAX_CHARS} more characters, {whole}>"


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an outermost edge: errors of others may fail to say what they are
        return ""


def _bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


_HELD_MAX: Final = 64


class Run:
    """A run. As a context manager it is the one that `@guard.tool` and `guard.step` belong to."""

    def __init__(self, guard: Guard, names: AgentContext, *, model: str = "", task: str = "") -> None:
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


def before(run: Run, made: Made) -> Decision:
    """Decide about a call that is about to be made: one that was blocked is judged again, and free once it may pass."""
    held = run.held(made)
    return Decision() if held is None else _freed(run, made, run.step([made], [held]))


async def abefore(run: Run, made: Made) -> Decision:
    """The same, without blocking the event loop."""
    held = run.held(made)
    return Decision() if held is None else _freed(run, made, await run.astep([made], [held]))


def after(run: Run, made: Made, result: Any) -> Decision:
    """Decide about a call that has returned, and wait as long as a throttle says. Blocked, it is not made again."""
    decision = run.step([made], [result])
    run.guard.wait(decision)
    return _held(run, made, result, decision)


async def aafter(run: Run, made: Made, result: Any) -> Decision:
    """The same, without blocking the event loop."""
    decision = await run.astep([made], [result])
    await run.guard.await_(decision)
    return _held(run, made, result, decision)


def _freed(run: Run, made: Made, decision: Decision) -> Decision:
    if decision.allowed:
        run.release(made)
    return decision


def _held(run: Run, made: Made, result: Any, decision: Decision) -> Decision:
    if not decision.allowed:
        run.hold(made, result_text(result))
    return decision
