"""Scripted responses as data: their content, how they are sent, and which request gets which.

Providers render an `Answer` in their dialect; `connection` puts it on the wire. A `Gate` releases a stream chunk by
chunk.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from breakloop.model.call import Usage
from breakloop.testing.http import SeenRequest

WAIT_S: Final = 60.0  # of a test for what must happen; long, because test machines are busy


class News:
    """Wakes tasks that wait for a condition. Everything runs in the thread of one event loop."""

    def __init__(self) -> None:
        self._told = asyncio.Event()
        self.tell = self._told.set  # re-evaluate the conditions of all waiting tasks

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the condition holds. Raises TimeoutError if it does not in time."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._told.clear()
                await self._told.wait()


class Gate:
    """Holds each chunk of one response until it is released. The head is sent at once."""

    __slots__ = ("_news", "_open", "_released", "_resume", "_taken", "sent")

    def __init__(self) -> None:
        self.sent = 0  # chunks so far
        self._released = 0
        self._taken = 0
        self._open = False
        self._resume: Callable[[], None] | None = None
        self._news = News()

    # Called by the connection: whether the next chunk may be sent; if not, `resume` is called when it may.
    def passes(self, resume: Callable[[], None]) -> bool:
        if self._open or self._taken < self._released:
            self._taken += 1
            return True
        self._resume = resume
        return False

    def went(self) -> None:
        self.sent += 1
        self._news.tell()

    async def release(self, chunks: int = 1, *, timeout_s: float = WAIT_S) -> int:
        """Release chunks; returns the number of chunks sent so far when they have been written."""
        wanted = self._released + chunks
        self._released = wanted
        self._go()
        await self._news.until(lambda: self.sent >= wanted, timeout_s)
        return self.sent

    async def finish(self) -> None:
        """Release all remaining chunks."""
        self._open = True
        self._go()

    def _go(self) -> None:
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()


Place = Literal["start", "head"] | int  # before the head; after the head; after a number of chunks
Framing = Literal["auto", "length", "chunked", "close"]
Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call of the model."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in the dialect's own shape; with `at`, inside a stream after a number of chunks."""

    message: str
    kind: str = ""
    code: str = ""
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """A body that is sent as it is."""

    content: tuple[bytes, ...]
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Stall:
    """Stop sending at this point for some seconds, or until the client disconnects or `resume()` is called."""

    at: Place
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """End the connection at this point; `after_bytes` counts everything sent, including the head."""

    at: Place
    after_bytes: int | None = None
    mid_chunk: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Manner:
    """How a response is sent. The defaults are those of a well-behaved HTTP/1.1 server."""

    delay_s: float = 0.0
    interval_s: float = 0.0
    stalls: tuple[Stall, ...] = ()
    cut: Cut | None = None
    framing: Framing = "auto"
    version: Literal["1.1", "1.0"] = "1.1"
    headers: Fields = ()
    realistic: bool = False
    trailers: Fields = ()
    informational: tuple[tuple[int, Fields], ...] = ()
    coding: str = ""
    packed_by: Callable[[bytes], bytes] | None = None
    coding_forced: bool = False
    piece_bytes: int = 0
    early: bool = False
    drain: bool = True
    close: bool = False
    gate: Gate | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. Each method returns a changed copy, so that responses can be shared."""

    chunks: tuple[str, ...] = ()
    tools: tuple[ToolUse, ...] = ()
    finish: str = ""  # "stop", "length", "filter"; derived from the tools if empty
    usage: Usage | None = None
    status: int = 200
    failure: Failure | None = None
    body: Body | None = None
    raw: tuple[bytes, ...] | None = None
    size_bytes: int = 0
    stream: bool | None = None  # None: as the request asks
    tool_error: bool = False  # MCP: the text is a tool error
    manner: Manner = field(default_factory=Manner)

    @property
    def text(self) -> str:
        return "".join(self.chunks)

    def sent(self, **manner: Any) -> Answer:
        """Change how the response is sent, by the names of `Manner`'s fields."""
        return replace(self, manner=replace(self.manner, **manner))

    # -- content

    def with_tool(self, name: str, arguments: Mapping[str, Any] | str | None = None, *, tool_id: str = "") -> Answer:
        """Add a tool call. Arguments that are text are sent as they are, for JSON that is invalid."""
        return replace(self, tools=(*self.tools, ToolUse(name, {} if arguments is None else arguments, tool_id)))

    def with_usage(self, input_tokens: int, output_tokens: int, *, cached: int = 0, reasoning: int = 0) -> Answer:
        """Report these token counts instead of estimates; `cached` is part of the input."""
        return replace(self, usage=Usage(input_tokens, output_tokens, cached, 0, reasoning))

    def then_fail(self, at: int, message: str = "Overloaded", *, kind: str = "", code: str = "") -> Answer:
        """Send an error event after a number of chunks of the stream."""
        return replace(self, failure=Failure(message, kind, code, at))

    def streamed(self, stream: bool = True) -> Answer:  # noqa: FBT001, FBT002 - reads as `streamed()` and `streamed(False)`
        """Stream or not, whatever the request asks for; MCP: respond with server-sent events."""
        return replace(self, stream=stream)

    # -- timing

    def delayed(self, seconds: float) -> Answer:
        """Wait before the head is sent."""
        return self.sent(delay_s=seconds)

    def paced(self, interval_s: float) -> Answer:
        """Wait before each chunk."""
        return self.sent(interval_s=interval_s)

    def stall(self, at: Place = "head", *, for_s: float | None = None) -> Answer:
        """Stop sending before the head ("start"), after it ("head"), or after a number of chunks."""
        return self.sent(stalls=(*self.manner.stalls, Stall(at, for_s)))

    def cut(
        self, at: Place = "head", *, after_bytes: int | None = None, mid_chunk: bool = False, reset: bool = False
    ) -> Answer:
        """End the connection at a point as in `stall`, in the middle of the next chunk, or after a number of bytes."""
        return self.sent(cut=Cut(at, after_bytes, mid_chunk, reset))

    def early(self, *, drain: bool = True) -> Answer:
        """Respond as soon as the head of the request is complete; without `drain`, its body is never read."""
        return self.sent(early=True, drain=drain)

    # -- framing

    def with_headers(self, *pairs: tuple[str, str], **named: str) -> Answer:
        """Add headers (`x_request_id="1"` is `x-request-id: 1`). They replace headers of the same name."""
        more = tuple((name.replace("_", "-"), value) for name, value in named.items())
        return self.sent(headers=(*self.manner.headers, *pairs, *more))

    def realistic(self) -> Answer:
        """Send the headers of a provider's edge: 24 in all."""
        return self.sent(realistic=True)

    def framed(self, framing: Framing) -> Answer:
        """Send the length of the body, chunks, or end the body by closing the connection."""
        return self.sent(framing=framing)

    def http10(self) -> Answer:
        """Respond as an HTTP/1.0 server."""
        return self.sent(version="1.0")

    def closing(self) -> Answer:
        """Send `Connection: close` and close the connection."""
        return self.sent(close=True)

    def with_trailers(self, *pairs: tuple[str, str]) -> Answer:
        """Send the body in chunks, and these fields after the last one."""
        return self.sent(trailers=pairs, framing="chunked")

    def after_informational(self, status: int = 103, *pairs: tuple[str, str]) -> Answer:
        """Send an interim (1xx) response first."""
        return self.sent(informational=(*self.manner.informational, (status, pairs)))

    def compressed(
        self, coding: str = "gzip", *, packed_by: Callable[[bytes], bytes] | None = None, forced: bool = False
    ) -> Answer:
        """Compress the body if the client accepts it (`forced`: in any case).

        gzip and deflate are built in and flushed with every chunk. For other encodings pass a function, which gets
        the whole body; its output is sent in the same number of chunks.
        """
        if packed_by is None and coding not in {"gzip", "deflate"}:
            raise ValueError(f"no compressor for {coding}: pass one as packed_by")
        return self.sent(coding=coding, packed_by=packed_by, coding_forced=forced)

    def pieces_of(self, size_bytes: int) -> Answer:
        """Cut the body into chunks of this size instead of one chunk per event."""
        if size_bytes < 1:
            raise ValueError("a piece has at least one byte")
        return self.sent(piece_bytes=size_bytes)


Respond = Callable[[SeenRequest], Answer | None]
When = Callable[[SeenRequest], bool]

DEFAULT_TEXT: Final = "This is a stand-in, not a model."
FINAL_TEXT: Final = "I finish with what I have."  # instead of a scripted call without a text, where tools are off
NONSENSE: Final = b"\x16\x03\x01 this is no HTTP\r\n\r\n"
_WORDS: Final = re.compile(r"\s*\S+\s*$|\s*\S+")


def say(text: str = "", *, chunks: Iterable[str] | None = None, finish: str = "", usage: Usage | None = None) -> Answer:
    """Respond with a text. A stream sends it word by word, or in the given chunks."""
    pieces = tuple(_WORDS.findall(text) or ([text] if text else [])) if chunks is None else tuple(chunks)
    return Answer(chunks=pieces, finish=finish, usage=usage)


def call_tool(
    name: str, arguments: Mapping[str, Any] | str | None = None, *, text: str = "", tool_id: str = ""
) -> Answer:
    """Respond with a tool call, after the text if there is one; `with_tool` adds further calls."""
    return say(text).with_tool(name, arguments, tool_id=tool_id)


def tool_failed(text: str) -> Answer:
    """MCP: the tool ran and failed; the model can read the error."""
    return replace(say(text), tool_error=True)


def fail(
    status: int = 500,
    message: str = "",
    *,
    kind: str = "",
    code: str = "",
    retry_after: int | str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Respond with an error in the shape of the request's dialect."""
    fields = tuple((headers or {}).items())
    if retry_after is not None:
        fields = (("Retry-After", str(retry_after)), *fields)
    failure = Failure(message or f"stand-in error {status}", kind, code)
    return Answer(status=status, failure=failure).with_headers(*fields)


def body(content: bytes | Sequence[bytes], *, content_type: str = "application/json", status: int = 200) -> Answer:
    """Respond with this body, in one chunk or in the given ones."""
    pieces = (content,) if isinstance(content, bytes) else tuple(content)
    return Answer(status=status, body=Body(pieces, content_type))


def sized(size_bytes: int, *, chunks: int = 1) -> Answer:
    """Respond with a body of exactly this size; a stream has a text of about this size in `chunks` chunks."""
    each, more = divmod(max(size_bytes, 0), max(chunks, 1))
    pieces = [filler(each + (1 if index < more else 0)) for index in range(max(chunks, 1))]
    return replace(say(chunks=pieces), size_bytes=size_bytes)


def raw(data: bytes | Sequence[bytes], *, close: bool = True) -> Answer:
    """Send exactly these bytes instead of a response, then close the connection or leave it open."""
    return Answer(raw=(data,) if isinstance(data, bytes) else tuple(data)).sent(close=close)


def nonsense(data: bytes = NONSENSE) -> Answer:
    """Respond with bytes that are not HTTP."""
    return raw(data)


def stall(at: Place = "start", *, for_s: float | None = None) -> Answer:
    """Do not respond: no head is sent, unless `at` is given."""
    return say(DEFAULT_TEXT).stall(at, for_s=for_s)


def cut(at: Place = "start", *, after_bytes: int | None = None, mid_chunk: bool = False, reset: bool = False) -> Answer:
    """End the connection without a response, unless `at` is given."""
    return say(DEFAULT_TEXT).cut(at, after_bytes=after_bytes, mid_chunk=mid_chunk, reset=reset)


def filler(size: int) -> str:
    """Return plain text of this length in which no two lines are equal, so that it is not taken for a loop."""
    line = "the quick brown fox jumps over the lazy dog"
    return "".join([f"{number} {line} " for number in range(1, size // len(line) + 2)])[:size]


class Script:
    """Selects responses: queued ones first, then the result of `respond`, then the default."""

    def __init__(self, default: Answer | None = None, respond: Respond | None = None) -> None:
        self.default = default
        self.respond = respond
        self._queue: deque[tuple[Answer, When | None]] = deque()

    @property
    def left(self) -> int:
        return len(self._queue)

    def next(self, *answers: Answer, when: When | None = None) -> None:
        """Queue responses, one per request; with `when`, for requests that match."""
        self._queue.extend((answer, when) for answer in answers)

    def early(self, seen: SeenRequest) -> Answer | None:
        """Take the queued response that is sent before the body has arrived, if there is one for this request."""
        found = self._first(seen)
        if found is None or not found[0].manner.early:
            return None
        self._queue.remove(found)
        return found[0]

    def take(self, seen: SeenRequest) -> Answer | None:
        """Take the response for a complete request; None for the default."""
        found = self._first(seen)
        if found is not None:
            self._queue.remove(found)
            return found[0]
        if seen.is_housekeeping:
            return None
        answer_now = None if self.respond is None else self.respond(seen)
        return self.default if answer_now is None else answer_now

    def _first(self, seen: SeenRequest) -> tuple[Answer, When | None] | None:
        for queued in tuple(self._queue):
            when = queued[1]
            if not seen.is_housekeeping if when is None else when(seen):
                return queued
        return None
