"""Operator state shared through Redis (K-3): what is sent, what is read, what a lost message or Redis costs.

The server is a stand-in; `tests/contract/test_operator_state.py` has the real one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.store.orders import LIFTED, OVER_KEPT_S, FileOrderStore, Order, RedisOrderStore
from breakloop.store.redis.connection import RedisError
from breakloop.store.sqlite import SqliteFile, SqliteTrouble
from tests.deadlines import DEADLINE_S
from tests.operators import NOW, FakeNodes, FakeRedis, record
from tests.unit.gateway.fake_client import FakeLoop


class Peer:
    """A book of one instance."""

    def __init__(self, server: FakeRedis, *, hears: bool = True, folder: Path | None = None) -> None:
        self.nodes = FakeNodes(server)
        self.clock = FakeClock(NOW)
        self.troubles: list[SqliteTrouble] = []
        self.told: list[Order] = []
        self.book = RedisOrderStore(folder, self.troubles.append, self.nodes, self.clock)
        if hears:
            self.book.listen(self.nodes.feed)
        self.book.on_change = self.told.extend
        self.book.load()

    async def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.book.tick(self.clock.now())
            assert self.book._round is None or await asyncio.wait((self.book._round,), timeout=DEADLINE_S)
            await turns()

    def keys(self) -> list[str]:
        return sorted(one.key for one in self.book.ledger.all() if one.live(self.clock.now()))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(story: Callable[[FakeRedis, Peer, Peer], Awaitable[None]]) -> None:
    """Tell a story of two peers that know of nothing yet."""

    async def told() -> None:
        server = FakeRedis()
        one, two = Peer(server), Peer(server)
        await one.tick()
        await two.tick()
        await story(server, one, two)

    asyncio.run(told())


def test_a_change_reaches_others_by_a_message() -> None:
    """Without looking for it (K-3)."""

    async def story(server: FakeRedis, one: Peer, two: Peer) -> None:
        asked = len(server.commands)
        one.book.put([record("a", why="x")])
        assert await one.book.settled(1.0)
        await turns()
        assert two.book.ledger.all() == two.told == [record("a", why="x")]
        assert one.told == []
        assert server.commands[asked:] == [b"EVAL"]
        await two.tick()
        assert server.commands[asked:] == [b"EVAL", b"GET"]

    run(story)


def test_what_others_ordered_is_not_forced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis has it; the next tick does (K-3)."""
    forced: list[bool] = []
    run = SqliteFile.run

    def watched(file: SqliteFile, work: Callable[..., Any], *, synced: bool = True) -> Any:
        forced.append(synced)
        return run(file, work, synced=synced)

    async def story() -> None:
        server = FakeRedis()
        one, two = Peer(server), Peer(server, folder=tmp_path)
        await two.tick()
        monkeypatch.setattr(SqliteFile, "run", watched)
        one.book.put([record("a")])
        await turns()
        assert (two.keys(), forced) == (["a"], [False])
        await two.tick()
        assert forced == [False, True]
        await two.book.close()

    asyncio.run(story())


def test_a_lost_message_costs_two_looks() -> None:
    """Within a second at a look each 0.25 s; a message that is only late costs nothing (K-3)."""

    async def story(server: FakeRedis, one: Peer, two: Peer) -> None:
        two.nodes.deaf = True
        one.book.put([record("a")])
        await two.tick()
        assert two.keys() == []
        assert b"HSCAN" not in server.commands[-2:]
        await two.tick()
        assert two.keys() == ["a"]

    run(story)


def test_without_a_feed_one_look_is_enough() -> None:
    async def story() -> None:
        server = FakeRedis()
        one, two = Peer(server), Peer(server, hears=False)
        await two.tick()
        one.book.put([record("a")])
        await two.tick()
        assert two.keys() == ["a"]

    asyncio.run(story())


def test_a_gap_is_closed_at_once() -> None:
    """What was published while a subscription was away; others on the same feed hear of the gap as well."""

    async def story() -> None:
        server = FakeRedis()
        one = Peer(server)
        two = Peer(server, hears=False)
        heard: list[str] = []
        two.nodes.on_gap = lambda: heard.append("gap")
        two.book.listen(two.nodes.feed)
        two.nodes.deaf = True
        one.book.put([record("a")])
        assert two.nodes.on_gap is not None
        two.nodes.on_gap()
        assert two.book._round is not None
        await two.book._round
        assert two.keys() == ["a"]
        assert two.book.synced
        assert heard == ["gap"]

    asyncio.run(story())


def test_a_gap_while_everything_is_read_is_a_gap() -> None:
    async def story(server: FakeRedis, one: Peer, _two: Peer) -> None:
        server.commands.clear()
        one.book.missed()
        for _ in range(20):
            if b"HSCAN" in server.commands:
                break
            await asyncio.sleep(0)
        one.book.missed()
        await one.tick()
        assert not one.book.synced
        await one.tick()
        assert one.book.synced

    run(story)


def test_nothing_is_waited_for_where_nothing_was_ordered() -> None:
    async def story(_server: FakeRedis, one: Peer, _two: Peer) -> None:
        waiting = asyncio.create_task(one.book.settled(DEADLINE_S))
        await turns()
        assert waiting.done()
        assert waiting.result()

    run(story)


def test_what_is_out_of_date_is_not_waited_for() -> None:
    """Another instance has changed the same since."""

    async def story(server: FakeRedis, one: Peer, _two: Peer) -> None:
        server.fails = RedisError("OOM")
        one.book.put([record("a")])
        waiting = asyncio.create_task(one.book.settled(DEADLINE_S))
        await turns()
        assert not waiting.done()
        one.book.heard(b"7\n" + record("a", at=NOW + 1).text().encode())
        await turns()
        assert waiting.done()
        assert waiting.result()

    run(story)


def test_messages_out_of_turn_are_taken_and_the_missing_one_is_looked_for() -> None:
    async def story(_server: FakeRedis, one: Peer, two: Peer) -> None:
        one.book.put([record("a")])
        await turns()
        two.nodes.deaf = True
        one.book.put([record("b")])
        await turns()
        two.nodes.deaf = False
        one.book.put([record("c")])
        await turns()
        assert two.keys() == ["a", "c"]
        await two.tick(2)
        assert two.keys() == ["a", "b", "c"]
        await one.tick(2)
        assert two.book._known == one.book._known == 1002

    run(story)


def test_a_message_of_a_redis_that_lost_it_is_not_looked_for_ever() -> None:
    """Its version never comes again."""

    async def story(server: FakeRedis, _one: Peer, two: Peer) -> None:
        two.book.heard(b"%d\n%s" % (two.book._known + 9000, record("a").text().encode()))
        await two.tick(4)  # it is read and written again
        server.commands.clear()
        await two.tick(2)
        assert b"HSCAN" not in server.commands

    run(story)


def test_what_is_under_way_is_not_sent_again() -> None:
    """A slow Redis gets each order once."""

    async def story(_server: FakeRedis, one: Peer, two: Peer) -> None:
        late: list[Callable[[], None]] = []
        do = one.nodes.send

        def send(key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
            if args[0] == b"EVAL":
                late.append(partial(do, key, args, then))
            else:
                do(key, args, then)

        one.nodes.send = send  # type: ignore[method-assign]
        one.book.put([record("a")])
        await one.tick(3)
        assert len(late) == 1
        late[0]()
        await turns()
        assert two.keys() == ["a"]

    run(story)


def test_messages_in_the_wrong_order_leave_nothing_to_look_for() -> None:
    async def story(server: FakeRedis, _one: Peer, two: Peer) -> None:
        known = two.book._known
        for version, key in ((known + 2, "b"), (known + 3, "c"), (known + 1, "a")):
            two.book.heard(b"%d\n%s" % (version, record(key).text().encode()))
        assert two.keys() == ["a", "b", "c"]
        assert two.book._known == known + 3
        server.version = known + 3
        server.commands.clear()
        await two.tick(2)
        assert b"HSCAN" not in server.commands

    run(story)


def test_while_redis_is_away_orders_hold_here_and_are_sent_later() -> None:
    """While Redis is away orders hold here and are sent later (K-3, S-3)."""

    async def story(_server: FakeRedis, one: Peer, two: Peer) -> None:
        one.nodes.up = False
        one.book.put([record("a")])
        assert one.keys() == ["a"]
        assert not await one.book.settled(0.01)
        await one.tick()
        await two.tick(3)
        assert two.keys() == []
        assert not one.book.synced
        one.nodes.up = True
        await one.tick()
        assert two.keys() == ["a"]
        assert await one.book.settled(0.01)

    run(story)


def test_of_two_changes_the_newer_stays_and_a_release_beats_an_older_hold() -> None:
    async def story(_server: FakeRedis, one: Peer, two: Peer) -> None:
        one.book.put([record("a"), record("b")])
        await turns()
        one.nodes.up = False
        one.book.put([record("a", at=NOW + 1, n="held again"), record("b", at=NOW + 3, n="held again")])
        two.book.put([record("a", at=NOW + 2, until=LIFTED, by="x"), record("b", at=NOW + 2, until=LIFTED, by="x")])
        await one.tick()
        one.nodes.up = True
        await one.tick()
        assert one.keys() == two.keys() == ["b"]

    run(story)


def test_a_tie_is_decided_by_redis_and_everybody_agrees() -> None:
    async def story(_server: FakeRedis, one: Peer, two: Peer) -> None:
        one.nodes.deaf = two.nodes.deaf = True
        one.book.put([record("a", n=1)])
        two.book.put([record("a", n=2)])
        await turns()
        assert one.book.ledger.all() == two.book.ledger.all() == [record("a", n=1)]
        assert two.told == [record("a", n=1)]
        assert await two.book.settled(0.01)

    run(story)


def test_a_redis_that_lost_everything_is_told_again() -> None:
    """Never an acknowledged kill switch (S-1)."""

    async def story(server: FakeRedis, one: Peer, two: Peer) -> None:
        one.book.put([record("a"), record("gone", until=LIFTED, by="x"), record("h", kind="hold")])
        await turns()
        server.wipe()
        await two.tick(2)
        third = Peer(server)
        await third.tick()
        assert third.keys() == ["a", "h"]
        assert one.keys() == ["a", "h"]
        assert len(third.book.ledger.all()) == 3  # what was lifted, too

    run(story)


def test_a_start_without_redis_uses_the_file(tmp_path: Path) -> None:
    """Also what other instances had ordered (K-3)."""

    async def story() -> None:
        server = FakeRedis()
        one, two = Peer(server), Peer(server, folder=tmp_path)
        await two.tick()
        one.book.put([record("a")])
        await two.tick()
        await two.book.close()
        later = Peer(server, folder=tmp_path)
        later.nodes.up = False
        await later.tick()
        assert later.keys() == ["a"]
        await later.book.close()

    asyncio.run(story())


def test_what_is_stale_is_removed_by_whoever_notices() -> None:
    async def story(server: FakeRedis, one: Peer, two: Peer) -> None:
        one.book.put([record("a", until=NOW + 1), record("b")])
        await turns()
        two.clock.advance(2 + OVER_KEPT_S)
        await two.tick()
        assert [list(kept) for kept in server.hashes.values()] == [[b"b"]]
        assert len(two.book.ledger.all()) == 1
        third = Peer(server)
        third.clock.advance(2 + OVER_KEPT_S)
        one.book.missed()
        await one.tick()
        await third.tick()
        assert third.keys() == ["b"]

    run(story)


def test_what_is_stale_in_redis_is_not_taken() -> None:
    async def story(server: FakeRedis, one: Peer, _two: Peer) -> None:
        one.book.put([record("a", until=NOW + 1)])
        await turns()
        late = Peer(server)
        late.clock.advance(2 + OVER_KEPT_S)
        await late.tick()
        assert late.book.ledger.all() == []
        assert list(server.hashes.values()) == [{}]

    run(story)


def test_many_records_are_sent_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that came back empty is filled without keeping requests waiting."""
    monkeypatch.setattr("breakloop.store.orders._AT_ONCE", 2)
    monkeypatch.setattr("breakloop.store.orders._PER_TICK", 4)

    async def story(server: FakeRedis, one: Peer, two: Peer) -> None:
        one.book.put([record(f"k{number}") for number in range(10)])
        await turns()
        assert len(two.keys()) == 4
        assert server.commands.count(b"EVAL") == 2
        await one.tick(2)
        assert len(two.keys()) == 10
        assert await one.book.settled(0.01)

    run(story)


def test_how_many_records_a_command_has() -> None:
    """At most 200, so that no command takes long."""

    async def story(server: FakeRedis, one: Peer, two: Peer) -> None:
        for count, commands in ((200, 1), (201, 3)):
            one.book.put([record(f"{count}-{number}") for number in range(count)])
            await turns()
            assert server.commands.count(b"EVAL") == commands
        assert len(two.keys()) == 401

    run(story)


def test_how_many_records_are_sent_at_a_time() -> None:
    """A thousand; the others with the next tick."""

    async def story(_server: FakeRedis, one: Peer, two: Peer) -> None:
        one.book.put([record(f"{number}") for number in range(1002)])
        await turns()
        assert len(two.keys()) == 1000
        await one.tick()
        assert len(two.keys()) == 1002

    run(story)


def test_what_redis_refuses_is_reported_once_and_tried_again() -> None:
    """OOM, a missing permission: no outage, but somebody has to know."""

    async def story(server: FakeRedis, one: Peer, two: Peer) -> None:
        server.fails = RedisError("OOM command not allowed")
        one.book.put([record("a")])
        await one.tick(3)
        done = "orders are active and stored here; they are shared when the store is available"
        assert one.troubles == [SqliteTrouble("Redis", "OOM command not allowed", done)]
        assert not await one.book.settled(0.01)
        assert not await one.book.ready(0.01)
        server.fails = None
        await one.tick()
        assert await one.book.ready(0.01)
        assert two.keys() == ["a"]

    run(story)


def test_what_others_write_into_redis_harms_nobody() -> None:
    async def story(server: FakeRedis, one: Peer, two: Peer) -> None:
        one.book.heard(b"")
        one.book.heard(b"what\nis\nthis")
        one.book.heard(b"5\nnonsense")
        server.hashes[b"bl:{operator}:switch"] = {b"x": b"nonsense"}
        one.book.missed()
        await one.tick()
        assert one.keys() == []
        one.book.put([record("x")])
        await turns()
        assert two.keys() == ["x"]

    run(story)


def test_closing_lets_redis_take_what_is_under_way() -> None:
    async def story(server: FakeRedis, one: Peer, _two: Peer) -> None:
        do = one.nodes.send

        def slowly(*sent: Any, turns_left: int = 9) -> None:
            after = partial(slowly, *sent, turns_left=turns_left - 1) if turns_left else partial(do, *sent)
            asyncio.get_running_loop().call_soon(after)

        one.nodes.send = slowly  # type: ignore[assignment,method-assign]
        one.book.put([record("a", until=math.inf)])
        assert not server.hashes.get(b"bl:{operator}:switch")
        await one.book.close()
        assert list(server.hashes[b"bl:{operator}:switch"]) == [b"a"]

    run(story)


def test_closing_does_not_wait_for_a_look_that_hangs() -> None:
    async def story(_server: FakeRedis, one: Peer, _two: Peer) -> None:
        one.nodes.send = lambda *_: None  # type: ignore[method-assign]
        one.book.tick(NOW)
        looking = one.book._round
        assert looking is not None
        await turns()
        await one.book.close()
        assert looking.cancelled()

    run(story)


def test_what_is_known_is_not_asked_for_again() -> None:
    async def story(server: FakeRedis, one: Peer, _two: Peer) -> None:
        asked = len(server.commands)
        assert await one.book.ready(1.0)
        assert len(server.commands) == asked
        one.nodes.up = False
        one.book.tick(NOW)
        assert not await one.book.ready(1.0)
        assert len(server.commands) == asked

    run(story)


def test_a_file_that_could_be_read_late_is_shared_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        server = FakeRedis()
        first = FileOrderStore(tmp_path, print)
        first.put([record("a")])
        await first.close()
        with monkeypatch.context() as patch:
            patch.setattr(FileOrderStore, "_try", lambda *_: False)
            late = Peer(server, folder=tmp_path)
            await late.tick()
            assert late.book.synced
        await late.tick()
        other = Peer(server)
        await other.tick()
        assert late.keys() == other.keys() == ["a"]
        await late.book.close()

    asyncio.run(story())


def test_a_new_instance_knows_the_orders_before_its_first_request() -> None:
    async def story(server: FakeRedis, one: Peer, _two: Peer) -> None:
        one.book.put([record("a")])
        assert not RedisOrderStore(None, print, one.nodes, one.clock).synced
        late = Peer(server)
        assert await late.book.ready(1.0)
        assert late.keys() == ["a"]
        assert await late.book.ready(1.0)
        lonely = Peer(server)
        lonely.nodes.up = False
        assert not await lonely.book.ready(1.0)

    run(story)


# -- questions ---------------------------------------------------------------------------------------------------------


def test_every_instance_answers_a_question() -> None:
    """The one that asks as well; one that has nothing to say is not waited for (K-3)."""

    async def story(_server: FakeRedis, one: Peer, two: Peer) -> None:
        one.book.on_question = lambda question: f"one: {question}"
        two.book.on_question = lambda question: f"two: {question}"
        assert sorted(await one.book.ask("hé?", DEADLINE_S)) == ["one: hé?", "two: hé?"]
        assert one.book._asked == {}
        two.book.on_question = None
        assert await one.book.ask("you?", 0.0) in ([], ["one: you?"])

    run(story)


def test_those_that_have_answered_in_time_are_listed() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FakeLoop)
        server = FakeRedis()
        one, mute = Peer(server), Peer(server)
        one.book.on_question = str.upper
        asked = asyncio.create_task(one.book.ask("still there", 2.0))
        await turns()
        loop.now += 1.99
        await turns()
        assert not asked.done()
        loop.now += 0.02
        await turns()
        assert asked.done()
        assert (await asked, mute.book.on_question) == (["STILL THERE"], None)

    with asyncio.Runner(loop_factory=FakeLoop) as runner:
        runner.run(story())


@pytest.mark.parametrize("without", ["redis", "feed", "messages"])
def test_an_instance_that_reaches_no_other_answers_alone(without: str) -> None:
    async def story() -> None:
        server = FakeRedis()
        one, two = Peer(server, hears=without != "feed"), Peer(server)
        feed = FakeNodes(server)
        if without == "messages":
            one.book.listen(feed.feed)
        one.book.on_question = two.book.on_question = str.upper
        feed.up, one.nodes.up = False, without != "redis"
        assert await one.book.ask("who", DEADLINE_S) == ["WHO"]
        assert b"PUBLISH" not in server.commands
        one.book.on_question = None
        assert await one.book.ask("who", DEADLINE_S) == []

    asyncio.run(story())


def test_an_error_of_redis_is_no_answer() -> None:
    async def story(server: FakeRedis, one: Peer, _two: Peer) -> None:
        server.fails = RedisError("NOPERM")
        assert await one.book.ask("who", DEADLINE_S) == []
        one.book._heard_question(b"0123456789abcdef!an answer that is too late")

    run(story)
