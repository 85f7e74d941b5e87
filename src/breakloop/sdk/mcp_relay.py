"""Runs a server that speaks over stdin and stdout, and carries lines between it and whoever started us. Bytes are
passed on as they came; what is said in a line is `mcp_stdio`'s matter. When that fails, the line passes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Final, Protocol

from breakloop.sdk.mcp_stdio import Passed

LINE_MAX_BYTES: Final = 10 * 1024 * 1024  # longer ones pass piece by piece, unread
_READ_BYTES: Final = 64 * 1024
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Says(Protocol):
    """Who looks at lines."""

    def from_client(self, line: bytes) -> Passed:
        """Take a line of the client's."""
        ...

    def from_server(self, line: bytes) -> bytes:
        """Take a line of the server's."""
        ...


class Lines:
    """Bytes on their way, cut into lines; a line that is too long comes in pieces."""

    def __init__(self, max_bytes: int = LINE_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._inside = False  # of a line that comes in pieces

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Take bytes; yields pieces, and whether each is a whole line."""
        for piece in _split(data):
            self._parts.append(piece)
            self._size += len(piece)
            ends = piece.endswith(b"\n")
            if ends or self._inside or self._size > self._max_bytes:
                yield self._taken(), ends and not self._inside
                self._inside = not ends

    def rest(self) -> bytes:
        """Return what came after the last line."""
        return self._taken()

    def _taken(self) -> bytes:
        whole = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return whole


class NotStartedError(Exception):
    """The server cannot be started; the message says why, `code` is what a shell would exit with."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"{program} cannot be started: {error.strerror}")
        self.code = 127 if isinstance(error, FileNotFoundError) else 126


class Relay:
    """One server process between two file descriptors. `run` returns its exit code."""

    def __init__(self, command: Sequence[str], says: Says, fault: Callable[[Exception], None]) -> None:
        self._command = command
        self._says = says
        self._fault = fault
        self._asked: list[int] = []  # signals that came before the server was there
        self._writing = threading.Lock()  # lines for the client come from both sides
        self._reading = threading.Lock()  # and so does what is remembered of calls
        self._server: subprocess.Popen[bytes] | None = None
        self.reader: threading.Thread | None = None

    def run(self, client_in: int, client_out: int) -> int:
        """Carry on until the server ends; a signal that ended it is 128 and its number, as shells say it. Raises
        NotStartedError."""
        before = {number: signal.signal(number, self._pass_on) for number in _SIGNALS}
        try:
            server = self._started()
            # It may wait for the client for ever, and nobody waits for it.
            self.reader = threading.Thread(target=self._from_client, args=(server, client_in, client_out), daemon=True)
            self.reader.start()
            self._from_server(server, client_out)
            code = server.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return 128 - code if code < 0 else code

    def _started(self) -> subprocess.Popen[bytes]:
        try:
            made = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603
        except OSError as error:
            raise NotStartedError(self._command[0], error) from None
        self._server = made
        for number in self._asked:
            made.send_signal(number)
        return made

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if self._server is None:
            self._asked.append(number)
        else:
            self._server.send_signal(number)

    def _from_client(self, process: subprocess.Popen[bytes], client_in: int, client_out: int) -> None:
        server = process.stdin
        assert server is not None  # noqa: S101 - a pipe was asked for
        lines = Lines()
        with suppress(OSError):  # the server is gone, and its end is told by the other side
            while data := os.read(client_in, _READ_BYTES):
                for piece, whole in lines.feed(data):
                    passed = self._looked_at(piece) if whole else Passed(on=piece)
                    _write(server.fileno(), passed.on)
                    if passed.back:
                        with self._writing:
                            _write(client_out, passed.back)
            _write(server.fileno(), lines.rest())
        with suppress(OSError):
            server.close()

    def _from_server(self, process: subprocess.Popen[bytes], client_out: int) -> None:
        server = process.stdout
        assert server is not None  # noqa: S101 - as above
        lines, inside = Lines(), False
        try:
            while data := os.read(server.fileno(), _READ_BYTES):
                for piece, whole in lines.feed(data):
                    if not inside:
                        self._writing.acquire()
                    # Between the pieces of a long line nobody else may write.
                    inside = not piece.endswith(b"\n")
                    try:
                        _write(client_out, self._answered(piece) if whole else piece)
                    finally:
                        if not inside:
                            self._writing.release()
            _write(client_out, lines.rest())
        except OSError:  # the client is gone: nobody is there to serve
            with suppress(OSError):
                process.terminate()
        finally:
            if inside:
                self._writing.release()
            server.close()

    def _looked_at(self, line: bytes) -> Passed:
        try:
            with self._reading:
                return self._says.from_client(line)
        except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not cost a message
            self._fault(error)
            return Passed(on=line)

    def _answered(self, line: bytes) -> bytes:
        try:
            with self._reading:
                return self._says.from_server(line)
        except Exception as error:  # noqa: BLE001 - as above
            self._fault(error)
            return line


def _split(data: bytes) -> list[bytes]:
    """Lines end in a line feed and nothing else."""
    pieces = [piece + b"\n" for piece in data.split(b"\n")]
    last = pieces.pop()[:-1]
    return [*pieces, last] if last else pieces


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
