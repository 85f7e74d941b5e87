"""Real sockets: what the other end sees."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import cast

import pytest
import uvloop

from breakloop.gateway.upstream import peer_closed, reset
from tests.deadlines import DEADLINE_S
from tests.unit.gateway.fake_client import FakeTransport


class Server(asyncio.Protocol):
    """Keeps its transport."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.made = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self.made.set()


async def pair() -> tuple[Server, socket.socket, asyncio.AbstractServer]:
    """A protocol and the raw socket of its client."""
    loop = asyncio.get_running_loop()
    made = Server()
    listener = await loop.create_server(lambda: made, "127.0.0.1", 0)
    client = socket.create_connection(listener.sockets[0].getsockname())
    client.settimeout(DEADLINE_S)
    await made.made.wait()
    return made, client, listener


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_other_end_gets_a_reset(run: object) -> None:
    """An abort alone would be a proper end to whoever reads until the end (D-1)."""

    async def play() -> None:
        made, client, listener = await pair()
        made.transport.write(b"half of it")
        reset(made.transport)
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(_read_all, client)
        client.close()
        listener.close()

    assert callable(run)
    run(play())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_whoever_leaves_is_seen_without_reading(run: object) -> None:
    """`pause_reading` hides disconnects."""

    async def play() -> None:
        made, client, listener = await pair()
        made.transport.pause_reading()
        client.send(b"unread")
        assert not peer_closed(made.transport)
        client.close()
        await asyncio.wait_for(_until_left(made.transport), DEADLINE_S)
        made.transport.abort()
        listener.close()
        with contextlib.suppress(OSError):
            client.close()

    assert callable(run)
    run(play())


def _read_all(client: socket.socket) -> None:
    while client.recv(100):
        pass


async def _until_left(transport: asyncio.Transport) -> None:
    while not peer_closed(transport):  # noqa: ASYNC110 - nobody tells: that is the point
        await asyncio.sleep(0)


def test_a_transport_without_a_socket() -> None:
    transport = FakeTransport()
    assert not peer_closed(transport)
    reset(transport)
    assert transport.aborted
