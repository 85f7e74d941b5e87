"""What httpx and httpx2 transports do, in the words that both of them share: judge a request, answer it in the server's
stead, or pass it on and read the answer along. Whose classes are made is `transport`'s and `transport2`'s business.

Reads an answer along while it passes to the program that asked for it, and settles the request once, when the answer
ends. Bytes are never held back, changed, or lost to a fault of ours.

A denial as an HTTP answer, where the library answers instead of the server: the status, fields and body that a
gateway would send, so that SDKs raise their own error and do not try again (SPEC A-1 to A-4).

What the integrations of frameworks do around a call of theirs, in both colours: judge, stop or wait, let it be made
under its names, settle. What a call says, and what stands for a denied one, is each framework's own file's business.

What the drop-in clients share: where the gateway is, who is speaking, and which of an SDK's errors are denials.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from breakloop.dialects import denial, mcp, registry, steer
from breakloop.dialects.encoding import EncodingError
from breakloop.dialects.reader import PassingAnswer, reader, unpacker
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call
from breakloop.model.verdict import REASONS, Decision, LoopFinding, Verdict
from breakloop.sdk import backend
from breakloop.sdk.backend import AgentContext, agent, current, is_readable, request_call
from breakloop.sdk.environment import gateway_url
from breakloop.sdk.guard import Guard


class SettlingReader:
    """One answer on its way. `feed` takes bytes as they came over the wire, packed as they are."""

    __slots__ = ("_decision", "_guard", "_over", "_passing", "_status")

    def __init__(self, guard: Guard, decision: Decision, status: int, content_type: bytes, encoding: bytes) -> None:
        self._guard = guard
        self._decision = decision
        self._status = status
        self._over = False
        self._passing = _passing(decision, content_type, encoding)

    def feed(self, content: bytes) -> None:
        """Take what has just passed."""
        if self._passing is not None:
            self._passing.feed([content])

    def end(self, *, complete: bool) -> None:
        """Settle: the answer is through, or was given up."""
        if not self._over:
            self._over = True
            self._guard.settle(self._decision, self._answer(complete=complete))

    async def aend(self, *, complete: bool) -> None:
        """The same, without blocking the event loop."""
        if not self._over:
            self._over = True
            await self._guard.asettle(self._decision, self._answer(complete=complete))

    def _answer(self, *, complete: bool) -> Answer:
        if self._passing is None:
            answer = Answer(self._status, complete=complete)
        else:
            answer = self._passing.answer(self._status, complete=complete)
        return answer if complete or answer.complete else answer._replace(status=CLIENT_LEFT)


def _passing(decision: Decision, content_type: bytes, encoding: bytes) -> PassingAnswer | None:
    chat = registry.head_of(decision.call) if decision.call is not None else None
    found = reader(chat.dialect, content_type, streamed=chat.stream) if chat is not None else None
    try:
        return PassingAnswer(found, unpacker(encoding), _unread) if found is not None else None
    except EncodingError:
        return None


def _unread(_why: str) -> None:
    """An answer that cannot be read is settled by its status."""


_HEADERS: Final = denial.VerdictHeaders(denial.PREFIX, b"")


class DeniedResponse(NamedTuple):
    """An answer instead of the server's."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def denied(decision: Decision) -> DeniedResponse:
    """Return the answer to a request that was denied."""
    verdict, call = _verdict(decision), decision.call or Call("", "", request_id=decision.request_id)
    chat = registry.head_of(call)
    dialect = chat.dialect if chat is not None else ""
    status, body = denial.for_client(verdict, call, dialect)
    if decision.body and dialect != mcp.DIALECT:  # what a service answered, which knows more of the verdict
        body = decision.body
    fields = decision.fields or denial.field_pairs(_HEADERS.denied(verdict, decision.request_id, ""))
    sized = ("Content-Type", "application/json"), ("Content-Length", str(len(body)))
    return DeniedResponse(status, [*fields, *sized], body)


def _verdict(decision: Decision) -> Verdict:
    """Return the engine's own, or what a service's answer tells of it."""
    if isinstance(decision.verdict, Verdict):
        return decision.verdict
    made = Verdict(allowed=False, reason=decision.reason, status=decision.status, message=decision.message)
    made.retry_after_s = decision.retry_after
    known = REASONS.get(decision.reason)
    made.never = decision.retry_after is None or (known is not None and not known.retry_helps)
    if decision.is_loop:
        made.loop = LoopFinding(
            kind=decision.kind,
            fingerprint=decision.fingerprint,
            hit_count=decision.hit_count,
            window_s=0,
            cooldown_s=decision.cooldown_seconds,
            action="",
            fresh=False,
            message=decision.message,
            evidence=decision.evidence,
        )
    return made


class HttpxClasses(NamedTuple):
    """Classes of one of the two libraries: an answer, a stream as it comes, and one with a reader beside it."""

    response: Any
    stream: Any
    tapped: Any


def send_guarded(guard: Guard, request: Any, send: Callable[[Any], Any], kinds: HttpxClasses) -> Any:
    """Judge a request; answer it in the server's stead, or send it on."""
    body = request.read() if wants_body(request) else b""
    decision = guard.judge(call_of(request, body))
    if not decision.allowed:
        return _denied(kinds.response, request, decision)
    guard.wait(decision)
    try:
        response = send(noted(request, decision))
    except BaseException:
        guard.settle(decision, Answer(NO_ANSWER))
        raise
    along = reading(guard, decision, response)
    if response.is_closed:
        along.end(complete=True)
    elif isinstance(response.stream, kinds.stream):
        response.stream = kinds.tapped(response.stream, along)
    return response


async def asend_guarded(guard: Guard, request: Any, send: Callable[[Any], Awaitable[Any]], kinds: HttpxClasses) -> Any:
    """The same, without blocking the event loop."""
    body = await request.aread() if wants_body(request) else b""
    decision = await guard.ajudge(call_of(request, body))
    if not decision.allowed:
        return _denied(kinds.response, request, decision)
    await guard.await_(decision)
    try:
        response = await send(noted(request, decision))
    except BaseException:
        await guard.asettle(decision, Answer(NO_ANSWER))
        raise
    along = reading(guard, decision, response)
    if response.is_closed:
        await along.aend(complete=True)
    elif isinstance(response.stream, kinds.stream):
        response.stream = kinds.tapped(response.stream, along)
    return response


def _denied(response: Any, request: Any, decision: Decision) -> Any:
    status, headers, body = denied(decision)
    return response(status, headers=headers, content=body, request=request)


def wants_body(request: Any) -> bool:
    """Tell whether a request's body is to be read: JSON whose length is known."""
    length = request.headers.get("content-length", "")
    return is_readable(request.headers.get("content-type", ""), int(length) if length.isdigit() else None)


def call_of(request: Any, body: bytes) -> Call:
    """Return a request of httpx as a call; a body that was not read is told apart from none."""
    call = request_call(request.method, request.url.raw_path, request.headers.raw, body, host=request.url.host)
    call.body_unseen = not body and request.headers.get("content-length", "") not in {"", "0"}
    call.body_unseen = call.body_unseen or "transfer-encoding" in request.headers
    return call


def steered(decision: Decision) -> bytes | None:
    """Return the body with the note for the model in it (SPEC LD-5); None where there is none, or no place for it."""
    if not decision.note or decision.call is None:
        return None
    chat = registry.head_of(decision.call)
    return steer.append(chat.dialect, decision.call.body, decision.note) if chat is not None else None


def noted(request: Any, decision: Decision) -> Any:
    """Return the request with the note for the model in it, or as it is where there is none."""
    body = steered(decision)
    return request if body is None else changed(request, body)


def changed(request: Any, body: bytes) -> Any:
    """Return the request with another body."""
    kept = ("content-length", "content-encoding", "transfer-encoding")
    headers = [(name, value) for name, value in request.headers.raw if name.lower().decode("latin-1") not in kept]
    return type(request)(request.method, request.url, headers=headers, content=body, extensions=request.extensions)


def reading(guard: Guard, decision: Decision, response: Any) -> SettlingReader:
    """Return who reads an answer along; one that is there already (from a cache, a mock) has been read then."""
    kind, encoding = response.headers.get("content-type", ""), response.headers.get("content-encoding", "")
    if not response.is_closed:
        return SettlingReader(guard, decision, response.status_code, kind.encode("latin-1"), encoding.encode("latin-1"))
    along = SettlingReader(guard, decision, response.status_code, kind.encode("latin-1"), b"")
    along.feed(response.content)
    return along


class TappedStream:
    """A response's stream with a reader beside it."""

    def __init__(self, stream: Iterable[bytes], along: SettlingReader) -> None:
        self._stream = stream
        self._along = along
        self._through = False

    def __iter__(self) -> Iterator[bytes]:
        """Look at each piece and pass it on. In this order: SDKs stop at the end mark, and never come back for more."""
        for piece in self._stream:
            self._along.feed(piece)
            yield piece
        self._through = True

    def close(self) -> None:
        """Close the stream; the answer is settled, also where nobody read it to its end."""
        try:
            close = getattr(self._stream, "close", None)
            if close is not None:
                close()
        finally:
            self._along.end(complete=self._through)


class AsyncTappedStream:
    """The same for asynchronous streams."""

    def __init__(self, stream: AsyncIterable[bytes], along: SettlingReader) -> None:
        self._stream = stream
        self._along = along
        self._through = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Look at each piece and pass it on."""
        async for piece in self._stream:
            self._along.feed(piece)
            yield piece
        self._through = True

    async def aclose(self) -> None:
        """Close the stream; the answer is settled, also where nobody read it to its end."""
        try:
            close = getattr(self._stream, "aclose", None)
            if close is not None:
                await close()
        finally:
            await self._along.aend(complete=self._through)


T = TypeVar("T")

_ANSWERED = Answer(200, complete=True)


class GuardedCall(NamedTuple):
    """One call. Without a `Call` it is made unjudged: nobody asked, or it could not be read."""

    call: Call | None
    names: AgentContext
    stopped: Callable[[Decision], Any]  # what stands for the result of a denied one; may raise instead
    answered: Callable[[Any], Answer]
    failed: Callable[[BaseException], Answer]


def call_guarded(guard: Guard, around: GuardedCall, make: Callable[[Decision], T]) -> T:
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


async def acall_guarded(guard: Guard, around: GuardedCall, make: Callable[[Decision], Awaitable[T]]) -> T:
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


def _answer(guard: Guard, around: GuardedCall, made: Any) -> Answer:
    with guard.fail_open():
        return around.answered(made)
    return _ANSWERED


def options(given: Mapping[str, Any], path: str, agent: str, session: str) -> dict[str, Any]:
    """Return a client's options with the gateway as its base URL, unless one is given, and with its names."""
    made = dict(given)
    if made.get("base_url") is None:
        made["base_url"] = gateway_url() + path
    named = AgentContext(agent, session).headers()
    if named:
        made["default_headers"] = {**named, **(made.get("default_headers") or {})}
    return made


def named(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return default header fields, with the names of the `with` block around for whoever has none of its own."""
    return {**current().headers(), **headers}


def denial_in(response: Any) -> Decision | None:
    """Return the denial that an SDK is about to raise an error for, if it is one of ours."""
    if response.is_closed and not response.is_stream_consumed:
        return None
    try:
        return backend.from_answer(response.status_code, dict(response.headers), response.content)
    except backend.UnreadableAnswerError:
        return None
