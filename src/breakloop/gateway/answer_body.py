"""Framing of answers: where an answer ends in the stream of an upstream, and its content without the framing.

Bytes of the body pass on as they came; what is found here is for reading along and for knowing the end. Strict, because
whoever reads after us must come to the same end.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Protocol

from breakloop.errors import UpstreamError
from breakloop.gateway.answer_head import UNTIL_CLOSE
from breakloop.gateway.body import is_trailer
from breakloop.gateway.head import CHUNKED

_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*+)?[ \t]*+")
_LINE_MAX: Final = 256
_TRAILERS_MAX: Final = 8 * 1024


class Joint(NamedTuple):
    """A place where other content could follow in a chunked body."""

    before: bytes  # what has to be written first
    room: int  # bytes that the running chunk still takes, and must get


class Framing(Protocol):
    """Follows one body through the stream."""

    done: bool
    content: list[bytes]  # what the last `feed` held, without framing

    def feed(self, data: bytes) -> int:
        """Return how many bytes of `data` belong to this body. Raises `UpstreamError`."""
        ...


def framing_for(length: int) -> Framing:
    """The framing of a body of so many bytes, of chunks, or until the end of the connection."""
    if length == CHUNKED:
        return Chunked()
    return UntilClose() if length == UNTIL_CLOSE else Length(length)


class Length:
    """A body of known length."""

    __slots__ = ("_left", "content", "done")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0
        self.content: list[bytes] = []

    def feed(self, data: bytes) -> int:
        """Take what is there, up to the length."""
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


class UntilClose:
    """A body that the end of the connection ends."""

    __slots__ = ("content", "done")

    def __init__(self) -> None:
        self.done = False
        self.content: list[bytes] = []

    def feed(self, data: bytes) -> int:
        """Take everything."""
        self.content = [data]
        return len(data)


class Chunked:
    """A chunked body. Usually a piece of the stream is one whole chunk, and then one turn of the loop is all."""

    __slots__ = ("_left", "_partial", "_trailer_bytes", "content", "done")

    def __init__(self) -> None:
        self._left = 0  # of the chunk that is being read
        self._partial = b""  # the begun line; after a chunk's content, it begins with the line break that ends it
        self._trailer_bytes = -1  # not in the trailers yet
        self.content: list[bytes] = []
        self.done = False

    def feed(self, data: bytes) -> int:
        """Step through lines and contents as far as they are there."""
        self.content = content = []
        at, size = 0, len(data)
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
                    at, self._left = stop + 2, 0
                else:
                    at, self._left = stop, -1  # the line break after it is still to come
            else:
                at = self._line(data, at)
        return at

    @property
    def joint(self) -> Joint | None:
        """Where what was fed so far ends; None within a line of the framing, and once all content has come."""
        left, begun = self._left, self._partial
        if self._trailer_bytes >= 0 or (left < 0 and len(begun) > 2) or (left == 0 and begun):
            return None
        return Joint(b"\r\n"[len(begun) :], 0) if left < 0 else Joint(b"", left)

    def _line(self, data: bytes, at: int) -> int:
        """Read a chunk's first line (with the line break that ends the chunk before) or a trailer."""
        begun = self._partial
        # The break after a content is two bytes that are not the end of the line that is looked for.
        skip = 2 if self._left < 0 else 0
        if begun:
            data = begun + data[at : at + _TRAILERS_MAX]
            start = 0
        else:
            start = at
        end = data.find(b"\r\n", start + skip)
        if end < 0:
            if len(data) - start > (_LINE_MAX if self._trailer_bytes < 0 else _TRAILERS_MAX):
                raise UpstreamError("sent a malformed chunk")
            self._check_break(data, start, skip)
            self._partial = data[start:]
            return at + len(data) - start - len(begun)
        self._check_break(data, start, skip)
        self._partial = b""
        self._use(data, start + skip, end)
        return at + end + 2 - start - len(begun)

    def _check_break(self, data: bytes, start: int, skip: int) -> None:
        if skip and not b"\r\n".startswith(data[start : start + 2]):
            raise UpstreamError("sent a malformed chunk")

    def _use(self, data: bytes, start: int, end: int) -> None:
        if self._trailer_bytes >= 0:
            self._trailer_bytes += end + 2 - start
            if end == start:
                self.done = True
            elif self._trailer_bytes > _TRAILERS_MAX or not is_trailer(data, start, end):
                raise UpstreamError("sent a malformed trailer")
            return
        found = _CHUNK_LINE.fullmatch(data, start, end)
        if found is None or end - start > _LINE_MAX:
            raise UpstreamError("sent a malformed chunk")
        self._left = int(found[1], 16)
        if not self._left:
            self._trailer_bytes = 0
