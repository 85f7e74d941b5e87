from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from breakloop.errors import StateError
from breakloop.store.redis.connection import ConnectOptions, WantsPasswordError, _keep_alive, door_for, open_link
from breakloop.store.redis.url import Address, parse_redis_url
from tests.deadlines import DEADLINE_S
from tests.e2e.certificates import Authority
from tests.fake_redis import Command, Script, array, fake_redis, polite
from tests.unit.gateway.fake_client import FakeLoop
from tests.unit.store.redis.test_connection_link import RUNNERS


def but(**answers: bytes) -> Script:
    """Polite, but for these commands."""

    def script(command: Command) -> bytes:
        return answers.get(command[0].decode(), polite(command))

    return script


def greet(script: Script, **options: Any) -> list[Command]:
    """Open a connection to a server of this script; returns what it was greeted with."""

    async def main() -> list[Command]:
        async with fake_redis(script) as fake:
            door = ConnectOptions(asyncio.get_running_loop(), **options)
            link = await open_link(door, fake.address)
            assert link.alive
            assert link._transport is not None
            kept_alive = link._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert kept_alive
            link.end("done")
            return fake.greetings

    return asyncio.run(main())


def refused(script: Script, **options: Any) -> str:
    with pytest.raises(StateError) as caught:
        greet(script, **options)
    return str(caught.value).partition(" ")[2]  # after the address


def test_a_greeting() -> None:
    assert greet(polite) == [(b"CLIENT", b"SETNAME", b"breakloop"), (b"ROLE",), (b"PING",)]
    greeted = greet(polite, user="me", password="hunter2", db=3)
    assert greeted[:2] == [(b"AUTH", b"me", b"hunter2"), (b"SELECT", b"3")]
    assert greet(polite, password="hunter2", writes=False) == [
        (b"AUTH", b"hunter2"),
        (b"CLIENT", b"SETNAME", b"breakloop"),
        (b"PING",),
    ]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            but(AUTH=b"-WRONGPASS invalid username-password pair\r\n", PING=b"-NOAUTH\r\n"),
            "rejected the user or password",
        ),
        (but(AUTH=b"-ERR AUTH <password> called without any password configured\r\n"), "rejected the user or password"),
        (but(PING=b"-LOADING Redis is loading the dataset in memory\r\n"), "is still loading its data"),
        (but(PING=b"-MASTERDOWN Link with MASTER is down\r\n"), "answered MASTERDOWN"),
        (but(SELECT=b"-ERR DB index is out of range\r\n"), "has no database 3"),
        (but(ROLE=array(b"slave", b"127.0.0.1", 6379, b"connected", 10)), "is a read-only replica"),
        (
            but(CLIENT=b"HTTP/1.1 400 Bad Request\r\n"),
            "closed the connection (the server does not use the Redis protocol)",
        ),
    ],
)
def test_what_keeps_it_out(script: Script, says: str) -> None:
    """The reason, and never the password (Y-1)."""
    assert refused(script, password="hunter2", db=3) == says


def test_a_password_is_wanted() -> None:
    with pytest.raises(WantsPasswordError, match="requires a password"):
        greet(but(PING=b"-NOAUTH Authentication required.\r\n"))


def test_a_user_who_may_do_little_gets_in() -> None:
    """PING, ROLE and names may be forbidden to an ACL user; what matters is what the store sends."""
    denied = b"-NOPERM this user has no permissions\r\n"
    assert greet(but(PING=denied, ROLE=denied, CLIENT=denied))


def test_time_is_up() -> None:
    """A server that accepts and says nothing does not hold us up."""
    assert refused(lambda _: None, open_s=0.05) == "did not respond within 0.05 s"


def test_a_connection_that_ends_in_the_middle() -> None:
    def script(command: Command) -> bytes:
        if command[0] == b"PING":
            raise ConnectionError
        return polite(command)

    assert refused(script) == "closed the connection (the connection was lost)"


def test_nobody_there() -> None:
    async def main(address: Address) -> None:
        await open_link(ConnectOptions(asyncio.get_running_loop()), address)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(StateError, match=r"^127\.0\.0\.1:\d+ refused the connection$"):
            asyncio.run(main(Address("127.0.0.1", taken.getsockname()[1])))
    with pytest.raises(StateError, match="has a host name that cannot be resolved"):
        asyncio.run(main(Address("redis.invalid", 6379)))


def test_given_up_by_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled, it leaves no connection behind."""

    async def main() -> None:
        asked = asyncio.Event()

        def script(_command: Command) -> None:
            asked.set()

        loop = asyncio.get_running_loop()
        connect, made = loop.create_connection, list[Any]()

        async def keep(*arguments: Any, **options: Any) -> Any:
            made.append(await connect(*arguments, **options))  # so that it is not closed because nobody has it
            return made[0]

        monkeypatch.setattr(loop, "create_connection", keep)
        async with fake_redis(script) as fake:
            task = asyncio.create_task(open_link(ConnectOptions(loop), fake.address))
            await asyncio.wait_for(asked.wait(), DEADLINE_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not made[0][1].alive
            await asyncio.wait_for(fake.ended.wait(), DEADLINE_S)

    asyncio.run(main())


def test_a_server_has_two_seconds_for_the_greeting() -> None:
    """In total, and the message says so."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        loop = FakeLoop()
        opening = loop.create_task(open_link(ConnectOptions(loop), Address("127.0.0.1", mute.getsockname()[1])))
        mute.setblocking(False)
        peer = None
        while peer is None:
            loop.turn()
            with suppress(BlockingIOError):
                peer, _ = mute.accept()
        loop.turn(20)  # the greeting is sent
        loop.advance(1.99)
        assert not opening.done()
        loop.advance(0.01)
        assert str(opening.exception()).endswith("did not respond within 2 s")
        loop.turn(3)
        peer.close()
        loop.close()


@pytest.mark.parametrize("runner", RUNNERS)
def test_tls(tmp_path: Path, runner: Callable[..., Any]) -> None:
    """A certificate of our authority for the right name, or none at all."""
    authority = Authority(tmp_path)
    right, wrong = authority.issue("127.0.0.1"), authority.issue("elsewhere.invalid")

    async def main(url: str, server: Any) -> None:
        async with fake_redis(tls=server) as fake:
            parsed = parse_redis_url(url)
            link = await open_link(door_for(parsed, asyncio.get_running_loop()), fake.address)
            assert await link.call(b"PING") == b"PONG"
            link.end("done")

    trusting = f"rediss://127.0.0.1?ca_file={authority.file}"
    runner(main(trusting, right.server))
    with pytest.raises(StateError, match="has a certificate that is not trusted"):
        runner(main(trusting, wrong.server))
    with pytest.raises(StateError, match="has a certificate that is not trusted"):
        runner(main("rediss://127.0.0.1", right.server))
    with pytest.raises(StateError, match=r"failed the TLS handshake|closed the connection|could not be reached"):
        runner(main(trusting, None))


def test_a_url_says_how() -> None:
    door = door_for(parse_redis_url("redis://me:hunter2@h/3"), asyncio.new_event_loop())
    assert (door.user, door.password, door.db, door.writes, door.tls) == ("me", "hunter2", 3, True, None)
    assert "hunter2" not in repr(door)
    door.loop.close()


def test_a_peer_that_is_gone_is_noticed_within_half_a_minute() -> None:
    """By the operating system, also while nothing is sent (S-3)."""
    with socket.socket() as made:
        _keep_alive(made)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        idle_s, every_s, times = (
            made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        )
        assert (idle_s, every_s, times) == (15, 5, 3)
