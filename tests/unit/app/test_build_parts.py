"""Settings become parts: each value arrives where it works."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from breakloop.app.build import check_ports, context, envoy_grpc, open_proxy
from breakloop.app.runtime import Runtime
from breakloop.config.settings import Settings
from breakloop.errors import SettingsError
from breakloop.gateway.proxy import ProxyHandler
from breakloop.gateway.server import Server
from breakloop.gateway.upstream import UpstreamFaults
from tests.deadlines import DEADLINE_S


def settings(tmp_path: Path, **values: object) -> Settings:
    return Settings.model_validate({"data_dir": str(tmp_path / "data"), "port": 0, **values})


def test_jwt_settings_become_keys(tmp_path: Path) -> None:
    """Any of the three makes tokens verified; none leaves them unverified (C-3)."""
    assert context(settings(tmp_path), b"k").jwt is None
    keys = context(settings(tmp_path, jwt={"secret": "s", "audience": "a", "leeway_seconds": 2.0}), b"k").jwt
    assert keys is not None
    assert (keys.secret, keys.audience, keys.leeway_s) == ("s", "a", 2.0)


def test_processes_on_one_port_know_their_requests(tmp_path: Path) -> None:
    """A request that comes back to another worker has come back; without a mark each has its own (LD-9, S-5)."""

    async def hops(*marks: str) -> list[bytes]:
        found = []
        for mark in marks:
            runtime = Runtime(settings(tmp_path))
            door = open_proxy(Server(runtime.handler), runtime.settings, runtime.admission, runtime.handler, mark)
            assert isinstance(door, ProxyHandler)
            found.append(door._rewriter._hop)
        return found

    assert asyncio.run(hops("m1", "m1")) == [b"m1", b"m1"]
    first, second = asyncio.run(hops("", ""))
    assert first != second


def test_faults_of_upstreams_are_counted_out(tmp_path: Path) -> None:
    """What was left out is told when its time is over, also when nothing more fails (G-2)."""

    async def swept() -> bool:
        runtime = Runtime(settings(tmp_path))
        server, faults = Server(runtime.handler), UpstreamFaults(runtime.events, runtime.clock)
        open_proxy(server, runtime.settings, runtime.admission, runtime.handler, faults=faults)
        return faults.sweep in server.on_sweep

    assert asyncio.run(swept())


def test_envoy_may_ask_over_grpc(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """On its port while the process runs; without one nothing is opened, and nothing is imported for it (D-3)."""

    def connect(port: int) -> None:
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S).close()

    async def test(port: int) -> None:
        runtime = Runtime(settings(tmp_path, envoy_grpc_port=port))
        async with (
            envoy_grpc(runtime.settings, runtime.handler, runtime.admission),
            envoy_grpc_of_another(runtime, tmp_path),
        ):
            await asyncio.to_thread(connect, port)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(connect, port)

    asyncio.run(test(free_port()))


def envoy_grpc_of_another(runtime: Runtime, tmp_path: Path) -> nullcontext[None]:
    nothing = envoy_grpc(settings(tmp_path), runtime.handler, runtime.admission)
    assert isinstance(nothing, nullcontext)
    return nothing


@pytest.mark.parametrize(
    ("setting", "flag"), [("port", "--port"), ("admin_port", "--admin-port"), ("envoy_grpc_port", "envoy_grpc_port")]
)
def test_a_port_that_is_taken_is_seen_first(setting: str, flag: str, tmp_path: Path) -> None:
    """Each of the three, with the words that change it (S-5)."""
    check_ports(settings(tmp_path, admin_port=0))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"^127\.0\.0\.1:{port} is in use \(.* with {flag}\)$"):
            check_ports(settings(tmp_path, **{"admin_port": 0, setting: port}))


def test_only_a_shared_store_has_places_of_agents(tmp_path: Path) -> None:
    """`shard_by` says nothing about memory (E-5)."""
    redis = {"state": "redis://127.0.0.1:1/0"}
    assert context(settings(tmp_path, shard_by="agent", **redis), b"k").shard_by_agent
    assert not context(settings(tmp_path, shard_by="agent"), b"k").shard_by_agent
    assert not context(settings(tmp_path, **redis), b"k").shard_by_agent
