"""The shelf in Redis without a Redis: what is refused before connecting, and what a failure is called. With real
servers: tests/e2e/test_bundle_redis.py."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from breakloop.errors import SettingsError, StateError
from breakloop.store.redis.bundle import NoPushedBundleError, PushDeniedError, PushedBundle, moment, open_shelf
from tests.deadlines import DEADLINE_S
from tests.e2e.certificates import Authority
from tests.fake_redis import Command, array, fake_redis, polite


def test_nobody_listens() -> None:
    """An error that can be shown, without the password; it can be tried again (B-3)."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        shelf = open_shelf(f"redis://user:canary@127.0.0.1:{bound.getsockname()[1]}/2")
        for _ in range(2):
            with pytest.raises(StateError, match="Connection refused") as caught:
                shelf.fetch(None)
            assert "canary" not in str(caught.value) + shelf.name
        with pytest.raises(StateError, match="Connection refused"):
            shelf.push(PushedBundle(1, "d", b"x"))
        assert shelf._client is None  # the next request connects anew, perhaps to another server
        shelf.close()
    assert shelf.name.startswith("redis://user:***@127.0.0.1:")


@pytest.mark.parametrize("url", ["memory://", "sqlite://x", ""])
def test_only_redis_has_a_shelf(url: str) -> None:
    """Other state cannot be pushed to (B-3)."""
    with pytest.raises(SettingsError, match="set state to a Redis URL"):
        open_shelf(url)


def test_certificate_files_are_looked_at_first(tmp_path: Path) -> None:
    """A wrong path is said at start, not once a second (B-3)."""
    with pytest.raises(SettingsError, match="ca_file"):
        open_shelf(f"rediss://127.0.0.1/?ca_file={tmp_path / 'none.pem'}")


def test_the_package_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, how to get it is said (B-3)."""
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(SettingsError, match=r"pip install .breakloop\[redis\]"):
        open_shelf("redis://127.0.0.1")


class Sentinels:
    """What the package makes of addresses of Sentinels: some require a password."""

    required = False

    def __init__(self, addresses: object, sentinel_kwargs: dict[str, str]) -> None:
        self.addresses, self.login = addresses, sentinel_kwargs
        self.asked = 0

    def discover_master(self, _service: str) -> None:
        self.asked += 1
        if self.required and "password" not in self.login:
            raise redis.AuthenticationError


@pytest.mark.parametrize(
    ("user", "required", "asked", "sent"),
    [("me:pw@", True, 0, {"password": "pw"}), ("me:pw@", False, 1, {}), ("", False, 0, {})],
)
def test_sentinels_get_the_password_if_they_require_one(
    monkeypatch: pytest.MonkeyPatch, user: str, required: bool, asked: int, sent: dict[str, str]
) -> None:
    """It is the servers' password, which not every Sentinel accepts (B-3)."""
    shelf = open_shelf(f"redis+sentinel://{user}127.0.0.1:26379/main")
    monkeypatch.setattr(redis, "Sentinel", Sentinels)
    monkeypatch.setattr(Sentinels, "required", required)
    found = shelf._sentinel({}, {"password": "pw"} if user else {})
    assert (found.asked, found.login) == (asked, sent)


class Recorded:
    """A class of the package: what it is made with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options

    def master_for(self, service: str, **options: Any) -> Recorded:
        return Recorded(service, **options)


SERVER = {"db": 0, "username": None, "password": None}


@pytest.mark.parametrize(
    ("url", "arguments", "options"),
    [
        ("redis://h:1/3", ("h", 1), {**SERVER, "db": 3}),
        ("redis://:pw@h", ("h", 6379), {**SERVER, "password": "pw"}),
        ("redis://me:pw@h", ("h", 6379), {**SERVER, "username": "me", "password": "pw"}),
        ("rediss://h", ("h", 6379), {**SERVER, "ssl": True}),
        ("rediss://h?{files}", ("h", 6379), {**SERVER, "ssl": True, "ssl_ca_certs": "{ca}", "ssl_certfile": "{cert}",
                                             "ssl_keyfile": "{key}"}),
        ("redis+sentinel://a,b/main/4", ("main",), {**SERVER, "db": 4}),
        ("redis+cluster://me:pw@a:1,b:2/", (), {"username": "me", "password": "pw",
                                               "startup_nodes": [("a", 1), ("b", 2)]}),
    ],
)  # fmt: skip
def test_what_a_url_says_reaches_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """With a bound for every wait (B-3)."""
    authority = Authority(tmp_path)
    issued = authority.issue("client")
    files = {"ca": str(authority.file), "cert": str(issued.certificate), "key": str(issued.key)}
    shelf = open_shelf(url.format(files="ca_file={ca}&cert_file={cert}&key_file={key}".format(**files)))
    for name in ("Redis", "RedisCluster", "Sentinel"):
        monkeypatch.setattr(redis, name, Recorded)
    monkeypatch.setattr(redis.cluster, "ClusterNode", lambda *address: address)
    made = shelf._connect()
    _, *waits = (made.options.pop(name) for name in ("retry", "socket_connect_timeout", "socket_timeout"))
    assert made.arguments == arguments
    assert made.options == {
        name: value.format(**files) if isinstance(value, str) else value for name, value in options.items()
    }
    assert waits == [2.0, 2.0]


def test_a_connection_that_was_closed_while_idle_is_opened_again_once() -> None:
    """A server that closes every connection is not asked for ever (B-3)."""

    def script(command: Command) -> bytes:
        if command[0] == b"HMGET" and closing:
            raise ConnectionError
        if command[0] == b"HELLO":
            return b"%1\r\n$5\r\nproto\r\n:3\r\n"
        return array(*[b"1"] * len(command[2:])) if command[0] == b"HMGET" else polite(command)

    async def main() -> None:
        async with fake_redis(script) as fake:
            shelf = open_shelf(f"redis://127.0.0.1:{fake.port}")
            first = await asyncio.to_thread(shelf.fetch, None)
            assert first is not None
            fake.drop()
            assert await asyncio.to_thread(shelf.fetch, None) == first
            closing.append(True)
            asked = len([command for command in fake.seen if command[0] == b"HMGET"])
            with pytest.raises(StateError):
                await asyncio.to_thread(shelf.fetch, None)
            assert len([command for command in fake.seen if command[0] == b"HMGET"]) == asked + 2
            closing.clear()
            await asyncio.to_thread(shelf.fetch, None)
            client = shelf._client  # or it is closed because nobody has it
            fake.ended.clear()
            shelf.close()
            await asyncio.wait_for(fake.ended.wait(), DEADLINE_S)
            assert client is not None

    closing: list[bool] = []
    asyncio.run(main())


class Server:
    """One hash, and the answer of the script."""

    def __init__(self) -> None:
        self.fields: dict[str, bytes] = {}
        self.answer: list[bytes] = [b"pushed"]
        self.asked: list[tuple[object, ...]] = []

    def execute_command(self, *command: object) -> list[bytes | None]:
        self.asked.append(command)
        if command[0] == "HMGET":
            return [self.fields.get(str(name)) for name in command[2:]]
        return list(self.answer)


def test_a_bundle_is_read_when_its_stamp_has_changed() -> None:
    """It is asked for twice a second, and is large (B-3)."""
    shelf, server = open_shelf("redis://127.0.0.1"), Server()
    shelf._client = server
    with pytest.raises(NoPushedBundleError, match="no bundle was pushed yet"):
        shelf.fetch(None)
    server.fields = {
        "version": b"7",
        "digest": b"d",
        "data": b"\xff",
        "forced": b"1",
        "pushed_at": b"9.5",
        "pushed_by": b"ann",
    }
    found = shelf.fetch(None)
    assert found == PushedBundle(7, "d", b"\xff", "", forced=True, pushed_at="9.5", pushed_by="ann")
    server.asked.clear()
    assert shelf.fetch(found.stamp) is None
    assert server.asked == [("HMGET", "bl:bundle", "digest", "pushed_at")]
    server.fields |= {"version": b"seven", "forced": b"0", "pushed_at": b"10.5"}
    assert shelf.fetch(found.stamp) == PushedBundle(0, "d", b"\xff", "", pushed_at="10.5", pushed_by="ann")
    for missing in ("data", "digest"):
        kept = server.fields.pop(missing)
        with pytest.raises(NoPushedBundleError):
            shelf.fetch(None)
        server.fields[missing] = kept


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            [b"refused", b"8", b"d", b"1.5", b"ann"],
            "version 8, pushed by ann at 1970-01-01T00:00:01+00:00, and 7 is lower",
        ),
        (
            [b"refused", b"7", b"d", b"soon", b""],
            "version 7 with different content, pushed by unknown at an unknown time",
        ),
    ],
)
def test_a_push_that_is_refused_says_whose_is_there(answer: list[bytes], said: str) -> None:
    shelf, server = open_shelf("redis://127.0.0.1"), Server()
    shelf._client = server
    assert shelf.push(PushedBundle(7, "d", b"x", pushed_by="ann"))
    assert server.asked[0][2:] == (1, "bl:bundle", 7, "d", b"x", "", "ann", "0", "bl:bundle")
    server.answer = [b"same"]
    assert not shelf.push(PushedBundle(7, "d", b"x", forced=True))
    assert server.asked[1][9] == "1"
    server.answer = answer
    with pytest.raises(PushDeniedError, match=re.escape(said)):
        shelf.push(PushedBundle(7, "d", b"x"))


@pytest.mark.parametrize("stored", ["", "soon", "nan", "inf", "1e17", "1e12"])
def test_a_time_that_is_none_is_called_unknown(stored: str) -> None:
    """Anybody who can write to Redis can write this (B-3)."""
    assert moment(stored) == "an unknown time"
