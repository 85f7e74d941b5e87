"""A request body that passes in pieces, because nobody needs to see it whole: what comes before there is an upstream
waits, and chunks are framed anew. When to read more of it is decided by the connections on both sides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.gateway.head import CHUNKED, Request

LAST_CHUNK: Final = b"0\r\n\r\n"


def as_chunk(piece: bytes) -> bytes:
    """Return a piece as one chunk."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


class Upload:
    """One body. `done`: all of it has come from the client."""

    __slots__ = ("_chunked", "_send", "_waiting", "done")

    def __init__(self, request: Request) -> None:
        self._chunked = request.length == CHUNKED
        self._send: Callable[[bytes], None] | None = None
        self._waiting = [request.body] if request.body else []
        self.done = False

    def begin(self, send: Callable[[bytes], None]) -> None:
        """There is somebody to send it to now."""
        self._send = send
        waiting, self._waiting = self._waiting, []
        for piece in waiting:
            self.add(piece)
        if self.done:
            self.finish()

    def add(self, piece: bytes) -> None:
        """Pass on a piece."""
        if self._send is None:
            self._waiting.append(piece)
        else:
            self._send(as_chunk(piece) if self._chunked else piece)

    def finish(self) -> None:
        """All of it has come."""
        self.done = True
        if self._chunked and self._send is not None:
            self._send(LAST_CHUNK)
