"""Settings become parts: each value arrives where it works."""

from __future__ import annotations

import asyncio
from pathlib import Path

from breakloop.gateway.proxy import ProxyDoor
from breakloop.gateway.server import Server
from breakloop.parts import context, open_proxy
from breakloop.runtime import Runtime
from breakloop.settings import Settings


def settings(tmp_path: Path, **values: object) -> Settings:
    return Settings.model_validate({"data_dir": str(tmp_path / "data"), "port": 0, **values})


def test_jwt_settings_become_keys(tmp_path: Path) -> None:
    """C-3: any of the three makes tokens verified; none leaves them unverified."""
    assert context(settings(tmp_path), b"k").jwt is None
    keys = context(settings(tmp_path, jwt={"secret": "s", "audience": "a", "leeway_seconds": 2.0}), b"k").jwt
    assert keys is not None
    assert (keys.secret, keys.audience, keys.leeway_s) == ("s", "a", 2.0)


def test_processes_on_one_port_know_their_requests(tmp_path: Path) -> None:
    """LD-9, S-5: a request that comes back to another worker has come back; without a mark each has its own."""

    async def hops(*marks: str) -> list[bytes]:
        found = []
        for mark in marks:
            runtime = Runtime(settings(tmp_path))
            door = open_proxy(Server(runtime.door), runtime.settings, runtime.judging, runtime.door, mark)
            assert isinstance(door, ProxyDoor)
            found.append(door._forwarding._hop)
        return found

    assert asyncio.run(hops("m1", "m1")) == [b"m1", b"m1"]
    first, second = asyncio.run(hops("", ""))
    assert first != second
