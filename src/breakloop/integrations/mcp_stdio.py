"""Runs an MCP server that uses stdin and stdout, and relays its lines. Internal: used by `breakloop mcp`.

Every line passes as it came, unless a tool call is blocked or its result gets a note. `StdioGuard` decides that;
`Relay` carries the lines. If deciding fails, the line passes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NamedTuple, TypeGuard

from breakloop.integrations import mcp
from breakloop.model.verdict import Decision
from breakloop.sdk.requests import BODY_MAX_BYTES, ToolInvocation
from breakloop.sdk.toolkit import BoundedDict, Run

_OPEN_MAX: Final = 1000
_CANCELLED: Final = "notifications/cancelled"

Id = str | int


class RelayedMessage(NamedTuple):
    """Where a line from the client leads."""

    to_server: bytes = b""
    to_client: bytes = b""  # the answer, if the call is denied


class StdioGuard:
    """Checks the messages between one client and one server. `run` makes the run that the calls are steps of, when the
    first call comes. In shadow mode, `shadow` gets each notice and nothing is changed."""

    def __init__(self, run: Callable[[], Run], *, shadow: Callable[[str], None] | None = None) -> None:
        self._run = run
        self._shadow = shadow
        self._open: BoundedDict[Id, ToolInvocation] = BoundedDict(_OPEN_MAX)  # calls without a result yet

    def from_client(self, line: bytes) -> RelayedMessage:
        """Check a line with its line feed."""
        # JSON may escape the slash of `tools/call`, so the two words are searched separately.
        calls = b"call" in line and b"tools" in line
        if len(line) > BODY_MAX_BYTES or not (calls or (self._open and b"cancelled" in line)):
            return RelayedMessage(to_server=line)
        sent = _object(line)
        if sent is None:
            return RelayedMessage(to_server=line)
        if sent.get("method") == _CANCELLED:
            self._cancelled(sent.get("params"))
        if sent.get("method") != mcp.TOOLS_CALL or not _is_id(sent.get("id")):
            return RelayedMessage(to_server=line)
        call = mcp.read_call(sent.get("params"))
        if call is None:
            return RelayedMessage(to_server=line)
        decision = self._applied(self._run().before_tool(*call))
        if not decision.allowed:
            return RelayedMessage(
                to_client=_line({"jsonrpc": "2.0", "id": sent["id"], "result": mcp.denied_result(decision)})
            )
        self._open[sent["id"]] = call
        return RelayedMessage(to_server=line)

    def from_server(self, line: bytes) -> bytes:
        """Return the line for the client."""
        if not self._open or len(line) > BODY_MAX_BYTES or b'"id"' not in line:
            return line
        sent = _object(line)
        if sent is None or "method" in sent or not _is_id(sent.get("id")) or sent["id"] not in self._open:
            return line
        call = self._open.pop(sent["id"])
        result, error = sent.get("result"), sent.get("error")
        if isinstance(error, dict):
            self._applied(self._run().after_tool(*call, mcp.read_error(error)))
            return line
        if not mcp.is_final(result):
            return line
        decision = self._applied(self._run().after_tool(*call, mcp.read_result(result)))
        return _with_note(line, sent, decision.notice) if decision.notice else line

    def _applied(self, decision: Decision) -> Decision:
        if self._shadow is None or not decision.notice:
            return decision
        self._shadow(decision.notice)
        return Decision()

    def _cancelled(self, params: Any) -> None:
        sent = params.get("requestId") if isinstance(params, dict) else None
        if _is_id(sent):
            self._open.pop(sent, None)


def _is_id(value: Any) -> TypeGuard[Id]:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _object(line: bytes) -> dict[str, Any] | None:
    """Return one message; None for a batch, which early versions allow, and for invalid JSON."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _with_note(line: bytes, sent: dict[str, Any], note: str) -> bytes:
    """Return the answer with a note; unchanged if it cannot be written as JSON again."""
    try:
        return _line({**sent, "result": mcp.with_note(sent["result"], note)})
    except ValueError:
        return line


def _line(message: dict[str, Any]) -> bytes:
    """Return a message as a line, in ASCII so that lone surrogates stay valid. Raises ValueError for NaN and
    infinity."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


LINE_MAX_BYTES: Final = 10 * 1024 * 1024  # longer lines pass in pieces, unread
_READ_BYTES: Final = 64 * 1024
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class LineReader:
    """Cuts bytes into lines; a line that is too long comes in pieces."""

    def __init__(self, max_bytes: int = LINE_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._inside = False  # a line that comes in pieces

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield pieces, and whether each is a whole line."""
        for piece in _split(data):
            self._parts.append(piece)
            self._size += len(piece)
            ends = piece.endswith(b"\n")
            if ends or self._inside or self._size > self._max_bytes:
                yield self._take(), ends and not self._inside
                self._inside = not ends

    def rest(self) -> bytes:
        """Return what follows the last line feed."""
        return self._take()

    def _take(self) -> bytes:
        whole = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return whole


class NotStartedError(Exception):
    """The server cannot be started. `code` is the exit code that a shell would use."""

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"{program} cannot be started: {error.strerror}")
        self.code = 127 if isinstance(error, FileNotFoundError) else 126


class Relay:
    """One server process between two file descriptors. `run` returns its exit code."""

    def __init__(self, command: Sequence[str], guard: StdioGuard, fault: Callable[[Exception], None]) -> None:
        self._command = command
        self._guard = guard
        self._fault = fault
        self._early_signals: list[int] = []  # received before the server was started
        self._writing = threading.Lock()  # both threads write to the client
        self._checking = threading.Lock()  # both threads change the open calls
        self._server: subprocess.Popen[bytes] | None = None
        self.reader: threading.Thread | None = None

    def run(self, client_in: int, client_out: int) -> int:
        """Relay until the server ends, and return its exit code; 128 plus the number of the signal that ended it.
        Raises NotStartedError."""
        before = {number: signal.signal(number, self._forward_signal) for number in _SIGNALS}
        try:
            server = self._start()
            # A daemon, because it may wait for the client for ever.
            self.reader = threading.Thread(target=self._from_client, args=(server, client_in, client_out), daemon=True)
            self.reader.start()
            self._from_server(server, client_out)
            code = server.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return 128 - code if code < 0 else code

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

    def _from_client(self, process: subprocess.Popen[bytes], client_in: int, client_out: int) -> None:
        server = process.stdin
        assert server is not None  # noqa: S101 - a pipe was asked for
        lines = LineReader()
        with suppress(OSError):  # the server is gone; the other thread sees its end
            while data := os.read(client_in, _READ_BYTES):
                for piece, whole in lines.feed(data):
                    passed = self._check_client(piece) if whole else RelayedMessage(to_server=piece)
                    _write(server.fileno(), passed.to_server)
                    if passed.to_client:
                        with self._writing:
                            _write(client_out, passed.to_client)
            _write(server.fileno(), lines.rest())
        with suppress(OSError):
            server.close()

    def _from_server(self, process: subprocess.Popen[bytes], client_out: int) -> None:
        server = process.stdout
        assert server is not None  # noqa: S101 - as above
        lines, inside = LineReader(), False
        try:
            while data := os.read(server.fileno(), _READ_BYTES):
                for piece, whole in lines.feed(data):
                    if not inside:
                        self._writing.acquire()
                    # Keep the lock between the pieces of a long line.
                    inside = not piece.endswith(b"\n")
                    try:
                        _write(client_out, self._check_server(piece) if whole else piece)
                    finally:
                        if not inside:
                            self._writing.release()
            _write(client_out, lines.rest())
        except OSError:  # the client is gone
            with suppress(OSError):
                process.terminate()
        finally:
            if inside:
                self._writing.release()
            server.close()

    def _check_client(self, line: bytes) -> RelayedMessage:
        try:
            with self._checking:
                return self._guard.from_client(line)
        except Exception as error:  # noqa: BLE001 - the outermost edge: our fault must not lose a message
            self._fault(error)
            return RelayedMessage(to_server=line)

    def _check_server(self, line: bytes) -> bytes:
        try:
            with self._checking:
                return self._guard.from_server(line)
        except Exception as error:  # noqa: BLE001 - as above
            self._fault(error)
            return line


def _split(data: bytes) -> list[bytes]:
    """Split at line feeds only."""
    pieces = [piece + b"\n" for piece in data.split(b"\n")]
    last = pieces.pop()[:-1]
    return [*pieces, last] if last else pieces


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
