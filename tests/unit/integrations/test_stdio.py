"""Lines out of bytes, and a process between two pipes."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

import pytest

from breakloop import Run
from breakloop.integrations.mcp import StdioGuard
from breakloop.integrations.stdio import LineReader, NotStartedError, Relay, _Output
from tests.deadlines import DEADLINE_S

ECHO = "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"


def no_run() -> Run:
    raise AssertionError("no line is a tool call")


class Silent(StdioGuard):
    """Passes everything on, and remembers it."""

    def __init__(self) -> None:
        super().__init__(no_run)
        self.heard: list[bytes] = []

    def from_client(self, line: bytes) -> bytes:
        self.heard.append(line)
        return b"refused\n" if line == b"refuse\n" else b""

    def from_server(self, line: bytes) -> bytes:
        return line.upper()


class Broken(StdioGuard):
    """Fails at every line."""

    def __init__(self) -> None:
        super().__init__(no_run)

    def from_client(self, line: bytes) -> bytes:
        raise RuntimeError("canary")

    def from_server(self, line: bytes) -> bytes:
        raise RuntimeError("canary")


class Client:
    """The two pipes of somebody who has started us; `close` when all is done."""

    def __init__(self) -> None:
        self.to_relay, self.out = os.pipe()
        self.inn, self.from_relay = os.pipe()

    def run(self, relay: Relay) -> int:
        """Run until the server ends, then let go of both ends, so that nobody waits any longer."""
        try:
            return relay.run(self.to_relay, self.from_relay)
        finally:
            os.close(self.from_relay)

    def close(self, relay: Relay) -> None:
        with suppress(OSError):
            os.close(self.out)
        assert relay.reader is not None
        relay.reader.join(DEADLINE_S)
        os.close(self.to_relay)


def relayed(says: Silent | Broken, program: str, sent: bytes) -> tuple[int, bytes, list[Exception]]:
    """Run a program behind the relay; returns exit code, what came back, and faults."""
    faults: list[Exception] = []
    client = Client()
    relay = Relay([sys.executable, "-c", program], says, faults.append)
    got: list[bytes] = []

    def write() -> None:
        view = memoryview(sent)
        while view and not over.is_set():
            view = view[os.write(client.out, view[:1000]) :]
        os.close(client.out)

    def read() -> None:
        with os.fdopen(client.inn, "rb") as back:
            got.append(back.read())

    over = threading.Event()
    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    code = client.run(relay)
    over.set()
    while threads[0].is_alive():  # a pipe that is full, and that nobody reads any more
        os.read(client.to_relay, 1_000_000)
    for thread in threads:
        thread.join()
    client.close(relay)
    return code, got[0], faults


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines(size: int) -> None:
    """However the bytes come: lines end in a line feed and nothing else; a long one comes in pieces."""
    data = b"one\n\r\ntwo\r\nthr\ree\x0b\n" + b"x" * 25 + b"\nend\nrest"
    lines = LineReader(max_bytes=10)
    pieces = [one for at in range(0, len(data), size) for one in lines.feed(data[at : at + size])]
    assert b"".join(piece for piece, _ in pieces) + lines.rest() == data
    whole = [piece for piece, is_line in pieces if is_line and not piece.startswith(b"x")]
    assert whole == [b"one\n", b"\r\n", b"two\r\n", b"thr\ree\x0b\n", b"end\n"]


def test_a_long_line_does_not_spoil_the_next() -> None:
    """What is in pieces is never taken for a line, not even its end."""
    lines = LineReader(max_bytes=4)
    assert list(lines.feed(b"abcdef")) == [(b"abcdef", False)]
    assert list(lines.feed(b"gh\nij\n")) == [(b"gh\n", False), (b"ij\n", True)]
    assert lines.rest() == b""


def test_lines_go_both_ways() -> None:
    """Looked at one by one; what is refused is answered here; what follows the last line goes along (P-3)."""
    says = Silent()
    code, back, faults = relayed(says, ECHO, b"one\nrefuse\ntwo\nrest")
    assert (code, faults) == (0, [])
    assert sorted(back.splitlines()) == [b"ONE", b"TWO", b"refused", b"rest"]
    assert says.heard == [b"one\n", b"refuse\n", b"two\n"]


def test_big_messages() -> None:
    """Of many pipes' size, there and back at once (P-3)."""
    line = b"x" * 3_000_000 + b"\n"
    code, back, _ = relayed(Silent(), ECHO, line * 3)
    assert (code, len(back)) == (0, 3 * len(line))


def test_what_is_larger_than_any_message() -> None:
    """Passes unread, piece by piece (P-3)."""
    says = Silent()
    line = b"x" * 11_000_000 + b"\n"
    code, back, _ = relayed(says, ECHO, line + b"next\n")
    assert (code, back) == (0, line + b"NEXT\n")
    assert says.heard == [b"next\n"]


def test_a_fault_of_ours_costs_no_message() -> None:
    """The line passes as it is (S-3)."""
    code, back, faults = relayed(Broken(), ECHO, b"one\ntwo\n")
    assert (code, back) == (0, b"one\ntwo\n")
    assert [type(one) for one in faults] == [RuntimeError] * 4


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137), ("pass", 0)],
)
def test_the_exit_code_is_the_servers(program: str, code: int) -> None:
    """Also where a signal ended it, as shells say it; a client that still writes does not hold it up (P-3)."""
    assert relayed(Silent(), program, b"line\n" * 50_000)[0] == code


def test_a_signal_is_passed_on() -> None:
    """The server decides what it does with it (P-3)."""
    program = (
        "import os, signal, sys\n"
        "def end(*_): print('told', flush=True); sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "sys.stdin.read()"
    )
    client = Client()
    relay = Relay([sys.executable, "-c", program], Silent(), print)
    assert client.run(relay) == 5
    assert os.read(client.inn, 100) == b"TOLD\n"
    os.close(client.inn)
    client.close(relay)


def test_a_client_that_is_gone() -> None:
    """Nobody is left to serve, so the server is ended (P-3)."""
    client = Client()
    os.close(client.inn)
    program = "while True: print('x' * 1000, flush=True)"
    relay = Relay([sys.executable, "-c", program], Silent(), print)
    assert client.run(relay) in {1, 120, 143}
    client.close(relay)


@pytest.mark.parametrize(("command", "code"), [("/nowhere/at-all", 127), ("/", 126)])
def test_a_server_that_cannot_be_started(command: str, code: int) -> None:
    """As a shell says it (P-3)."""
    with pytest.raises(NotStartedError, match=f"{command} cannot be started: ") as raised:
        Relay([command], Silent(), print).run(0, 1)
    assert raised.value.code == code


def test_a_signal_that_comes_too_early_is_not_lost() -> None:
    """The server gets it as soon as it is there (P-3)."""
    relay = Relay([sys.executable, "-c", "import time; time.sleep(60)"], Silent(), print)
    relay._forward_signal(15, None)
    client = Client()
    assert client.run(relay) == 143
    os.close(client.inn)
    client.close(relay)


def test_a_line_of_ours_is_never_inside_another() -> None:
    """What is added waits for the end of a line that comes in pieces; after the end, nothing is written (P-3)."""
    inn, out = os.pipe()
    output = _Output(out)
    output.pass_on(b"one, ")
    adding = threading.Thread(target=output.add, args=(b"ours\n",))
    adding.start()
    output.pass_on(b"two\n")
    adding.join(DEADLINE_S)
    output.pass_on(b"")
    output.pass_on(b"rest")
    output.end()
    with pytest.raises(OSError, match="Bad file descriptor"):
        output.add(b"late\n")
    os.close(out)
    with os.fdopen(inn, "rb") as back:
        assert back.read() == b"one, two\nours\nrest"


class Interrupting(Silent):
    """Sends a line to the server when it has said something."""

    relay: Relay

    def from_server(self, line: bytes) -> bytes:
        if line == b"one\n":
            self.relay.send_to_server(b"ours\n")
        return line


def test_the_server_gets_lines_of_ours() -> None:
    """While the client says nothing (P-3)."""
    client, guard = Client(), Interrupting()
    program = "import sys\nfor line in sys.stdin:\n    print(line, end='', flush=True)\n    if 'ours' in line: break"
    guard.relay = Relay([sys.executable, "-c", program], guard, print)
    os.write(client.out, b"one\n")
    assert client.run(guard.relay) == 0
    client.close(guard.relay)
    with os.fdopen(client.inn, "rb") as back:
        assert back.read() == b"one\nours\n"
