"""What a websocket holds, and when its client is not read. How messages are judged is in tests/e2e/test_websockets.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from breakloop.gateway.websocket import WebSocketExchange
from breakloop.gateway.websocket_frames import text_frame


class Client:
    """A client that notes whether it is read."""

    paused = is_upgraded = is_over = False
    relayed = 0

    def pause_messages(self, *, paused: bool) -> None:
        self.paused = paused

    def relay(self, data: bytes) -> None:
        self.relayed += len(data)

    def close_websocket(self) -> None:
        self.is_over = True


class FakeTurns:
    """In the place of the event loop."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_soon(self, callback: Any) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


def opened() -> tuple[WebSocketExchange, Client, SimpleNamespace]:
    """A websocket after its handshake; what passes goes nowhere."""
    memory = SimpleNamespace(held=0)
    server = SimpleNamespace(limits=SimpleNamespace(body_bytes=1_000_000), body_memory=memory, tick=0)
    nothing: Any = SimpleNamespace(server=server)
    destination: Any = SimpleNamespace(path="/v1/responses")
    made: Any = WebSocketExchange(nothing, nothing, nothing, nothing, destination, b"GET / HTTP/1.1\r\n\r\n")
    made._client = client = Client()
    return made, client, memory


def test_bytes_are_charged_until_they_are_passed_on() -> None:
    """Or idle websockets would use up the memory of bodies (Y-2)."""
    socket, _, memory = opened()
    frame = text_frame(b"x" * 200_000, masked=True)
    socket.receive(frame[:150_000])
    assert memory.held == 150_000
    socket.receive(frame[150_000:])
    assert memory.held == 0


def test_a_client_is_not_read_while_the_upstream_does_not_read() -> None:
    """Whatever is decided meanwhile (Q-1)."""
    socket, client, _ = opened()
    socket.pause_client(paused=True)
    socket.receive(text_frame(b"hello", masked=True))
    assert client.paused
    socket.pause_client(paused=False)
    assert not client.paused


class Upstream:
    """The connection to an upstream, which notes whether it is read, and what was sent."""

    def __init__(self) -> None:
        self.transport = self
        self.reading = True
        self.sent = b""

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.reading = False


def test_events_of_a_fast_upstream_are_read_in_several_turns() -> None:
    """They are passed on at once, and more is taken from the upstream when they are read. What it sent before it closed the
    connection is read, too (Y-2)."""
    socket, client, _ = opened()
    upstream, turns = Upstream(), FakeTurns()
    made: Any = socket
    made._upstream, made._server.loop = upstream, turns
    client.is_upgraded = True
    read: list[int] = []
    made._read = lambda payload: read.append(len(payload))
    frame = text_frame(b'{"type":"response.output_text.delta"}', masked=False)
    data = frame * 2000
    made.upstream_data(data)
    assert (client.relayed, upstream.reading, len(read)) == (len(data), False, 0)
    client_reads_again(made)
    assert not upstream.reading
    made.upstream_lost("closed the connection")
    most = 0
    while turns.due:
        before = len(read)
        turns.turn()
        most = max(most, len(read) - before)
    assert (len(read), client.is_over) == (2000, True)
    assert most <= 8 * 1024 // len(frame) + 1


def client_reads_again(socket: WebSocketExchange) -> None:
    socket.pause()
    socket.resume()


def test_a_fast_upstream_is_read_again() -> None:
    socket, _, _ = opened()
    upstream, turns = Upstream(), FakeTurns()
    made: Any = socket
    made._upstream, made._server.loop = upstream, turns
    made.upstream_data(text_frame(b"x" * 20_000, masked=False))
    assert not upstream.reading
    while turns.due:
        turns.turn()
    assert upstream.reading


def test_a_large_message_is_judged_after_the_work_of_others() -> None:
    """Step by step, and messages behind it wait (Y-2)."""
    socket, _, memory = opened()
    made: Any = socket
    upstream = made._upstream = Upstream()
    queued: list[Any] = []
    counted, judged = [], []

    def count(body: bytes) -> Any:
        counted.append(len(body))
        yield

    def run_slowly(steps: Any) -> None:
        next(steps)
        queued.append(steps)

    made._admission = SimpleNamespace(count=count, forget=lambda: judged.append("forgotten"))
    made._server.run_slowly = run_slowly
    made._judge = lambda message: judged.append(message.payload[:10])
    body = b"response.create" + b"x" * 300_000
    behind = text_frame(b"behind", masked=True)
    socket.receive(text_frame(body, masked=True) + behind)
    assert (judged, upstream.sent, memory.held > 300_000) == ([], b"", True)
    (steps,) = queued
    next(steps)
    assert (judged, counted) == ([], [len(body)])
    assert next(steps, None) is None
    assert (judged, upstream.sent, memory.held) == ([b"response.c", "forgotten"], behind, 0)
