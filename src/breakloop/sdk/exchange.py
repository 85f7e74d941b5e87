"""What httpx and httpx2 transports do, in the words that both of them share: judge a request, answer it in the server's
stead, or pass it on and read the answer along. Whose classes are made is `transport`'s and `transport2`'s business."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from breakloop.model.answer import NO_ANSWER, Answer
from breakloop.model.call import Call
from breakloop.model.decision import Decision
from breakloop.sdk.core import chat_of, is_readable, request_call
from breakloop.sdk.reading import SettlingReader
from breakloop.sdk.rendering import denied
from breakloop.wire import steer

if TYPE_CHECKING:
    from breakloop.sdk.guard import Guard


class Kinds(NamedTuple):
    """Classes of one of the two libraries: an answer, a stream as it comes, and one with a reader beside it."""

    response: Any
    stream: Any
    tapped: Any


def through(guard: Guard, request: Any, send: Callable[[Any], Any], kinds: Kinds) -> Any:
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


async def athrough(guard: Guard, request: Any, send: Callable[[Any], Awaitable[Any]], kinds: Kinds) -> Any:
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
    chat = chat_of(decision.call)
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


class Tapped:
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


class AsyncTapped:
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
