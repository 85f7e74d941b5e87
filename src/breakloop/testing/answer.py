"""What the stand-in answers, as data: what is said, and the manner in which it is sent. How it looks in a dialect is
the renderers' work, how it goes over the wire that of `steps`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from breakloop.model.answer import Usage
from breakloop.testing.gate import Gate

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
