"""Body framing of HTTP/1.1: finds the end and the content of a body, of requests and of responses.

What is accepted has only one interpretation, because every recipient must find the same end. Trailers are checked and
dropped.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final, NamedTuple

from breakloop.errors import RequestError, UpstreamError

# A name, a colon, and a value of visible characters, spaces, tabs and bytes above ASCII: no control, no bare CR or LF.
FIELD_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")
_FRAMING_LINE: Final = re.compile(rb"(?i:host|content[-_]length|transfer[-_]encoding):")  # never in a trailer
_BYTES_PER_CHUNK: Final = 64
_SIZE_LINE_MAX: Final = 4  # bytes of the longest size line that is cached


class ChunkBoundary(NamedTuple):
    """A position in a chunked body where content can be inserted."""

    before: bytes  # must be written first
    room: int  # bytes that the current chunk is missing


class LengthFraming:
    __slots__ = ("_left", "content", "done")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.content: list[bytes] = []  # of the last `feed`, without framing

    def feed(self, data: bytes) -> int:
        """Return how many bytes of `data` belong to this body."""
        size = len(data)
        if size < self._left:
            self._left -= size
            self.content = [data]
            return size
        taken = self._left
        self._left = 0
        self.done = True
        self.content = [data if taken == size else data[:taken]]
        return taken


class ChunkedFraming:
    """A chunked body. Usually one read is one complete chunk, and another one had the same size: `feed` does not loop
    then.
    """

    __slots__ = ("_between", "_left", "_partial", "_trailer_bytes", "content", "done")

    # Chunk sizes by their size line. Those of events recur, and looking one up takes a tenth of the time of reading it.
    sizes: ClassVar[dict[bytes, int]] = {}
    sizes_max = 1024
    chunk_line = staticmethod(re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*+)?[ \t]*+").fullmatch)
    line_bytes = 256  # the size of a chunk with its extensions
    trailer_bytes = 8 * 1024

    def __init__(self) -> None:
        self._left = 0  # bytes that the current chunk is missing; -1: the line break after its content
        self._partial = b""  # an incomplete line; after a chunk's content, it begins with the line break that ends it
        self._trailer_bytes = -1  # the trailers have not begun
        self._between = True  # the next byte begins a chunk
        self.content: list[bytes] = []
        self.done = False

    def feed(self, data: bytes) -> int:
        """Return how many bytes of `data` belong to this body. Raises what `_malformed` raises."""
        size = len(data)
        if self._between:
            end = data.find(b"\r\n", 1, _SIZE_LINE_MAX + 2)
            if end > 0 and self.sizes.get(data[:end]) == size - end - 4 and data.endswith(b"\r\n"):
                self.content = [data[end + 2 : -2]]
                return size
            self._between = False
        self.content = content = []
        at = 0
        while at < size and not self.done:
            left = self._left
            if left > 0:
                stop = at + left
                if stop > size:
                    content.append(data[at:] if at else data)
                    self._left = stop - size
                    return size
                content.append(data[at:stop])
                if data.startswith(b"\r\n", stop):
                    at = stop + 2
                    self._left = 0
                else:
                    at = stop
                    self._left = -1
            else:
                at = self._line(data, at)
        self._between = not (self._left or self._partial) and self._trailer_bytes < 0
        return at

    @property
    def boundary(self) -> ChunkBoundary | None:
        """Where the received part ends; None within a line of the framing, and after the last chunk."""
        left, partial = self._left, self._partial
        if self._trailer_bytes >= 0 or (left < 0 and len(partial) > 2) or (left == 0 and partial):
            return None
        return ChunkBoundary(b"\r\n"[len(partial) :], 0) if left < 0 else ChunkBoundary(b"", left)

    def _line(self, data: bytes, at: int) -> int:
        """Read the first line of a chunk, with the line break that ends the chunk before, or a trailer."""
        partial, trailers = self._partial, self._trailer_bytes
        if partial:
            data = partial + data[at : at + self.trailer_bytes]
            start = 0
        else:
            start = at
        begin = start
        if self._left < 0:  # the line break after the content does not end this line
            begin += 2
            if not b"\r\n".startswith(data[start:begin]):
                raise self._malformed("chunk")
        most = self.line_bytes if trailers < 0 else self.trailer_bytes - trailers
        end = data.find(b"\r\n", begin, begin + most)
        if end >= 0:
            self._partial = b""
            self._read_line(data, begin, end)
            return at + end + 2 - start - len(partial)
        if data.find(b"\n", begin, begin + most) >= 0:  # without CR: more bytes cannot make it a valid line
            raise self._malformed("chunk" if trailers < 0 else "trailer")
        if len(data) - begin >= most:
            raise self._too_long()
        self._partial = data[start:]
        return at + len(data) - start - len(partial)

    def _read_line(self, data: bytes, start: int, end: int) -> None:
        if self._trailer_bytes >= 0:
            self._trailer_bytes += end + 2 - start
            if end == start:
                self.done = True
            elif not FIELD_LINE.fullmatch(data, start, end) or _FRAMING_LINE.match(data, start, end):
                raise self._malformed("trailer")
            return
        found = self.chunk_line(data, start, end)
        if found is None:
            raise self._malformed("chunk")
        self._left = left = int(found[1], 16)
        if not left:
            self._trailer_bytes = 0
        elif end - start <= _SIZE_LINE_MAX and self.sizes_max:
            if len(self.sizes) >= self.sizes_max:
                self.sizes.clear()
            self.sizes[data[start:end]] = left

    def _malformed(self, what: str) -> Exception:
        return UpstreamError(f"sent a malformed {what}")

    def _too_long(self) -> Exception:
        return self._malformed("chunk")


class RequestChunks(ChunkedFraming):
    """A chunked request body of at most `most` bytes (None: no limit), also limited in the number of small chunks."""

    __slots__ = ("_chunks", "_most", "_size")

    sizes: ClassVar[dict[bytes, int]] = {}
    sizes_max = 0  # each chunk is counted
    chunk_line = staticmethod(re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?").fullmatch)
    free_chunks = 1000  # more chunks than this must have 64 bytes on average

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self._most = most
        self._size = 0  # of all chunks so far
        self._chunks = 0

    def _read_line(self, data: bytes, start: int, end: int) -> None:
        is_chunk = self._trailer_bytes < 0
        super()._read_line(data, start, end)
        if is_chunk:
            self._size += self._left
            self._chunks += 1
            if self._most is not None and self._size > self._most:
                raise RequestError(413, "request body too large")
            if self._chunks > self.free_chunks + self._size // _BYTES_PER_CHUNK:
                raise RequestError(400, "too many small chunks")

    def _malformed(self, what: str) -> Exception:
        return RequestError(400, f"malformed {what}")

    def _too_long(self) -> Exception:
        return RequestError(400, "chunk line or trailers too long")
