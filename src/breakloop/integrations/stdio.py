"""Programs that speak JSON-RPC over stdin and stdout, one message a line: `Relay` runs one between two file descriptors
and lets a guard read each line. `breakloop mcp` and `breakloop acp` use it.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Protocol, TypeGuard

from breakloop.sdk.requests import BODY_MAX_BYTES

LINE_MAX_BYTES: Final = 10 * 1024 * 1024  # longer lines pass in pieces, unread
_READ_BYTES: Final = 64 * 1024
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Id = str | int


class LineGuard(Protocol):
    """Reads the lines of both sides; each has its line feed."""

    def from_client(self, line: bytes) -> bytes:
        """Return the answer to a line that is not passed on; b"" if it goes on to the server."""

    def from_server(self, line: bytes) -> bytes:
        """Return the lines for the client."""


def is_id(value: Any) -> TypeGuard[Id]:
    return isinstance(value, str | int) and not isinstance(value, bool)


def read_line(line: bytes) -> dict[str, Any] | None:
    """Return one message; None for a batch, which early versions allow, for invalid JSON, and for a line too long."""
    try:
        found = json.loads(line) if len(line) <= BODY_MAX_BYTES else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_line(message: dict[str, Any]) -> bytes:
    """Return a message as a line, in ASCII so that lone surrogates stay valid. Raises ValueError for NaN and
    infinity."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


class LineReader:
    """Cuts bytes into lines; a line that is too long comes in pieces."""

    def __init__(self, max_bytes: int = LINE_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._inside = False  # a line that comes in pieces

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield pieces, and whether each is a whole line."""
        for piece in io.BytesIO(data):  # unlike `splitlines`, it splits at line feeds only
            self._parts.append(piece)
            self._size += len(piece)
            ends = piece.endswith(b"\n")
            if ends or self._inside or self._size > self._max_bytes:
                yield self.rest(), ends and not self._inside
                self._inside = not ends

    def rest(self) -> bytes:
        """Return what came after the last piece."""
        whole = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return whole


class NotStartedError(Exception):
    """The server cannot be started. `code` is the exit code that a shell would use."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"{program} cannot be started: {error.strerror}")
        self.code = 127 if isinstance(error, FileNotFoundError) else 126


class _Output:
    """Where one thread passes lines on, some of them in pieces, and others add lines: never inside of one."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._inside = False  # a line, and the lock is kept until it ends

    def pass_on(self, piece: bytes) -> None:
        if not piece:
            return
        if not self._inside:
            self._lock.acquire()
        self._inside = not piece.endswith(b"\n")
        try:
            _write(self._descriptor, piece)
        finally:
            if not self._inside:
                self._lock.release()

    def add(self, line: bytes) -> None:
        with self._lock:
            _write(self._descriptor, line)

    def end(self) -> None:
        """Nothing more is written: `add` raises OSError from now on."""
        if not self._inside:
            self._lock.acquire()
        self._inside = False
        self._descriptor = -1  # its number may be used again
        self._lock.release()


class Relay:
    """One server process between two file descriptors. Every line passes as it came, unless the guard answers it or
    changes it."""

    def __init__(self, command: Sequence[str], guard: LineGuard, fault: Callable[[Exception], None]) -> None:
        self._command = command
        self._guard = guard
        self._fault = fault
        self._early_signals: list[int] = []  # received before the server was started
        self._checking = threading.Lock()  # both threads ask the guard
        self._server: subprocess.Popen[bytes] | None = None
        self._to_server: _Output | None = None
        self.reader: threading.Thread | None = None

    def run(self, client_in: int, client_out: int) -> int:
        """Relay until the server ends, and return its exit code; 128 plus the number of the signal that ended it.
        Raises NotStartedError."""
        before = {number: signal.signal(number, self._forward_signal) for number in _SIGNALS}
        try:
            server, client = self._start(), _Output(client_out)
            # A daemon, because it may wait for the client for ever.
            self.reader = threading.Thread(target=self._from_client, args=(server, client_in, client), daemon=True)
            self.reader.start()
            self._from_server(server, client)
            code = server.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return 128 - code if code < 0 else code

    def send_to_server(self, line: bytes) -> None:
        """Send a line of our own. A thread does it: the server may read nothing before its own lines are read, and who
        reads them may be the caller."""

        def send() -> None:
            with suppress(OSError):  # the server is gone, or nobody talks to it any longer
                if self._to_server is not None:
                    self._to_server.add(line)

        threading.Thread(target=send, daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            server = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603
        except OSError as error:
            raise NotStartedError(self._command[0], error) from None
        self._server = server
        for number in self._early_signals:
            server.send_signal(number)
        return server

    def _forward_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._server is None:
            self._early_signals.append(number)
        else:
            self._server.send_signal(number)

    def _from_client(self, process: subprocess.Popen[bytes], client_in: int, client: _Output) -> None:
        server = process.stdin
        assert server is not None  # noqa: S101 - a pipe was asked for
        lines, self._to_server = LineReader(), _Output(server.fileno())
        with suppress(OSError):  # the server is gone; the other thread sees its end
            while data := os.read(client_in, _READ_BYTES):
                for piece, whole in lines.feed(data):
                    answer = self._checked(self._guard.from_client, piece, b"") if whole else b""
                    if answer:
                        client.add(answer)
                    else:
                        self._to_server.pass_on(piece)
            self._to_server.pass_on(lines.rest())
        self._to_server.end()
        with suppress(OSError):
            server.close()

    def _from_server(self, process: subprocess.Popen[bytes], client: _Output) -> None:
        server = process.stdout
        assert server is not None  # noqa: S101 - as above
        lines = LineReader()
        try:
            while data := os.read(server.fileno(), _READ_BYTES):
                for piece, whole in lines.feed(data):
                    client.pass_on(self._checked(self._guard.from_server, piece, piece) if whole else piece)
            client.pass_on(lines.rest())
        except OSError:  # the client is gone
            with suppress(OSError):
                process.terminate()
        finally:
            client.end()
            server.close()

    def _checked(self, check: Callable[[bytes], bytes], line: bytes, otherwise: bytes) -> bytes:
        try:
            with self._checking:
                return check(line)
        except Exception as error:  # noqa: BLE001 - the outermost edge: our fault must not lose a message
            self._fault(error)
            return otherwise


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
