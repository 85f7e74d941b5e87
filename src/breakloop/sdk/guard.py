"""`Guard`: the library's entry point. Decides in this process or asks a decision service; if that fails, it allows."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from breakloop.clock import Clock
from breakloop.dialects import openai_chat, registry
from breakloop.dialects.content import load
from breakloop.errors import SettingsError
from breakloop.exceptions import DeniedError, error_for
from breakloop.model.call import Answer
from breakloop.model.decision import Decision, marked
from breakloop.sdk.context import UNNAMED, AgentContext, shared_secret
from breakloop.sdk.core import ANSWERED, IO, Backend, Outcome, sync_and_async, wrap_function
from breakloop.sdk.local_backend import MEMORY, LocalBackend, Policy
from breakloop.sdk.remote_backend import RemoteBackend
from breakloop.sdk.requests import CHAT_PATH, ToolInvocation, chat_call, json_body, make_answer, request_call
from breakloop.sdk.toolkit import GuardedCall, Run, Toolkit

P = ParamSpec("P")
R = TypeVar("R")


class ToolDecorator(Protocol):
    """A decorator that keeps the signature of a function."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


class Guard:
    """Checks LLM requests and the steps of agents. Thread-safe, and usable from any number of tasks:

    ```python
    guard = Guard()

    @guard.tool
    def search(query: str) -> str:
        return "no results"

    with guard.run(agent="support-bot"):
        search("refund policy")  # raises LoopDetectedError when it returns the same for the fifth time
    ```

    An error of breakloop, or a decision service that cannot be reached, never stops the program: the decision is
    `allowed` and `degraded`, and `faults` counts it. Methods that begin with `a` are for use on an event loop.

    Args:
        policy: A bundle: the path of a file or directory, or its content. None is the built-in protection.
        url: The address of a breakloop that decides instead, with its own policy and state (`http://127.0.0.1:8787`).
        token: The key by which that breakloop recognises this program.
        state: Where counters are: in this process, or in a Redis that several processes share (`redis://...`).
        clock: The time, for tests: `breakloop.testing.FakeClock`.
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

    async def _check(
        self,
        io: IO,
        body: Mapping[str, Any] | bytes,
        *,
        path: str = "",
        headers: Mapping[str, str] | None = None,
        agent: str = "",
        session: str = "",
        parent: str = "",
    ) -> Decision:
        """Decide about an LLM request before it is sent. Body and path are those of the provider's API; without a path,
        the API is recognised by the body. `parent` is the session that started this one.

        Report how it ended with `report`, so that failed requests do not count and estimated tokens are corrected.
        """
        sent = body if isinstance(body, bytes) else json_body(body)
        named = {**(headers or {}), **AgentContext(agent, session, parent).headers()}
        fields = {"content-type": "application/json", **named}
        return await io.decide(request_call("POST", path or _path_of(sent), fields, sent, host="localhost"))

    check, acheck = sync_and_async(_check)

    async def _report(
        self,
        io: IO,
        decision: Decision,
        *,
        status: int = 200,
        text: str = "",
        calls: Iterable[ToolInvocation] = (),
        usage: Mapping[str, int] | None = None,
        response: Any = None,
    ) -> None:
        """Report the answer to a request that was checked: what the model wrote and called, and its tokens
        (`input_tokens`, `output_tokens`), or `response`, the provider's response as a dictionary or an object of its
        SDK. With `previous_response_id` or `conversation`, only a `response` shows which calls the next request has the
        results of."""
        known = answer_in(response) if response is not None else make_answer(status, text, calls, usage)
        await io.settle(decision, known)

    report, areport = sync_and_async(_report)

    async def _wait(self, io: IO, decision: Decision) -> None:
        """Sleep for the delay of a throttle."""
        await io.wait(decision)

    wait, async_wait = sync_and_async(_wait)

    async def _enforce(self, io: IO, decision: Decision) -> str:
        """Raise `DeniedError` for a denial and sleep for a throttle. Returns the notice for the model, or ""."""
        if not decision.allowed:
            raise error_for(decision)
        await io.wait(decision)
        return decision.notice

    enforce, aenforce = sync_and_async(_enforce)

    # -- agents

    def run(self, agent: str = "", session: str = "", *, model: str = "", task: str = "", parent: str = "") -> Run:
        """Return a new run, to report steps to or to use as a context manager.

        Args:
            agent: Its name: agents with different names never share a count.
            session: The conversation that it continues, such as the id of a ticket. Without one, it is a new one.
            model: The model that it calls, for policies that match on it and for prices.
            task: What it was asked to do: the first message of the conversation.
            parent: The session of the run that started it (`Run.session`), if any: they are one tree of agents.
        """
        return self._toolkit.new_run(AgentContext(agent, session, parent), model=model, task=task)

    async def _step(
        self,
        io: IO,
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
        return await run._step(io, calls, results, text=text, user=user)

    step, astep = sync_and_async(_step)

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
        if on_block not in {"raise", "return"}:
            raise ValueError('on_block must be "raise" or "return"')

        def decorate(given: Callable[P, R]) -> Callable[P, R]:
            tool = _Tool(self._toolkit, given, name, returns=on_block == "return")
            return wrap_function(self._toolkit, given, tool.invoke)

        return decorate if function is None else decorate(function)

    def llm(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function, sync or async, that sends `messages` (or the first text argument) to a model. Each
        request is checked before it is sent; a denial raises, a throttle waits."""
        signature = inspect.signature(function)

        def prepare(*args: Any, **kwargs: Any) -> tuple[GuardedCall, Callable[[Decision], Any]]:
            bound = signature.bind(*args, **kwargs)
            call = chat_call(json_body(_chat_body(bound)), UNNAMED)

            def make(decision: Decision) -> Any:
                _add_note(bound.arguments, call.body, decision.note)
                if decision.landed:
                    _switch_off_tools(bound)
                return function(*bound.args, **bound.kwargs)

            return GuardedCall(call, UNNAMED, _raise_denial, answer_in), make

        return self._toolkit.wrap(function, prepare)


class _Tool:
    def __init__(self, toolkit: Toolkit, function: Callable[..., Any], name: str, *, returns: bool) -> None:
        self._toolkit = toolkit
        self._function = function
        self._name = name or getattr(function, "__name__", "tool")
        self._returns = returns
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):
            self._signature = None

    async def invoke(self, io: IO, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        run, call = self._toolkit.run_for(), (self._name, self._arguments(args, kwargs))
        decision = await run._before_tool(io, *call)
        if not decision.allowed:
            return self._denied(decision)
        outcome = await io.invoke(lambda: self._function(*args, **kwargs))
        error = outcome.error
        if error is not None and (isinstance(error, DeniedError) or not isinstance(error, Exception)):
            return outcome  # an inner guard has reported it, or the program is ending
        decision = await run._after_tool(io, *call, outcome.value if error is None else error)
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


_PATHS: Final = {
    "anthropic_messages": "/v1/messages",
    "openai_responses": "/v1/responses",
    "openai_embeddings": "/v1/embeddings",
    "openai_completions": "/v1/completions",
}


def _path_of(body: bytes) -> str:
    """Return the path of an LLM request that is known by its body only."""
    return _PATHS.get(registry.of_fields(load(body)), CHAT_PATH)


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
    reading = None if dialect is None else registry.reader(dialect.name, b"application/json")
    if reading is None:
        return ANSWERED
    try:
        reading.feed(json.dumps(content, default=repr).encode())
    except (TypeError, ValueError):
        return ANSWERED
    return reading.answer(200, complete=True)


def _chat_body(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the LLM request that the arguments of a function stand for."""
    given: dict[str, Any] = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    messages = given.get("messages")
    if not isinstance(messages, list):
        prompt = next((value for value in given.values() if isinstance(value, str)), "")
        messages = [{"role": "user", "content": prompt}]
    return {"model": str(given.get("model", "unknown")), "messages": messages}


def _switch_off_tools(bound: inspect.BoundArguments) -> None:
    """Set `tool_choice` to none if the function is called with tools and takes it, as a parameter or any other."""
    given, parameters = bound.arguments, bound.signature.parameters
    more = next((name for name, one in parameters.items() if one.kind is one.VAR_KEYWORD), "")
    rest: dict[str, Any] = given.get(more, {})
    if not (given.get("tools") or rest.get("tools")):
        return
    if "tool_choice" in parameters:
        given["tool_choice"] = "none"
    elif more:
        given[more] = {**rest, "tool_choice": "none"}


def _add_note(arguments: dict[str, Any], body: bytes, note: str) -> None:
    """Append the note of `steer` to the argument `messages`, if the function has one."""
    if note and isinstance(arguments.get("messages"), list):
        noted = registry.DIALECTS[openai_chat.NAME].append_note(body, note)
        if noted is not None:
            arguments["messages"] = json.loads(noted)["messages"]
