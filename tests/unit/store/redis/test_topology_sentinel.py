from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from breakloop.errors import StateError
from breakloop.store.redis.connection import ConnectOptions
from breakloop.store.redis.topology import Sentinels
from breakloop.store.redis.url import Address
from tests.fake_redis import Command, Script, array, fake_redis, polite
from tests.unit.gateway.fake_client import FakeLoop

NOWHERE = Address("127.0.0.1", 1)


def knowing(answer: bytes) -> Script:
    def script(command: Command) -> bytes:
        if command == (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", b"main"):
            return answer
        return polite(command)

    return script


MASTER = knowing(array(b"10.0.0.1", b"6379"))


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def sentinels(*addresses: Address, password: str = "") -> Sentinels:
    return Sentinels(ConnectOptions(asyncio.get_running_loop(), password=password), addresses, "main")


def test_the_first_that_knows() -> None:
    """Sentinels that are gone or do not know are passed by, and who answered is asked first the next time."""

    async def main() -> None:
        async with fake_redis(knowing(b"*-1\r\n")) as ignorant, fake_redis(MASTER) as good:
            asked = sentinels(NOWHERE, ignorant.address, good.address)
            assert await asked.find() == Address("10.0.0.1", 6379)
            assert len(ignorant.seen) == 1
            assert await asked.find() == Address("10.0.0.1", 6379)
            assert (len(ignorant.seen), len(good.seen)) == (1, 2)
            assert asked._addresses == [good.address, NOWHERE, ignorant.address]
            assert good.connections == 1  # kept for the next time
            links = list(asked._links.values())
            asked.close()
            assert [link.alive for link in links] == [False, False]
            assert await asked.find() == Address("10.0.0.1", 6379)
            assert good.connections == 2
            asked.close()
            assert asked.recheck_s == 1.0

    run(main)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"*-1\r\n", "has no master named main"),
        (b"-ERR unknown command 'SENTINEL'\r\n", "returned ERR: it is not a Sentinel, or denies the command"),
        (array(b"10.0.0.1"), "returned an invalid address"),
        (array(b"10.0.0.1", b"x"), "returned an invalid address"),
        (array(None, b"1"), "returned an invalid address"),
        (b":5\r\n", "returned an invalid address"),
    ],
)
def test_none_that_knows(answer: bytes, says: str) -> None:
    async def main() -> None:
        async with fake_redis(knowing(answer)) as fake:
            with pytest.raises(StateError) as caught:
                await sentinels(NOWHERE, fake.address).find()
            assert str(caught.value) == (
                f"no Sentinel knows the master of main: 127.0.0.1:1 refused the connection; {fake.address} {says}"
            )

    run(main)


def test_the_password_is_for_sentinels_that_ask_for_one() -> None:
    """The others would refuse it, and need not know it."""

    async def main() -> None:
        let_in = False

        def locked(command: Command) -> bytes:
            nonlocal let_in
            if command[0] == b"AUTH":
                let_in = command[1:] == (b"hunter2",)
            return MASTER(command) or b"" if let_in else b"-NOAUTH Authentication required.\r\n"

        async with fake_redis(locked) as fake, fake_redis(MASTER) as free:
            assert await sentinels(fake.address, password="hunter2").find() == Address("10.0.0.1", 6379)
            assert await sentinels(free.address, password="hunter2").find() == Address("10.0.0.1", 6379)
            assert not [one for one in free.greetings if one[0] == b"AUTH"]
            let_in = False
            with pytest.raises(StateError, match="requires a password"):
                await sentinels(fake.address).find()

    run(main)


def test_a_sentinel_is_no_server() -> None:
    """It has no databases, and no role that matters."""

    async def main() -> None:
        async with fake_redis(MASTER) as fake:
            door = ConnectOptions(asyncio.get_running_loop(), db=3)
            asked = Sentinels(door, (fake.address,), "main")
            await asked.find()
            asked.close()
            assert {command[0] for command in fake.greetings} == {b"CLIENT", b"PING"}

    run(main)


def test_a_connection_that_ends() -> None:
    async def main() -> None:
        def script(command: Command) -> bytes:
            if command[0] == b"SENTINEL":
                raise ConnectionError
            return polite(command)

        async with fake_redis(script) as fake:
            with pytest.raises(StateError, match="the connection was lost"):
                await sentinels(fake.address).find()

    run(main)


def test_one_has_half_a_second() -> None:
    """Then the next is asked: commands fail meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        loop = FakeLoop()
        address = Address("127.0.0.1", mute.getsockname()[1])
        finding = loop.create_task(Sentinels(ConnectOptions(loop), (address,), "main").find())
        mute.setblocking(False)
        peer = None
        while peer is None:
            loop.turn()
            with suppress(BlockingIOError):
                peer, _ = mute.accept()
        loop.turn(20)
        loop.advance(0.49)
        assert not finding.done()
        loop.advance(0.01)
        assert str(finding.exception()).endswith("did not respond within 0.5 s")
        loop.turn(3)
        peer.close()
        loop.close()


def test_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is passed by, in half a second; here sooner."""
    monkeypatch.setattr("breakloop.store.redis.topology._SENTINEL_S", 0.05)

    async def main() -> None:
        async with fake_redis(lambda command: None if command[0] == b"SENTINEL" else polite(command)) as mute:
            async with fake_redis(MASTER) as good:
                asked = sentinels(mute.address, good.address)
                found = None
                while found is None:  # on a busy machine, the other one may be late as well
                    with suppress(StateError):
                        found = await asked.find()
                assert found == Address("10.0.0.1", 6379)
                asked.close()
            with pytest.raises(StateError, match=r"did not respond within 0\.05 s"):
                await sentinels(mute.address).find()

    run(main)
