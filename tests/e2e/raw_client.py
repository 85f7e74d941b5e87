"""A client that sends what it is told, byte for byte, and tells exactly how an answer came and how it ended.

Deliberately without a library: those hide whether a connection was reset, what a chunk was, and how headers were spelled.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import struct
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.deadlines import DEADLINE_S

Fields = list[tuple[str, str]]
RECEIVE = 64 * 1024


class CutShortError(Exception):
    """The connection ended before the answer did; `got` is what had come of it."""

    def __init__(self, how: str, got: bytes = b"") -> None:
        super().__init__(how)
        self.how = how
        self.got = got


@dataclass
class Received:
    """An answer, complete."""

    status: int
    fields: Fields  # as sent, in order
    version: str
    framing: str  # "none", "length", "chunked", "close"
    raw: bytes  # the body with its framing
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)
    trailers: Fields = field(default_factory=list)

    def __getitem__(self, name: str) -> str:
        return dict(self.lower)[name]

    def __contains__(self, name: str) -> bool:
        return name in dict(self.lower)

    @property
    def lower(self) -> Fields:
        return [(name.lower(), value) for name, value in self.fields]

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.lower if known == name]

    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """One connection. `with` closes it."""

    def __init__(
        self, port: int, *, tls: ssl.SSLContext | None = None, timeout_s: float = DEADLINE_S, small: bool = False
    ) -> None:
        plain = socket.socket()
        if small:  # so that not much fits between the two ends
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
        plain.settimeout(timeout_s)
        try:
            plain.connect(("127.0.0.1", port))
        except OSError:
            plain.close()
            raise
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = (
            plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
        )
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- sending and leaving

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def ask(self, method: str, target: str, body: bytes = b"", *lines: str, version: str = "1.1") -> None:
        """Send a request; with a body also its length, unless a line says something about it."""
        self.send(request(method, target, body, *lines, version=version))

    def send_until_answered(self, content: bytes, piece_bytes: int = 64 * 1024) -> int:
        """Send as long as nothing comes back; returns how much that was."""
        sent = 0
        while sent < len(content):
            readable, writable, _ = select.select([self.socket], [self.socket], [], 5.0)
            if readable or not writable:
                break
            try:
                sent += self.socket.send(content[sent : sent + piece_bytes])
            except OSError:  # the answer and the end came since the look
                break
        return sent

    def close(self) -> None:
        self.socket.close()

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leave with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # -- receiving

    def receive(self, most: int = RECEIVE) -> bytes:
        """The next bytes, whatever they are; nothing at a proper end. Raises `CutShortError` at any other."""
        if self._buffer:
            found, self._buffer = self._buffer[:most], self._buffer[most:]
            return found
        try:
            return self.socket.recv(most)
        except ConnectionResetError:
            raise CutShortError("reset") from None
        except ssl.SSLEOFError:
            raise CutShortError("no close_notify") from None

    def until(self, mark: bytes) -> bytes:
        """Everything up to and with `mark`."""
        got = b""
        while mark not in got:
            got += self._more(got)
        end = got.index(mark) + len(mark)
        self._buffer = got[end:] + self._buffer
        return got[:end]

    def exactly(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size:
            pieces.append(self._more(b"", size))
            size -= len(pieces[-1])
        return b"".join(pieces)

    def _more(self, got: bytes, most: int = RECEIVE) -> bytes:
        try:
            found = self.receive(most)
        except CutShortError as error:
            raise CutShortError(error.how, got) from None
        if not found:
            raise CutShortError("ended", got)
        return found

    def rest(self) -> bytes:
        """Everything until the proper end of the connection."""
        pieces = []
        while piece := self.receive():
            pieces.append(piece)
        return b"".join(pieces)

    def head(self) -> Received:
        """The next head, interim ones too."""
        first, *lines = self.until(b"\r\n\r\n")[:-4].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        fields = [(name, value.strip(" \t")) for name, _, value in (line.partition(":") for line in lines)]
        return Received(int(rest[:3]), fields, version.removeprefix("HTTP/"), "none", b"")

    def answer(self, method: str = "GET") -> Received:
        """The next whole answer. Raises `CutShortError` for one that is not."""
        found = self.head()
        while found.status < 200:
            found = self.head()
        self.body_of(found, method)
        return found

    def body_of(self, found: Received, method: str = "GET") -> None:
        """Read the body that belongs to a head."""
        if method == "HEAD" or found.status in {204, 304}:
            return
        codings, lengths = found.all("transfer-encoding"), found.all("content-length")
        assert not (codings and lengths), "two framings"
        if codings:
            assert codings == ["chunked"]
            found.framing = "chunked"
            self._chunks(found)
        elif lengths:
            assert len(lengths) == 1
            found.framing = "length"
            found.raw = found.body = self.exactly(int(lengths[0]))
        else:
            found.framing = "close"
            found.raw = found.body = self.rest()

    def chunk(self) -> bytes:
        """The next chunk's content, empty for the last (whose trailers are left)."""
        size = int(self.until(b"\r\n").partition(b";")[0], 16)
        content = self.exactly(size)
        if size:
            assert self.exactly(2) == b"\r\n"
        return content

    def _chunks(self, found: Received) -> None:
        raw = []
        while True:
            line = self.until(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            raw.append(line)
            if not size:
                break
            content = self.exactly(size)
            end = self.exactly(2)
            assert end == b"\r\n"
            found.chunks.append(content)
            raw += [content, end]
        while (line := self.until(b"\r\n")) != b"\r\n":
            name, _, value = line.decode("latin-1").strip().partition(":")
            found.trailers.append((name, value.strip()))
            raw.append(line)
        found.raw = b"".join((*raw, b"\r\n"))
        found.body = b"".join(found.chunks)

    def ends(self) -> str:
        """How the connection ends: "closed" properly, or how else. What still comes must be nothing."""
        try:
            left = self.receive()
        except CutShortError as error:
            return error.how
        assert left == b"", left
        return "closed"


def request(method: str, target: str, body: bytes = b"", *lines: str, version: str = "1.1") -> bytes:
    """A request as bytes."""
    head = [f"{method} {target} HTTP/{version}"]
    if not any(line.lower().startswith("host:") for line in lines):
        head.append("Host: gateway.example")
    head += lines
    framed = any(line.lower().startswith(("content-length:", "transfer-encoding:")) for line in lines)
    if body and not framed:
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*head, "", "")).encode("latin-1") + body


def chunked(*pieces: bytes, trailers: bytes = b"") -> bytes:
    """A chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n" + trailers + b"\r\n"
