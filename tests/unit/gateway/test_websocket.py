"""What a websocket holds, and when its client is not read. How messages are judged is in tests/e2e/test_websockets.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from breakloop.gateway.websocket import WebSocketExchange
from breakloop.gateway.websocket_frames import text_frame


class Client:
    """A client that notes whether it is read."""

    paused = False

    def pause_messages(self, *, paused: bool) -> None:
        self.paused = paused


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
