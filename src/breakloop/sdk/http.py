"""Guarded HTTP exchanges, for the httpx transports, the ASGI middleware and LiteLLM: check a request, return the denial
that a gateway would send, or pass the request on and read the response as it passes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from breakloop.dialects import denial, mcp, registry
from breakloop.dialects.answers import PassingAnswer, unpacker
from breakloop.dialects.encoding import EncodingError
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, TOOL_DIALECTS, Answer, Call
from breakloop.model.decision import Decision
from breakloop.model.verdict import REASONS, LoopFinding, Verdict
from breakloop.sdk.core import IO, Outcome, run_blocking, sync_and_async
from breakloop.sdk.guard import Guard
from breakloop.sdk.requests import handle_of, is_readable, request_call
from breakloop.sdk.toolkit import Toolkit, toolkit_of

T = TypeVar("T")

_HEADERS: Final = denial.VerdictHeaders(denial.PREFIX, b"")


class SettlingReader:
    """Reads a response as it passes, and settles the request once, when the response ends. Bytes are never held back,
    changed, or lost to a fault of ours. `feed` takes them as they came, still compressed."""

    def __init__(self, toolkit: Toolkit, decision: Decision, status: int, content_type: bytes, encoding: bytes) -> None:
        self._toolkit = toolkit
        self._decision = decision
        self._status = status
        self._over = False
        self._passing = _passing_answer(decision, content_type, encoding)

    def feed(self, content: bytes) -> None:
        if self._passing is not None:
            self._passing.feed([content])

    async def _end(self, io: IO, *, complete: bool) -> None:
        """Settle. `complete` is False if the client gave up before the end."""
        if not self._over:
            self._over = True
            await io.settle(self._decision, self._answer(complete=complete))

    end, aend = sync_and_async(_end)

    def _answer(self, *, complete: bool) -> Answer:
        if self._passing is None:
            answer = Answer(self._status, complete=complete)
        else:
            answer = self._passing.answer(self._status, complete=complete)
        return answer if complete or answer.complete else answer._replace(status=CLIENT_LEFT)


def _passing_answer(decision: Decision, content_type: bytes, encoding: bytes) -> PassingAnswer | None:
    """Return a reader of the response; None if only its status counts."""
    call = handle_of(decision).call
    chat = registry.head_of(call) if call is not None else None
    found = registry.reader(chat.dialect, content_type, streamed=chat.stream) if chat is not None else None
    try:
        # What cannot be read is settled by its status.
        return PassingAnswer(found, unpacker(encoding), lambda _why: None) if found is not None else None
    except EncodingError:
        return None


class DeniedResponse(NamedTuple):
    """The HTTP response to a request that was denied."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def denied_response(decision: Decision) -> DeniedResponse:
    """Return the status, header fields and body that a gateway would send, so that SDKs raise their own error and do
    not retry."""
    handle = handle_of(decision)
    verdict, call = handle.verdict or _verdict(decision), handle.call or Call("", "", request_id=decision.request_id)
    chat = registry.head_of(call)
    dialect = chat.dialect if chat is not None else ""
    status, body = registry.denial_for(verdict, call, dialect)
    if handle.body and dialect not in TOOL_DIALECTS:  # the service's own body has more of the verdict
        body = handle.body
    headers = handle.headers or denial.field_pairs(_HEADERS.denied(verdict, decision.request_id, ""))
    sized = ("Content-Type", "application/json"), ("Content-Length", str(len(body)))
    return DeniedResponse(status, [*headers, *sized], body)


def _verdict(decision: Decision) -> Verdict:
    """Return the verdict of a decision service, as far as its response shows it."""
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


def httpx_call(request: Any, body: bytes) -> Call:
    """Return a request of httpx or httpx2 as a `Call`."""
    call = request_call(request.method, request.url.raw_path, request.headers.raw, body, host=request.url.host)
    call.body_unseen = not body and request.headers.get("content-length", "") not in {"", "0"}
    call.body_unseen = call.body_unseen or "transfer-encoding" in request.headers
    return call


def steered_body(decision: Decision) -> bytes | None:
    """Return the body with the note of `steer` in it, for `land` with tools switched off; None if there is no note, or
    no place for it."""
    call = handle_of(decision).call
    if not decision.note or call is None:
        return None
    chat = registry.head_of(call)
    if chat is None:
        return None
    dialect = registry.DIALECTS[chat.dialect]
    return (dialect.land if decision.landed else dialect.append_note)(call.body, decision.note)


def with_body(request: Any, body: bytes) -> Any:
    """Return a copy of an httpx request with another body."""
    dropped = ("content-length", "content-encoding", "transfer-encoding")
    headers = [(name, value) for name, value in request.headers.raw if name.lower().decode("latin-1") not in dropped]
    return type(request)(request.method, request.url, headers=headers, content=body, extensions=request.extensions)


class _Tapped:
    """The stream of a response, which a `SettlingReader` reads as it passes."""

    def __init__(self, stream: Any, along: SettlingReader) -> None:
        self._stream = stream
        self._along = along
        self._complete = False


class TappedStream(_Tapped):
    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._along.feed(piece)  # before the yield: SDKs stop at the end mark, and never ask for more
            yield piece
        self._complete = True

    def close(self) -> None:
        """Close the stream and settle the request, also if it was not read to its end."""
        try:
            self._stream.close()
        finally:
            self._along.end(complete=self._complete)


class AsyncTappedStream(_Tapped):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._along.feed(piece)
            yield piece
        self._complete = True

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._along.aend(complete=self._complete)


class _Transport(Generic[T]):
    """What the two transports below share. `T` is the class of the transport that they pass requests on to."""

    _library: Any  # httpx or httpx2
    _default: ClassVar[str]  # the library's own transport
    _stream: ClassVar[str]  # its class of streams
    _tapped: ClassVar[type]

    def __init__(self, transport: T | None = None, *, guard: Guard | None = None) -> None:
        self._transport: Any = transport or getattr(self._library, self._default)()
        self.guard = guard or Guard()

    async def _send(self, io: IO, request: Any, read: Callable[[], Any], send: Callable[[Any], Any]) -> Outcome:
        """Check a request; return its denial, or send it."""
        kind, length = (request.headers.get(name, "") for name in ("content-type", "content-length"))
        body = await io.invoke(read) if is_readable(kind, length) else Outcome(b"")
        if body.error is not None:
            return body
        decision = await io.decide(httpx_call(request, body.value))
        if not decision.allowed:
            status, headers, content = denied_response(decision)
            return Outcome(self._library.Response(status, headers=headers, content=content, request=request))
        await io.wait(decision)
        steered = steered_body(decision)
        sent = request if steered is None else with_body(request, steered)
        self._name_sender(sent, decision)
        outcome = await io.invoke(lambda: send(sent))
        if outcome.error is not None:
            await io.settle(decision, Answer(NO_ANSWER))
            return outcome
        response, stream = outcome.value, getattr(self._library, self._stream)
        kind = response.headers.get("content-type", "").encode("latin-1")
        encoding = b"" if response.is_closed else response.headers.get("content-encoding", "").encode("latin-1")
        along = SettlingReader(toolkit_of(self.guard), decision, response.status_code, kind, encoding)
        if response.is_closed:  # from a cache or a mock: it has been read
            along.feed(response.content)
            await along._end(io, complete=True)
        elif isinstance(response.stream, stream):
            response.stream = _accepted(self._tapped, stream)(response.stream, along)
        return outcome

    def _name_sender(self, request: Any, decision: Decision) -> None:
        """Add the names of the agent to a request for another agent or a tool, which goes on from its place in the
        tree. LLM providers do not get them."""
        toolkit = toolkit_of(self.guard)
        named, call = toolkit.context().headers(), handle_of(decision).call
        if named and call is not None and mcp.hop_ids(call) is not None:
            for name, value in named.items():
                request.headers.setdefault(name, value)


@cache
def _accepted(tapped: type, stream: type) -> type:
    """Return a class of streams that the library accepts as its own."""
    return type(tapped.__name__, (tapped, stream), {})


class GuardedTransport(_Transport[T]):
    """The first base of a transport for clients; the second is the library's."""

    _default, _stream = "HTTPTransport", "SyncByteStream"
    _tapped = TappedStream

    def handle_request(self, request: Any) -> Any:
        io = toolkit_of(self.guard).blocking
        return run_blocking(self._send(io, request, request.read, self._transport.handle_request)).result()

    def close(self) -> None:
        self._transport.close()


class AsyncGuardedTransport(_Transport[T]):
    """Like `GuardedTransport`, for asynchronous clients."""

    _default, _stream = "AsyncHTTPTransport", "AsyncByteStream"
    _tapped = AsyncTappedStream

    async def handle_async_request(self, request: Any) -> Any:
        io = toolkit_of(self.guard).asynchronous
        return (await self._send(io, request, request.aread, self._transport.handle_async_request)).result()

    async def aclose(self) -> None:
        await self._transport.aclose()
