from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from breakloop.errors import StateError
from breakloop.store.redis.connection import (
    AddressFinder,
    ConnectOptions,
    ReconnectBackoff,
    Reconnector,
    RedisConnection,
    open_link,
)
from breakloop.store.redis.url import Address
from tests.deadlines import DEADLINE_S
from tests.fake_redis import Command, Heard, array, fake_redis, polite
from tests.unit.gateway.fake_client import FakeLoop
from tests.unit.store.redis.test_connection_link import RUNNERS


def test_delays_grow_to_a_second() -> None:
    """From 0.05 s, doubling, to 1 s; half of it hangs on chance, so that a fleet does not come back in one step."""
    longest, shortest = ReconnectBackoff(lambda: 1.0), ReconnectBackoff(lambda: 0.0)
    assert [longest.next_s() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [shortest.next_s() for _ in range(3)] == [0.025, 0.05, 0.1]
    longest.reset()
    assert longest.next_s() == 0.05
    assert len({ReconnectBackoff().next_s() for _ in range(9)}) > 1


class Counted(ReconnectBackoff):
    """No delay, but counted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.resets = 0

    def next_s(self) -> float:
        self.asked += 1
        return 0.0

    def reset(self) -> None:
        self.resets += 1


class Place(AddressFinder):
    """Says where the server is; what it says can be changed."""

    def __init__(self, *answers: Address | StateError, recheck_s: float | None = None) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.closed = False
        self.recheck_s = recheck_s

    def close(self) -> None:
        self.closed = True

    async def find(self) -> Address:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, StateError):
            raise answer
        return answer


def keeper(find: Place, changes: Callable[[bool, str], None], **options: Any) -> Reconnector:
    made = Reconnector(ConnectOptions(asyncio.get_running_loop(), **options), find, Counted())
    made.on_change = changes
    return made


async def call(kept: Reconnector, *args: bytes) -> Any:
    heard = Heard()
    kept.send_soon(args, heard)
    return await heard.next()


@pytest.mark.parametrize("runner", RUNNERS)
def test_it_comes_back_by_itself(runner: Callable[..., None]) -> None:
    """After a lost connection, with nobody doing anything; meanwhile what is sent fails at once (S-3)."""

    async def main() -> None:
        async with fake_redis() as fake:
            changes = Heard()
            kept = keeper(Place(fake.address), changes)
            await kept.start()
            assert await changes.next() == (True, "connected")
            assert await call(kept, b"SET", b"a", b"1") == b"OK"
            fake.drop()
            assert await changes.next() == (False, "the connection was lost")
            assert kept.link is None
            assert str(await call(kept, b"GET", b"a")) == "the connection was lost"
            assert await changes.next() == (True, "connected")
            assert await call(kept, b"GET", b"b") == b"OK"
            await kept.close()
            assert fake.seen == [(b"SET", b"a", b"1"), (b"GET", b"b")]

    runner(main())


def test_the_first_try_tells_and_it_goes_on() -> None:
    """`start` says why it failed; when the server is there, it is used without being started again."""

    async def main() -> None:
        async with fake_redis() as fake:
            changes = Heard()
            place = Place(StateError("nowhere"), StateError("still nowhere"), fake.address)
            kept = keeper(place, changes)
            with pytest.raises(StateError, match="nowhere"):
                await kept.start()
            assert await changes.next() == (True, "connected")
            assert place.asked == 3
            await kept.close()

    asyncio.run(main())


def test_delays_begin_anew_only_after_a_good_connection() -> None:
    """A server that takes connections and ends them at once is not asked twenty times a second for ever."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with fake_redis() as fake:
            changes, backoff = Heard(), Counted()
            kept = Reconnector(ConnectOptions(loop), Place(fake.address), backoff)
            kept.on_change = changes
            await kept.start()
            for _ in range(2):
                await changes.next()
                fake.drop()
                await changes.next()
            assert (backoff.asked, backoff.resets) == (2, 0)
            await changes.next()
            kept._since -= 1.0  # it has lived for a second
            fake.drop()
            await changes.next()
            assert backoff.resets == 1
            await kept.close()

    asyncio.run(main())


def test_a_master_that_became_a_replica_is_left() -> None:
    """READONLY: the one who asked is told, and the master is looked for again."""

    async def main() -> None:
        def demoted(command: Command) -> bytes:
            return (
                b"-READONLY You can't write against a read only replica.\r\n"
                if command[0] == b"SET"
                else polite(command)
            )

        async with fake_redis(demoted) as old, fake_redis() as new:
            changes = Heard()
            kept = keeper(Place(old.address, new.address), changes)
            await kept.start()
            error = await call(kept, b"SET", b"a", b"1")
            assert error.code == "READONLY"
            assert [await changes.next() for _ in range(3)] == [
                (True, "connected"),
                (False, "the server has become a read-only replica"),
                (True, "connected"),
            ]
            assert await call(kept, b"SET", b"a", b"2") == b"OK"
            assert (old.seen, new.seen) == ([(b"SET", b"a", b"1")], [(b"SET", b"a", b"2")])
            await kept.close()

    asyncio.run(main())


def test_a_replica_is_not_used() -> None:
    async def main() -> None:
        answers = [array(b"slave", b"h", 1, b"connect", -1), array(b"master", 0, [])]

        def script(command: Command) -> bytes:
            return answers.pop(0) if command[0] == b"ROLE" else polite(command)

        async with fake_redis(script) as fake:
            changes = Heard()
            kept = keeper(Place(fake.address), changes)
            with pytest.raises(StateError, match="is a read-only replica"):
                await kept.start()
            assert await changes.next() == (True, "connected")
            await kept.close()

    asyncio.run(main())


def test_what_is_sent_before_the_first_connection() -> None:
    """`send_soon` waits for the first try, and for no other; nothing is lost without a word."""

    async def main() -> None:
        async with fake_redis() as fake:
            first, second = Heard(), Heard()
            kept = keeper(Place(fake.address), Heard())
            kept.start_soon()
            kept.send_soon((b"SET", b"a", b"1"), first)
            kept.send_soon((b"SET", b"a", b"2"), second)
            assert [await first.next(), await second.next()] == [b"OK", b"OK"]
            assert [command[2] for command in fake.seen] == [b"1", b"2"]
            await kept.close()
        failing = keeper(Place(StateError("nowhere")), Heard())
        failing.start_soon()
        assert str(await call(failing, b"PING")) == "nowhere"
        await failing.close()

    asyncio.run(main())


def test_close_is_final() -> None:
    """No timer, no task and no connection is left; whoever waits is told."""

    async def main() -> None:
        async with fake_redis(lambda command: None if command[0] == b"HANG" else polite(command)) as fake:
            heard = Heard()
            kept = keeper(Place(fake.address), Heard())
            await kept.start()
            kept.send_soon((b"HANG",), heard)
            await fake.next_seen()
            await kept.close()
            assert str(await heard.next()) == "closed"
            assert str(await call(kept, b"PING")) == "closed"
            assert fake.connections == 1
        waiting = keeper(Place(StateError("nowhere")), Heard())
        with pytest.raises(StateError):
            await waiting.start()
        await waiting.close()
        lost = Lost()
        hanging = keeper(lost, Heard())
        hanging.start_soon()
        await asyncio.wait_for(lost.begun.wait(), DEADLINE_S)
        await hanging.close()
        assert lost.closed
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_what_is_ended_is_down_at_once() -> None:
    """Its owner hears the reason once, before the socket is gone."""

    async def main() -> None:
        async with fake_redis() as fake:
            changes = Heard()
            kept = keeper(Place(fake.address), changes)
            await kept.start()
            kept.end("it has no slots any more")
            assert (kept.link, kept.up) == (None, False)
            assert changes.all == [(True, "connected"), (False, "it has no slots any more")]
            await asyncio.wait_for(fake.ended.wait(), DEADLINE_S)
            assert len(changes.all) == 2

    asyncio.run(main())


def test_a_connection_that_is_lost_right_after_it_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not used, and another is opened."""

    async def main() -> None:
        async with fake_redis() as fake:
            opened: list[RedisConnection] = []

            async def first_is_lost(door: ConnectOptions, address: Address) -> RedisConnection:
                opened.append(await open_link(door, address))
                if len(opened) == 1:
                    opened[0].end("gone")
                return opened[-1]

            changes = Heard()
            kept = keeper(Place(fake.address), changes)
            monkeypatch.setattr("breakloop.store.redis.connection.open_link", first_is_lost)
            with pytest.raises(StateError, match="the connection was lost"):
                await kept.start()
            assert await changes.next() == (True, "connected")
            assert kept.link is opened[1]
            await kept.close()

    asyncio.run(main())


def test_what_is_ended_while_it_connects_does_not_connect() -> None:
    async def main() -> None:
        async with fake_redis() as fake:
            changes, found = Heard(), asyncio.Event()

            class Slow(Place):
                async def find(self) -> Address:
                    await found.wait()
                    return await super().find()

            kept = keeper(Slow(fake.address), changes)
            starting = asyncio.create_task(kept.start())
            await asyncio.sleep(0)
            kept.end("not needed")
            found.set()
            with pytest.raises(StateError):
                await starting
            await asyncio.wait_for(fake.ended.wait(), DEADLINE_S)
            assert (kept.link, kept.up, changes.all) == (None, False, [])

    asyncio.run(main())


class Lost(Place):
    """Says what it is given, then never anything."""

    def __init__(self, *answers: Address) -> None:
        super().__init__(*answers)
        self.begun = asyncio.Event()

    async def find(self) -> Address:
        if self.answers:
            answer = self.answers.pop(0)
            assert isinstance(answer, Address)
            return answer
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError


def test_a_server_that_hangs_is_given_up() -> None:
    """Connections stay open and nothing is answered, as when a process is stopped: found out by silence."""

    async def main() -> None:
        silent = False

        def script(command: Command) -> bytes | None:
            return None if silent else polite(command)

        async with fake_redis(script) as fake:
            changes = Heard()
            kept = keeper(Place(fake.address), changes)
            await kept.start()
            await changes.next()
            silent = True
            while len(changes.all) < 2:
                loop.now += 0.5
                await asyncio.sleep(0)
            silent = False
            assert await changes.next() == (False, "the server did not respond for 2 s")
            assert await changes.next() == (True, "connected")
            await kept.close()

    loop = FakeLoop()
    loop.run_until_complete(main())
    loop.close()


def test_another_server_has_taken_over() -> None:
    """A finder that wants it is asked while the connection is well; one that cannot say changes nothing."""

    async def main() -> None:
        async with fake_redis() as old, fake_redis() as new:
            changes = Heard()
            place = Place(old.address, old.address, StateError("nowhere"), new.address, recheck_s=0.0)
            kept = keeper(place, changes)
            await kept.start()
            assert [await changes.next() for _ in range(3)] == [
                (True, "connected"),
                (False, "another server has taken over"),
                (True, "connected"),
            ]
            assert await call(kept, b"SET", b"a", b"1") == b"OK"
            assert (old.connections, new.seen) == (1, [(b"SET", b"a", b"1")])
            await kept.close()
            assert kept._task is not None
            assert kept._task.done()

    asyncio.run(main())


def test_a_recheck_ends_with_its_connection() -> None:
    async def main() -> None:
        async with fake_redis() as fake:
            changes, lost = Heard(), Lost(fake.address)
            lost.recheck_s = 0.0
            kept = keeper(lost, changes)
            await kept.start()
            await changes.next()
            await asyncio.wait_for(lost.begun.wait(), DEADLINE_S)
            rechecking = kept._task
            assert rechecking is not None
            fake.drop()
            await changes.next()
            await asyncio.wait([rechecking])
            assert rechecking.cancelled()
            await kept.close()

    asyncio.run(main())


def test_a_new_connection_is_rechecked_as_often_as_the_first() -> None:
    """The recheck that was due for the one that was lost does not come on top."""

    async def main() -> None:
        async with fake_redis() as fake:
            changes, place = Heard(), Place(fake.address, recheck_s=1.0)
            kept = keeper(place, changes)
            await kept.start()
            fake.drop()
            assert [(await changes.next())[0] for _ in range(3)] == [True, False, True]
            for expected in (3, 4):
                loop.now += 1.0
                for _ in range(5):
                    await asyncio.sleep(0)
                assert place.asked == expected
            await kept.close()

    loop = FakeLoop()
    loop.run_until_complete(main())
    loop.close()


def test_one_address_or_one_after_the_other() -> None:
    async def main() -> None:
        one, two, three = Address("a", 1), Address("b", 2), Address("c", 3)
        assert [await AddressFinder(one).find() for _ in range(2)] == [one, one]
        several = AddressFinder(one, two, three)
        assert [await several.find() for _ in range(4)] == [one, two, three, one]
        assert several.recheck_s is None
        several.close()

    asyncio.run(main())
