"""Between an MCP client and a server that speaks over stdin and stdout: every line passes as it is, except where a tool
call is blocked or its result gets a note. Here what is said; carrying it between two programs is `mcp_relay`'s.

Runs a server that speaks over stdin and stdout, and carries lines between it and whoever started us. Bytes are
passed on as they came; what is said in a line is `mcp_stdio`'s matter. When that fails, the line passes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from breakloop.integrations import mcp
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import BODY_MAX_BYTES
from breakloop.sdk.run import Made, Run, after, before

_WAITING_MAX: Final = 1000
_CANCELLED: Final = "notifications/cancelled"

Id = str | int


class RelayedMessage(NamedTuple):
    """What becomes of a line of the client's."""

    on: bytes = b""  # goes to the server
    back: bytes = b""  # is answered in its stead


class StdioConversation:
    """One client and one server. `run` gives the run that its calls are steps of, when the first is made."""

    def __init__(self, run: Callable[[], Run], *, shadow: Callable[[str], None] | None = None) -> None:
        self._run = run
        self._shadow = shadow  # told what would have been said, instead
        self._waiting: OrderedDict[Id, Made] = OrderedDict()  # calls that are not answered yet

    def from_client(self, line: bytes) -> RelayedMessage:
        """Take a line of the client's, its end included."""
        # An escaped slash is JSON too, so the two words are looked for one by one.
        calls = b"call" in line and b"tools" in line
        if len(line) > BODY_MAX_BYTES or not (calls or (self._waiting and b"cancelled" in line)):
            return RelayedMessage(on=line)
        sent = _object(line)
        if sent is None:
            return RelayedMessage(on=line)
        if sent.get("method") == _CANCELLED:
            self._cancelled(sent.get("params"))
        if sent.get("method") != mcp.TOOLS_CALL or not _is_id(sent.get("id")):
            return RelayedMessage(on=line)
        made = mcp.made_of(sent.get("params"))
        if made is None:
            return RelayedMessage(on=line)
        decision = self._said(before(self._run(), made))
        if not decision.allowed:
            return RelayedMessage(back=_line({"jsonrpc": "2.0", "id": sent["id"], "result": mcp.refused(decision)}))
        self._waiting[sent["id"]] = made
        while len(self._waiting) > _WAITING_MAX:
            self._waiting.popitem(last=False)
        return RelayedMessage(on=line)

    def from_server(self, line: bytes) -> bytes:
        """Take a line of the server's; returns what goes to the client."""
        if not self._waiting or len(line) > BODY_MAX_BYTES or b'"id"' not in line:
            return line
        sent = _object(line)
        if sent is None or "method" in sent or not _is_id(sent.get("id")) or sent["id"] not in self._waiting:
            return line
        made = self._waiting.pop(sent["id"])
        result, error = sent.get("result"), sent.get("error")
        if isinstance(error, dict):
            self._said(after(self._run(), made, mcp.failure(error)))
            return line
        if not mcp.is_final(result):
            return line
        decision = self._said(after(self._run(), made, mcp.outcome(result)))
        return _noted(line, sent, decision.notice) if decision.notice else line

    def _said(self, decision: Decision) -> Decision:
        if self._shadow is None or not decision.notice:
            return decision
        self._shadow(decision.notice)
        return Decision()

    def _cancelled(self, params: Any) -> None:
        sent = params.get("requestId") if isinstance(params, dict) else None
        if _is_id(sent):
            self._waiting.pop(sent, None)


def _is_id(value: Any) -> TypeGuard[Id]:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _object(line: bytes) -> dict[str, Any] | None:
    """One message; None for a batch, which was allowed once, and for what is no JSON."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _noted(line: bytes, sent: dict[str, Any], note: str) -> bytes:
    """The answer with a note; as it came, where it cannot be written again."""
    try:
        return _line({**sent, "result": mcp.noted(sent["result"], note)})
    except ValueError:
        return line


def _line(message: dict[str, Any]) -> bytes:
    """A message as a line; ASCII, so that half a character, which JSON can spell, stays valid. ValueError for numbers
    that only Python can spell."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


LINE_MAX_BYTES: Final = 10 * 1024 * 1024  # longer ones pass piece by piece, unread
_READ_BYTES: Final = 64 * 1024
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class RelayOutput(Protocol):
    """Who looks at lines."""

    def from_client(self, line: bytes) -> RelayedMessage:
        """Take a line of the client's."""
        ...

    def from_server(self, line: bytes) -> bytes:
        """Take a line of the server's."""
        ...


class LineReader:
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

    def __init__(self, command: Sequence[str], says: RelayOutput, fault: Callable[[Exception], None]) -> None:
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
        lines = LineReader()
        with suppress(OSError):  # the server is gone, and its end is told by the other side
            while data := os.read(client_in, _READ_BYTES):
                for piece, whole in lines.feed(data):
                    passed = self._looked_at(piece) if whole else RelayedMessage(on=piece)
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
        lines, inside = LineReader(), False
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

    def _looked_at(self, line: bytes) -> RelayedMessage:
        try:
            with self._reading:
                return self._says.from_client(line)
        except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not cost a message
            self._fault(error)
            return RelayedMessage(on=line)

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
