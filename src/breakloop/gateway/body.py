"""Framing of request bodies: where a body ends in the stream, and its content without the framing.

Readers take bytes from a buffer and hand content to a `sink`; whether that sink collects or streams is not theirs to
know. Strict (Y-3): what they accept has one reading only. Trailers are checked and thrown away.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol

from breakloop.errors import RequestError
from breakloop.gateway.bounds import Limits
from breakloop.gateway.head import CHUNKED

Sink = Callable[[bytes], object]

_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?")
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")
_FRAMING_LINE: Final = re.compile(rb"(?i:host|content[-_]length|transfer[-_]encoding):")  # never in a trailer
_BYTES_PER_CHUNK: Final = 64


class BodyReader(Protocol):
    """Takes a body out of the stream, piece by piece."""

    done: bool

    def feed(self, buffer: bytes | bytearray, at: int) -> int:
        """Read from `buffer[at:]` and return where reading stopped: after the body, or for want of more bytes."""
        ...


def reader_for(length: int, limits: Limits, sink: Sink, most: int | None) -> BodyReader:
    """The reader for a body of `length` bytes, or of chunks that come to `most` bytes at the most (None: to any)."""
    return ChunkedReader(limits, sink, most) if length == CHUNKED else LengthReader(length, sink)


class LengthReader:
    """A body of known length."""

    __slots__ = ("_left", "_sink", "done")

    def __init__(self, length: int, sink: Sink) -> None:
        self._left = length
        self._sink = sink
        self.done = length == 0

    def feed(self, buffer: bytes | bytearray, at: int) -> int:
        """Pass on what is there, up to the length."""
        stop = min(len(buffer), at + self._left)
        if stop > at:
            self._sink(bytes(buffer[at:stop]))
            self._left -= stop - at
            self.done = self._left == 0
        return stop


class ChunkedReader:
    """A chunked body: bounded lines, bounded trailers, and not many more chunks than its size needs."""

    __slots__ = ("_chunks", "_left", "_limits", "_most", "_sink", "_size", "_step", "_trailer_bytes", "done")

    def __init__(self, limits: Limits, sink: Sink, most: int | None) -> None:
        self._limits = limits
        self._most = most
        self._sink = sink
        self._left = 0  # of the current chunk
        self._size = 0  # of all chunks so far
        self._chunks = 0
        self._trailer_bytes = 0
        self._step: Callable[[bytes | bytearray, int], int] = self._chunk_line
        self.done = False

    def feed(self, buffer: bytes | bytearray, at: int) -> int:
        """Step through lines and chunk contents as far as they are there. Raises `RequestError`."""
        while not self.done:
            after = self._step(buffer, at)
            if after < 0:
                break
            at = after
        return at

    def _chunk_line(self, buffer: bytes | bytearray, at: int) -> int:
        end = _line_end(buffer, at, self._limits.chunk_line_bytes)
        if end < 0:
            return -1
        line = _CHUNK_LINE.fullmatch(buffer, at, end)
        if line is None:
            raise RequestError(400, "malformed chunk")
        self._left = int(line[1], 16)
        self._size += self._left
        self._chunks += 1
        if self._most is not None and self._size > self._most:
            raise RequestError(413, "request body too large")
        if self._chunks > self._limits.free_chunks + self._size // _BYTES_PER_CHUNK:
            raise RequestError(400, "too many small chunks")
        self._step = self._content if self._left else self._trailer_line
        return end + 2

    def _content(self, buffer: bytes | bytearray, at: int) -> int:
        stop = min(len(buffer), at + self._left)
        if stop == at:
            return -1
        self._sink(bytes(buffer[at:stop]))
        self._left -= stop - at
        if not self._left:
            self._step = self._after_content
        return stop

    def _after_content(self, buffer: bytes | bytearray, at: int) -> int:
        if len(buffer) < at + 2:
            return -1
        if not buffer.startswith(b"\r\n", at):
            raise RequestError(400, "malformed chunk")
        self._step = self._chunk_line
        return at + 2

    def _trailer_line(self, buffer: bytes | bytearray, at: int) -> int:
        end = _line_end(buffer, at, self._limits.trailer_bytes - self._trailer_bytes)
        if end < 0:
            return -1
        if end == at:
            self.done = True
        elif not is_trailer(buffer, at, end):
            raise RequestError(400, "malformed trailer")
        self._trailer_bytes += end + 2 - at
        return end + 2


def is_trailer(buffer: bytes | bytearray, at: int, end: int) -> bool:
    """Tell whether the line there may stand behind the last chunk: a field, and none that is about framing."""
    return _TRAILER_LINE.fullmatch(buffer, at, end) is not None and _FRAMING_LINE.match(buffer, at, end) is None


def _line_end(buffer: bytes | bytearray, at: int, max_bytes: int) -> int:
    """Where the line at `at` ends, -1 if that is not there yet; refused once it cannot be within `max_bytes`."""
    end = buffer.find(b"\r\n", at, at + max_bytes)
    if end < 0 and len(buffer) - at >= max_bytes:
        raise RequestError(400, "chunk line or trailers too long")
    return end
