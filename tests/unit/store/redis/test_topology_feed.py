from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from breakloop.errors import StateError
from breakloop.store.redis.topology import PubSub
from breakloop.store.redis.url import parse_redis_url
from tests.fake_redis import Command, Heard, array, fake_redis, polite
from tests.unit.store.redis.test_connection_link import RUNNERS


def script(command: Command) -> bytes:
    return array(b"subscribe", command[1], 1) if command[0] == b"SUBSCRIBE" else polite(command)


def feed(url: str, gaps: Callable[[], None]) -> PubSub:
    made = PubSub(parse_redis_url(url), asyncio.get_running_loop())
    made.on_gap = gaps
    return made


@pytest.mark.parametrize("runner", RUNNERS)
def test_messages_and_gaps(runner: Callable[..., None]) -> None:
    """Each receiver gets its channel's messages, and each time the subscriptions come into force there is a gap
    (B-3)."""

    async def main() -> None:
        async with fake_redis(script) as fake:
            gaps, news, other = Heard(), Heard(), Heard()
            made = feed(f"redis://{fake.address}", gaps)
            made.subscribe(b"news", news)
            await made.start()
            assert made.up
            assert await gaps.next() == ()
            fake.say(array(b"message", b"news", b"1") + array(b"message", b"unknown", b"2"))
            assert await news.next() == b"1"
            made.subscribe(b"other", other)
            assert await gaps.next() == ()
            fake.drop()
            assert await gaps.next() == ()
            fake.say(array(b"message", b"other", b"3") + array(b"message", b"news", b"4"))
            assert (await other.next(), await news.next()) == (b"3", b"4")
            assert news.all == [b"1", b"4"]
            link = made.link
            assert link is not None
            await made.close()
            assert not link.alive
            assert len(gaps.all) == 3
            assert fake.seen == [(b"SUBSCRIBE", name) for name in (b"news", b"other", b"news", b"other")]

    runner(main())


def test_the_gap_comes_after_the_subscription() -> None:
    """Whoever loads when told so has missed nothing: not before the server has confirmed every channel."""

    async def main() -> None:
        held: list[bytes] = []

        def slow(command: Command) -> bytes | None:
            if command[0] == b"SUBSCRIBE":
                held.append(script(command))
                return None
            return polite(command)

        async with fake_redis(slow) as fake:
            gaps = Heard()
            made = feed(f"redis://{fake.address}", gaps)
            made.subscribe(b"a", Heard())
            made.subscribe(b"b", Heard())
            await made.start()
            await fake.next_seen()
            await fake.next_seen()
            fake.say(held[0])
            assert made.link is not None
            await asyncio.sleep(0)
            assert gaps.all == []
            fake.say(held[1])
            await gaps.next()
            assert gaps.all == [()]
            await made.close()

    asyncio.run(main())


def test_any_node_of_a_cluster() -> None:
    """One after the other: a node that is gone is passed by."""

    async def main() -> None:
        async with fake_redis(script) as fake:
            gaps = Heard()
            made = feed(f"redis+cluster://127.0.0.1:1,{fake.address}", gaps)
            made.subscribe(b"news", Heard())
            with pytest.raises(StateError, match=r"127\.0\.0\.1:1 refused the connection"):
                await made.start()
            await gaps.next()
            await made.close()

    asyncio.run(main())


def test_a_subscription_that_is_refused() -> None:
    """An ACL user without the channel: the reason is told, and it is tried again."""

    async def main() -> None:
        answers = [b"-NOPERM this user has no permissions to access one of the channels\r\n"]

        def refusing(command: Command) -> bytes:
            return answers.pop() if command[0] == b"SUBSCRIBE" and answers else script(command)

        async with fake_redis(refusing) as fake:
            gaps, changes = Heard(), Heard()
            made = feed(f"redis://{fake.address}", gaps)
            made.on_change = changes
            made.subscribe(b"news", Heard())
            await made.start()
            assert await changes.next() == (True, "connected")
            up, why = await changes.next()
            assert not up
            assert why.startswith("a subscription was refused: NOPERM")
            await gaps.next()
            await made.close()

    asyncio.run(main())
