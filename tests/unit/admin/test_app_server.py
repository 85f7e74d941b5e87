"""Tests of `admin.server`: on a real port, on the loop that is there."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import suppress
from urllib.parse import quote

import pytest

from breakloop.admin import app
from breakloop.admin.app import AdminServer
from breakloop.cli.remote import AdminClient, AdminError
from tests.admin_client import OWN, app_of
from tests.admin_world import World, full
from tests.deadlines import DEADLINE_S


async def _asked(port: int, path: str, *lines: str, method: str = "GET", body: bytes = b"") -> tuple[bytes, bytes]:
    """Head and body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {OWN}", *lines]
    head += ["Connection: close", f"Content-Length: {len(body)}"]
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    found, _, rest = answer.partition(b"\r\n\r\n")
    return found, rest


@pytest.fixture
def world() -> World:
    return full()


def test_it_serves_and_ends(world: World) -> None:
    """A port of its own; signals stay the process' (X-1)."""

    async def run() -> None:
        handler = signal.getsignal(signal.SIGTERM)
        server = AdminServer(app_of(world), "127.0.0.1", 0)
        port = await server.start()
        assert signal.getsignal(signal.SIGTERM) is handler
        head, body = await _asked(port, "/livez")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"server:" not in head.lower()
        assert body == b"ok\n"
        await server.stop()
        await server.stop()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(run())


@pytest.mark.parametrize("agent", ["a%2Fb", "team/bot", "ü/\n"])
def test_names_come_through_as_they_are(world: World, agent: str) -> None:
    """Names come through as they are: decoded once (T-2)."""

    async def run() -> None:
        server = AdminServer(app_of(world), "127.0.0.1", 0)
        port = await server.start()
        path = f"/api/v1/agents/{quote(agent, safe='')}/kill"
        head, _ = await _asked(port, path, "Content-Type: application/json", method="POST", body=b'{"reason": "x"}')
        assert head.startswith(b"HTTP/1.1 200 OK")
        await server.stop()

    asyncio.run(run())
    assert agent in [hold.agent for hold in world.operator.holds()]


def test_a_stream_of_events_does_not_hold_up_the_end(world: World) -> None:
    async def run() -> None:
        server = AdminServer(app_of(world), "127.0.0.1", 0)
        port = await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        lines = ["GET /api/v1/events?follow=1 HTTP/1.1", "Host: localhost", f"Authorization: Bearer {OWN}", "", ""]
        writer.write("\r\n".join(lines).encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_S)
        assert b"content-type: text/event-stream" in head.lower()
        assert b": breakloop events" in await asyncio.wait_for(reader.readuntil(b"\n\n"), DEADLINE_S)
        await asyncio.wait_for(server.stop(), DEADLINE_S)
        writer.close()

    asyncio.run(run())


def test_a_port_in_use_is_told(world: World) -> None:
    """A second instance fails, and does not take half of it (S-5)."""

    async def run() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            with pytest.raises(OSError, match="in use"):
                await AdminServer(app_of(world), "127.0.0.1", other.getsockname()[1]).start()

    asyncio.run(run())


def test_every_address_of_a_name_has_the_same_port(world: World) -> None:
    async def run() -> None:
        server = AdminServer(app_of(world), "localhost", 0)
        port = await server.start()
        assert (await _asked(port, "/livez"))[1] == b"ok\n"
        await server.stop()

    asyncio.run(run())


def test_idle_connections_keep_nobody_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has sent no request is closed for a new one, and all of them after a while (Y-3)."""
    monkeypatch.setattr(app, "_CONNECTIONS_MAX", 8)
    monkeypatch.setattr(app, "_RESERVED", 3)

    async def run() -> None:
        server = AdminServer(app_of(world), "127.0.0.1", 0)
        port = await server.start()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        silent[-1][1].write(b"GET /livez HTTP/1.1\r\n")  # half a head
        head, _ = await _asked(port, "/livez")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert server._server is not None
        open_ones = [one for one in server._server.server_state.connections if isinstance(one, app._BoundedProtocol)]
        assert len(open_ones) <= 5
        for one in open_ones:
            assert one._timer is not None
            one._expire()
        for reader, writer in silent:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
            writer.close()
        await server.stop()

    asyncio.run(run())


def test_a_request_that_is_never_complete_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not arrive has its time; under pressure the connection makes room before (Y-3)."""
    monkeypatch.setattr(app, "_CONNECTIONS_MAX", 8)
    monkeypatch.setattr(app, "_RESERVED", 3)

    async def run() -> None:
        server = AdminServer(app_of(world), "127.0.0.1", 0)
        port = await server.start()
        assert server._server is not None
        connections = server._server.server_state.connections
        half = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        for _, writer in half:
            writer.write(
                b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\nto"
            )
        head, _ = await _asked(port, "/livez")
        assert head.startswith(b"HTTP/1.1 200 OK")
        for one in list(connections):
            assert isinstance(one, app._BoundedProtocol)
            one._expire()
            assert one._timer is not None  # the head was in time, and the body has its own
            one._expire(0.0)
        for reader, writer in half:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
            writer.close()
        await server.stop()

    asyncio.run(run())


@pytest.mark.parametrize("is_local", [True, False])
def test_this_machine_has_places_of_its_own(world: World, monkeypatch: pytest.MonkeyPatch, is_local: bool) -> None:
    """With all connections busy, a kill from this machine still works; elsewhere it states what is wrong (Y-3)."""
    monkeypatch.setattr(app, "_CONNECTIONS_MAX", 4)
    monkeypatch.setattr(app, "_RESERVED", 2)
    monkeypatch.setattr(app, "is_loopback", lambda _address: False)

    async def run() -> None:
        server = AdminServer(app_of(world), "127.0.0.1", 0)
        port = await server.start()
        busy = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            lines = ["GET /api/v1/events?follow=1 HTTP/1.1", "Host: localhost", f"Authorization: Bearer {OWN}", "", ""]
            writer.write("\r\n".join(lines).encode())
            await asyncio.wait_for(reader.readuntil(b"\n\n"), DEADLINE_S)
            busy.append(writer)
        monkeypatch.setattr(app, "is_loopback", lambda _address: is_local)
        command = AdminClient(f"http://127.0.0.1:{port}", OWN)
        kill = asyncio.to_thread(command.post, "/agents/planner/kill", {"reason": "spins"})
        if is_local:
            assert (await kill)["hold"]["agent"] == "planner"
        else:
            with pytest.raises(AdminError, match="too many connections"):
                await kill
        for writer in busy:
            writer.close()
        await server.stop()

    asyncio.run(run())


def test_clients_that_do_not_read_keep_nobody_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs are closed for new connections, and after a while in any case; those that read go on (Y-3)."""
    monkeypatch.setattr(app, "_CONNECTIONS_MAX", 4)
    monkeypatch.setattr(app, "_RESERVED", 1)
    monkeypatch.setattr(app, "is_loopback", lambda _address: False)

    async def run() -> None:
        server = AdminServer(app_of(world), "127.0.0.1", 0)
        port = await server.start()
        assert server._server is not None
        streams = []
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            lines = ["GET /api/v1/events?follow=1 HTTP/1.1", "Host: localhost", f"Authorization: Bearer {OWN}", "", ""]
            writer.write("\r\n".join(lines).encode())
            await asyncio.wait_for(reader.readuntil(b"\n\n"), DEADLINE_S)
            streams.append((reader, writer))
        busy = [one for one in server._server.server_state.connections if isinstance(one, app._BoundedProtocol)]
        busy[0].pause_writing()
        busy[1].pause_writing()
        busy[1].resume_writing()
        assert busy[1]._unread_timer is None
        assert busy[0]._unread_timer is not None
        head, _ = await _asked(port, "/livez")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert [one.transport.is_closing() for one in busy] == [True, False, False, False]
        for _, writer in streams:
            writer.close()
        await server.stop()

    asyncio.run(run())
