"""What the stand-in answers, as data: what is said, and the manner in which it is sent. How it looks in a dialect is
the renderers' work, how it goes over the wire that of `steps`.

Saying what to answer: the words that make an `Answer`, and the script that decides which request gets which.

Letting a stream out chunk by chunk, by hand, and waiting for things to happen without polling or sleeping.
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


class News:
    """Wakes whoever waits for a condition. Everything happens in one event loop's thread."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """Something changed: everybody looks again."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until it holds; TimeoutError when it does not in time."""
        if condition():
            return
        async with asyncio.timeout(timeout_s):
            while not condition():
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(future)
                await future


class Gate:
    """Holds each chunk of one answer until it is released. The head passes by itself."""

    __slots__ = ("_news", "_open", "_released", "_resume", "_taken", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self._released = 0
        self._taken = 0
        self._open = False
        self._resume: Callable[[], None] | None = None
        self._news = News()

    def passes(self, resume: Callable[[], None]) -> bool:
        """Tell whether the next chunk may go; if not, `resume` is called when it may."""
        if self._open or self._taken < self._released:
            self._taken += 1
            return True
        self._resume = resume
        return False

    def went(self) -> None:
        """A chunk has been written."""
        self.sent += 1
        self._news.tell()

    async def release(self, chunks: int = 1, *, timeout_s: float = 5.0) -> int:
        """Let so many chunks out; returns when they have been written, with the number of chunks sent so far."""
        wanted = self._released + chunks
        self._released = wanted
        self._go()
        await self._news.until(lambda: self.sent >= wanted, timeout_s)
        return self.sent

    async def finish(self) -> None:
        """Let out whatever is left, now and later."""
        self._open = True
        self._go()

    def _go(self) -> None:
        resume, self._resume = self._resume, None
        if resume is not None:
            resume()


Place = Literal["start", "head"] | int  # before the head; after the head; after so many chunks
Framing = Literal["auto", "length", "chunked", "close"]
Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that the model wants called."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in the dialect's own shape; with `at`, one that comes inside a stream after so many chunks."""

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
    """Sends nothing more from there on: for some seconds, or until the client leaves or `resume()` is called."""

    at: Place
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Ends the connection there; `after_bytes` counts everything sent, the head too."""

    at: Place
    after_bytes: int | None = None
    mid_chunk: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Manner:
    """How an answer is sent. The defaults are those of a well-behaved HTTP/1.1 server."""

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
    """One answer. Each method returns a changed copy, so answers can be shared and built upon."""

    chunks: tuple[str, ...] = ()
    tools: tuple[ToolUse, ...] = ()
    finish: str = ""  # "stop", "length", "filter"; what the tools call for when empty
    usage: Usage | None = None
    status: int = 200
    failure: Failure | None = None
    body: Body | None = None
    raw: tuple[bytes, ...] | None = None
    size_bytes: int = 0
    stream: bool | None = None  # None: as the request asks
    tool_error: bool = False  # MCP: the text is a tool's error
    manner: Manner = field(default_factory=Manner)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.chunks)

    def sent(self, **manner: Any) -> Answer:
        """Change the manner of sending, by the names of `Manner`'s fields."""
        return replace(self, manner=replace(self.manner, **manner))

    # -- what is said

    def with_tool(self, name: str, arguments: Mapping[str, Any] | str | None = None, *, tool_id: str = "") -> Answer:
        """Want one more tool called."""
        return replace(self, tools=(*self.tools, ToolUse(name, {} if arguments is None else arguments, tool_id)))

    def with_usage(self, input_tokens: int, output_tokens: int, *, cached: int = 0, reasoning: int = 0) -> Answer:
        """Report these tokens instead of a count of what was sent; `cached` is part of the input."""
        return replace(self, usage=Usage(input_tokens, output_tokens, cached, 0, reasoning))

    def then_fail(self, at: int, message: str = "Overloaded", *, kind: str = "", code: str = "") -> Answer:
        """Break off with an error event after so many chunks of the stream."""
        return replace(self, failure=Failure(message, kind, code, at))

    def streamed(self, stream: bool = True) -> Answer:  # noqa: FBT001, FBT002 - reads as `streamed()` and `streamed(False)`
        """Stream (or do not), whatever the request asks; for MCP: answer with server-sent events."""
        return replace(self, stream=stream)

    # -- when it is sent

    def delayed(self, seconds: float) -> Answer:
        """Wait before the head."""
        return self.sent(delay_s=seconds)

    def paced(self, interval_s: float) -> Answer:
        """Wait between chunks."""
        return self.sent(interval_s=interval_s)

    def stall(self, at: Place = "head", *, for_s: float | None = None) -> Answer:
        """Stop sending before the head ("start"), after it ("head"), or after so many chunks."""
        return self.sent(stalls=(*self.manner.stalls, Stall(at, for_s)))

    def cut(
        self, at: Place = "head", *, after_bytes: int | None = None, mid_chunk: bool = False, reset: bool = False
    ) -> Answer:
        """End the connection at a place as in `stall`, in the middle of the chunk after it, or after so many bytes."""
        return self.sent(cut=Cut(at, after_bytes, mid_chunk, reset))

    def early(self, *, drain: bool = True) -> Answer:
        """Answer as soon as the request's head is there; without `drain` its body is never read."""
        return self.sent(early=True, drain=drain)

    # -- how it is framed

    def with_headers(self, *pairs: tuple[str, str], **named: str) -> Answer:
        """Add header fields (`x_request_id="1"` is `x-request-id: 1`); they replace the stand-in's own of that name."""
        more = tuple((name.replace("_", "-"), value) for name, value in named.items())
        return self.sent(headers=(*self.manner.headers, *pairs, *more))

    def realistic(self) -> Answer:
        """Send what a provider's edge sends: 24 header fields in all."""
        return self.sent(realistic=True)

    def framed(self, framing: Framing) -> Answer:
        """Give the body's length, send it in chunks, or end it by closing the connection."""
        return self.sent(framing=framing)

    def http10(self) -> Answer:
        """Answer as an HTTP/1.0 server."""
        return self.sent(version="1.0")

    def closing(self) -> Answer:
        """Say `Connection: close` and do it."""
        return self.sent(close=True)

    def with_trailers(self, *pairs: tuple[str, str]) -> Answer:
        """Send header fields after the last chunk."""
        return self.sent(trailers=pairs, framing="chunked")

    def after_informational(self, status: int = 103, *pairs: tuple[str, str]) -> Answer:
        """Send an interim (1xx) answer first."""
        return self.sent(informational=(*self.manner.informational, (status, pairs)))

    def compressed(
        self, coding: str = "gzip", *, packed_by: Callable[[bytes], bytes] | None = None, forced: bool = False
    ) -> Answer:
        """Compress if the client accepts it (`forced`: in any case).

        gzip and deflate are known, and flushed with every chunk; for others give the function, which gets the whole
        body (what comes out is sent in as many chunks as there were).
        """
        if packed_by is None and coding not in {"gzip", "deflate"}:
            raise ValueError(f"no compressor for {coding}: give one as packed_by")
        return self.sent(coding=coding, packed_by=packed_by, coding_forced=forced)

    def pieces_of(self, size_bytes: int) -> Answer:
        """Cut the body into chunks of that size, wherever that falls, instead of one a event."""
        if size_bytes < 1:
            raise ValueError("a piece has at least one byte")
        return self.sent(piece_bytes=size_bytes)


Respond = Callable[[SeenRequest], Answer | None]
When = Callable[[SeenRequest], bool]

DEFAULT_TEXT: Final = "This is a stand-in, not a model."
NONSENSE: Final = b"\x16\x03\x01 this is no HTTP\r\n\r\n"
_WORDS: Final = re.compile(r"\s*\S+\s*$|\s*\S+")


def say(text: str = "", *, chunks: Iterable[str] | None = None, finish: str = "", usage: Usage | None = None) -> Answer:
    """Answer with a text. Streamed, it comes word by word, or in the given chunks."""
    pieces = tuple(_WORDS.findall(text) or ([text] if text else [])) if chunks is None else tuple(chunks)
    return Answer(chunks=pieces, finish=finish, usage=usage)


def call_tool(
    name: str, arguments: Mapping[str, Any] | str | None = None, *, text: str = "", tool_id: str = ""
) -> Answer:
    """Want a tool called, after some text if there is any; `with_tool` adds further calls."""
    return say(text).with_tool(name, arguments, tool_id=tool_id)


def tool_failed(text: str) -> Answer:
    """MCP: the tool ran and failed, which the model may read."""
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
    """Answer with an error, in the shape of the dialect that was spoken."""
    fields = tuple((headers or {}).items())
    if retry_after is not None:
        fields = (("Retry-After", str(retry_after)), *fields)
    failure = Failure(message or f"stand-in error {status}", kind, code)
    return Answer(status=status, failure=failure).with_headers(*fields)


def body(content: bytes | Sequence[bytes], *, content_type: str = "application/json", status: int = 200) -> Answer:
    """Answer with this body, sent in one piece or in the given ones, framed properly."""
    pieces = (content,) if isinstance(content, bytes) else tuple(content)
    return Answer(status=status, body=Body(pieces, content_type))


def sized(size_bytes: int, *, chunks: int = 1) -> Answer:
    """Answer with a body of exactly so many bytes; streamed, with a text of about that, in so many chunks."""
    each, more = divmod(max(size_bytes, 0), max(chunks, 1))
    pieces = [filler(each + (1 if index < more else 0)) for index in range(max(chunks, 1))]
    return replace(say(chunks=pieces), size_bytes=size_bytes)


def raw(data: bytes | Sequence[bytes], *, close: bool = True) -> Answer:
    """Send exactly these bytes for an answer, head and all, and close (or leave the connection open)."""
    return Answer(raw=(data,) if isinstance(data, bytes) else tuple(data)).sent(close=close)


def nonsense(data: bytes = NONSENSE) -> Answer:
    """Answer with what is no HTTP at all."""
    return raw(data)


def stall(at: Place = "start", *, for_s: float | None = None) -> Answer:
    """Say nothing: no head at all, unless `at` says otherwise."""
    return say(DEFAULT_TEXT).stall(at, for_s=for_s)


def cut(at: Place = "start", *, after_bytes: int | None = None, mid_chunk: bool = False, reset: bool = False) -> Answer:
    """Take the request and end the connection: before the head, unless told otherwise."""
    return say(DEFAULT_TEXT).cut(at, after_bytes=after_bytes, mid_chunk=mid_chunk, reset=reset)


def filler(size: int) -> str:
    """Return so many characters of plain text, no two lines alike: it must not be taken for a loop."""
    line = "the quick brown fox jumps over the lazy dog"
    return "".join([f"{number} {line} " for number in range(1, size // len(line) + 2)])[:size]


class Script:
    """Which request gets which answer: those queued first, then what `respond` says, then the default."""

    def __init__(self, default: Answer | None = None, respond: Respond | None = None) -> None:
        self.default = default
        self.respond = respond
        self._queue: deque[tuple[Answer, When | None]] = deque()

    @property
    def left(self) -> int:
        """How many queued answers nobody has asked for yet."""
        return len(self._queue)

    def next(self, *answers: Answer, when: When | None = None) -> None:
        """Queue answers, each for one request; with `when`, for requests that it holds for."""
        self._queue.extend((answer, when) for answer in answers)

    def early(self, seen: SeenRequest) -> Answer | None:
        """Take the queued answer that is meant to go before the body has come, if there is one for this request."""
        for index, (answer, when) in enumerate(tuple(self._queue)):
            if self._fits(seen, when):
                if not answer.manner.early:
                    return None
                del self._queue[index]
                return answer
        return None

    def take(self, seen: SeenRequest) -> Answer | None:
        """Take the answer for a complete request; None where the stand-in answers as it sees fit."""
        for index, (answer, when) in enumerate(tuple(self._queue)):
            if self._fits(seen, when):
                del self._queue[index]
                return answer
        if seen.is_housekeeping:
            return None
        answer_now = None if self.respond is None else self.respond(seen)
        return self.default if answer_now is None else answer_now

    @staticmethod
    def _fits(seen: SeenRequest, when: When | None) -> bool:
        return not seen.is_housekeeping if when is None else when(seen)
