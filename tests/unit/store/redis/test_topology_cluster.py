from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from breakloop.errors import StateError
from breakloop.store.redis.connection import ConnectOptions, ReconnectBackoff
from breakloop.store.redis.topology import SLOTS, ClusterNodes, _Node, slot_of
from breakloop.store.redis.url import Address
from tests.deadlines import DEADLINE_S
from tests.fake_redis import Command, FakeRedis, Heard, array, fake_redis, polite
from tests.unit.gateway.fake_client import FakeLoop
from tests.unit.store.redis.test_connection_link import RUNNERS

LOW, HIGH = b"bar", b"foo"  # slots 5061 and 12182


class Soon(ReconnectBackoff):
    """Without delay. Counts how often delays began anew."""

    resets = 0

    def next_s(self) -> float:
        return 0.0

    def reset(self) -> None:
        self.resets += 1


class Late(ReconnectBackoff):
    def next_s(self) -> float:
        return 3600.0


class FakeCluster:
    """Two masters, half of the slots each, and a third that has none yet."""

    def __init__(self) -> None:
        self.nodes: list[FakeRedis] = []
        self.owners = [(0, 8191, 0), (8192, SLOTS - 1, 1)]
        self.answers: dict[tuple[int, bytes], list[bytes | None]] = {}  # (node, command) -> answers, before "+OK"
        self.maps = 0

    def script(self, index: int) -> Callable[[Command], bytes | None]:
        def answer(command: Command) -> bytes | None:
            said = self.answers.get((index, command[0]))
            if said:
                return said.pop(0)
            if command == (b"CLUSTER", b"SLOTS"):
                self.maps += 1
                rows = [
                    [first, last, [b"127.0.0.1", self.nodes[node].port, b"id"]] for first, last, node in self.owners
                ]
                return array(*rows)
            return polite(command)

        return answer

    def moved(self, key: bytes, node: int, word: bytes = b"MOVED") -> bytes:
        return b"-%b %d 127.0.0.1:%d\r\n" % (word, slot_of(key), self.nodes[node].port)

    def commands(self, node: int) -> list[Command]:
        return [command for command in self.nodes[node].seen if command[0] != b"CLUSTER"]


@asynccontextmanager
async def running(
    leaving: AsyncExitStack | None = None, **options: Any
) -> AsyncIterator[tuple[FakeCluster, ClusterNodes, Heard]]:
    """Three fakes, and connected nodes; changes are heard. The second fake ends with `leaving`, if that is given."""
    fakes, changes = FakeCluster(), Heard()
    async with AsyncExitStack() as stack:
        for index in range(3):
            ends = leaving if leaving is not None and index == 1 else stack
            fakes.nodes.append(await ends.enter_async_context(fake_redis(fakes.script(index))))
        nodes = ClusterNodes(
            ConnectOptions(asyncio.get_running_loop(), writes=False, **options), (fakes.nodes[0].address,), Soon()
        )
        nodes.on_change = changes
        await nodes.start()
        stack.push_async_callback(nodes.close)
        assert await changes.next() == (True, "connected")
        yield fakes, nodes, changes


async def ask(nodes: ClusterNodes, *args: bytes) -> Any:
    heard = Heard()
    nodes.send(args[1], args, heard)
    return await heard.next()


@pytest.mark.parametrize("runner", RUNNERS)
def test_keys_go_to_their_owners(runner: Callable[..., None]) -> None:
    async def main() -> None:
        async with running() as (fakes, nodes, _):
            assert [await ask(nodes, b"SET", key, b"1") for key in (LOW, HIGH, b"{bar}:x")] == 3 * [b"OK"]
            assert [command[1] for command in fakes.commands(0)] == [LOW, b"{bar}:x"]
            assert [command[1] for command in fakes.commands(1)] == [HIGH]
            assert [node.connections for node in fakes.nodes] == [2, 1, 0]  # one of the two asked for the map
            assert nodes.up
            await asyncio.wait_for(fakes.nodes[0].ended.wait(), DEADLINE_S)  # the one that asked for it

    runner(main())


def test_moved() -> None:
    """What was answered MOVED was not carried out: it is sent on, once, and the map is read again."""

    async def main() -> None:
        async with running() as (fakes, nodes, _):
            nodes._backoff = Late()  # the map is not waited for
            fakes.answers[0, b"INCR"] = [fakes.moved(LOW, 2)]
            fakes.owners = [(0, 8191, 2), (8192, SLOTS - 1, 1)]
            before = fakes.maps
            assert await ask(nodes, b"INCR", LOW) == b"OK"  # at a node that there was no connection to
            assert fakes.commands(2) == [(b"INCR", LOW)]
            assert await ask(nodes, b"INCR", LOW) == b"OK"
            assert [len(fakes.commands(node)) for node in range(3)] == [1, 0, 2]
            while fakes.maps == before:  # the map may still be on its way
                assert await ask(nodes, b"GET", HIGH) == b"OK"

    asyncio.run(main())


def test_moved_is_believed_before_the_map_says_so() -> None:
    async def main() -> None:
        async with running() as (fakes, nodes, _):
            fakes.answers[0, b"INCR"] = [fakes.moved(LOW, 1) for _ in range(2)]
            fakes.answers[0, b"CLUSTER"] = [None]  # the map does not come
            assert [await ask(nodes, b"INCR", LOW) for _ in range(2)] == [b"OK", b"OK"]
            assert [len(fakes.commands(node)) for node in range(3)] == [1, 2, 0]

    asyncio.run(main())


def test_ask() -> None:
    """ASK is for this command only: ASKING before it, and the next one goes where the first went."""

    async def main() -> None:
        async with running() as (fakes, nodes, _):
            fakes.answers[0, b"INCR"] = [fakes.moved(LOW, 2, b"ASK")]
            maps = fakes.maps
            assert await ask(nodes, b"INCR", LOW) == b"OK"
            assert fakes.commands(2) == [(b"ASKING",), (b"INCR", LOW)]
            assert await ask(nodes, b"INCR", LOW) == b"OK"
            assert [len(fakes.commands(node)) for node in range(3)] == [2, 0, 2]
            assert fakes.maps == maps

    asyncio.run(main())


@pytest.mark.parametrize("slot", [-1, SLOTS])
def test_a_redirection_for_a_slot_that_does_not_exist_changes_no_owner(slot: int) -> None:
    """It is followed: the address is valid."""

    async def main() -> None:
        async with running() as (fakes, nodes, _):
            owners, maps = list(nodes._slots), fakes.maps
            fakes.answers[0, b"INCR"] = [b"-MOVED %d 127.0.0.1:%d\r\n" % (slot, fakes.nodes[2].port)]
            assert await ask(nodes, b"INCR", LOW) == b"OK"
            assert fakes.commands(2) == [(b"INCR", LOW)]
            assert nodes._slots == owners
            assert fakes.maps == maps

    asyncio.run(main())


@pytest.mark.parametrize("slot", [0, SLOTS - 1])
def test_the_first_and_the_last_slot_move_as_well(slot: int) -> None:
    async def main() -> None:
        async with running(open_s=DEADLINE_S, silence_s=DEADLINE_S) as (fakes, nodes, _):
            fakes.answers[0, b"INCR"] = [b"-MOVED %d 127.0.0.1:%d\r\n" % (slot, fakes.nodes[2].port)]
            fakes.answers[0, b"CLUSTER"] = [None]  # the map does not come
            assert await ask(nodes, b"INCR", LOW) == b"OK"
            owner = nodes._slots[slot]
            assert owner is not None
            assert owner.address == fakes.nodes[2].address

    asyncio.run(main())


def test_the_map_is_asked_for_once_at_a_time_and_over_a_connection_that_is_there() -> None:
    """However many commands find out that it is outdated."""

    async def main() -> None:
        async with running(open_s=DEADLINE_S, silence_s=DEADLINE_S) as (fakes, nodes, _):
            connections = [node.connections for node in fakes.nodes]
            before = len(fakes.nodes[0].seen)
            fakes.answers[0, b"CLUSTER"] = [None]  # the map does not come
            fakes.answers[1, b"INCR"] = [b"-CLUSTERDOWN The cluster is down\r\n"] * 3
            for _ in range(3):
                assert (await ask(nodes, b"INCR", HIGH)).code == "CLUSTERDOWN"
                assert await ask(nodes, b"GET", HIGH) == b"OK"
            while len(fakes.nodes[0].seen) == before:
                assert await ask(nodes, b"GET", HIGH) == b"OK"
            asked = [command[0] for command in fakes.nodes[0].seen[before:]]
            assert asked.count(b"CLUSTER") == 1
            assert [node.connections for node in fakes.nodes] == connections

    asyncio.run(main())


def test_closed_nodes_ask_for_no_map() -> None:
    async def main() -> None:
        async with running() as (fakes, nodes, _):
            nodes._backoff = Late()
            fakes.answers[0, b"INCR"] = [b"-CLUSTERDOWN The cluster is down\r\n"] * 2
            await ask(nodes, b"INCR", LOW)
            timer = nodes._timer
            assert timer is not None
            await ask(nodes, b"INCR", LOW)
            assert nodes._timer is timer
            await nodes.close()
            assert timer.cancelled()

    asyncio.run(main())


def test_an_owner_that_cannot_be_reached_is_named() -> None:
    async def main() -> None:
        def one_owner(command: Command) -> bytes:
            return array([0, SLOTS - 1, [b"127.0.0.1", 1]]) if command[0] == b"CLUSTER" else polite(command)

        async with fake_redis(one_owner) as fake:
            nodes = ClusterNodes(ConnectOptions(asyncio.get_running_loop()), (fake.address,))
            with pytest.raises(StateError, match=r"^127\.0\.0\.1:1 refused the connection$"):
                await nodes.start()
            await nodes.close()

    asyncio.run(main())


def test_delays_begin_anew_when_every_slot_is_served_again() -> None:
    async def main() -> None:
        async with running() as (fakes, nodes, changes):
            backoff = nodes._backoff
            assert isinstance(backoff, Soon)
            assert backoff.resets == 1
            fakes.nodes[1].drop()
            assert (await changes.next())[0] is False
            assert backoff.resets == 1
            assert (await changes.next())[0] is True
            assert backoff.resets == 2

    asyncio.run(main())


def test_nodes_that_do_not_agree() -> None:
    """MOVED to and fro is not followed for ever."""

    async def main() -> None:
        async with running() as (fakes, nodes, _):
            fakes.answers[0, b"INCR"] = [fakes.moved(LOW, 1) for _ in range(9)]
            fakes.answers[1, b"INCR"] = [fakes.moved(LOW, 0) for _ in range(9)]
            error = await ask(nodes, b"INCR", LOW)
            assert str(error) == "the cluster's nodes do not agree on the owner of the key"
            assert len(fakes.commands(0)) + len(fakes.commands(1)) == 6

    asyncio.run(main())


@pytest.mark.parametrize(
    "text", [b"-CLUSTERDOWN The cluster is down\r\n", b"-TRYAGAIN Multiple keys\r\n", b"-MOVED x\r\n"]
)
def test_errors_are_passed_on(text: bytes) -> None:
    """They are `StateError`s with a code; nothing is tried again."""

    async def main() -> None:
        async with running() as (fakes, nodes, _):
            fakes.answers[0, b"INCR"] = [text]
            error = await ask(nodes, b"INCR", LOW)
            assert isinstance(error, StateError)
            assert error.code == text[1:].split()[0].decode()  # type: ignore[attr-defined]
            assert fakes.commands(0) == [(b"INCR", LOW)]

    asyncio.run(main())


def test_a_node_that_dies_is_replaced() -> None:
    """Its commands fail and are not sent again; the map is asked for until it names another owner."""

    async def main() -> None:
        async with running() as (fakes, nodes, changes):
            fakes.answers[1, b"INCR"] = [None]  # no answer
            heard = Heard()
            nodes.send(HIGH, (b"INCR", HIGH), heard)
            while await fakes.nodes[1].next_seen() != (b"INCR", HIGH):
                pass
            fakes.owners = [(0, 8191, 0), (8192, SLOTS - 1, 2)]
            fakes.nodes[1].drop()
            assert str(await heard.next()) == "the connection was lost"
            up, why = await changes.next()
            assert (up, why) == (False, f"{fakes.nodes[1].address}: the connection was lost")
            assert (await changes.next())[0] is True
            while (answer := await ask(nodes, b"INCR", HIGH)) != b"OK":
                assert isinstance(answer, StateError)
            assert [len(fakes.commands(node)) for node in range(3)] in ([0, 1, 1], [0, 2, 0])

    asyncio.run(main())


def test_a_node_that_stays_away_is_replaced() -> None:
    """The map is asked for as soon as its connection is lost, and again until it names another owner."""

    async def main() -> None:
        leaving = AsyncExitStack()
        async with running(leaving) as (fakes, nodes, changes):
            before = fakes.maps
            fakes.nodes[1].drop()
            await leaving.aclose()
            assert (await changes.next())[0] is False
            while fakes.maps < before + 3:
                await fakes.nodes[0].next_seen()
            fakes.owners = [(0, 8191, 0), (8192, SLOTS - 1, 2)]
            while (await changes.next())[0] is not True:
                pass
            assert await ask(nodes, b"INCR", HIGH) == b"OK"
            assert fakes.commands(2) == [(b"INCR", HIGH)]

    asyncio.run(main())


def test_slots_without_an_owner() -> None:
    """Not `up`, and commands for them fail at once; the others work. When they get an owner, it is found."""

    async def main() -> None:
        async with running() as (fakes, nodes, changes):
            fakes.owners = [(0, 8191, 0)]
            fakes.answers[1, b"INCR"] = [b"-CLUSTERDOWN Hash slot not served\r\n"]
            assert (await ask(nodes, b"INCR", HIGH)).code == "CLUSTERDOWN"
            assert await changes.next() == (False, "some slots of the cluster have no owner")
            assert str(await ask(nodes, b"INCR", HIGH)) == "some slots of the cluster have no owner"
            assert await ask(nodes, b"INCR", LOW) == b"OK"
            fakes.owners = [(0, 8191, 0), (8192, SLOTS - 1, 1)]
            assert (await changes.next())[0] is True
            assert await ask(nodes, b"INCR", HIGH) == b"OK"

    asyncio.run(main())


def test_slots_in_many_parts() -> None:
    """As they are after some of them were moved, in any order."""

    async def main() -> None:
        async with running() as (fakes, nodes, _):
            fakes.owners = [(16001, SLOTS - 1, 2), (100, 8191, 0), (8192, 16000, 1), (0, 99, 2)]
            fakes.answers[0, b"INCR"] = [b"-CLUSTERDOWN The cluster is down\r\n"]
            before = fakes.maps
            assert (await ask(nodes, b"INCR", LOW)).code == "CLUSTERDOWN"
            while fakes.maps == before or not nodes.up or len(nodes._owners) < 3:
                await ask(nodes, b"GET", LOW)
            found = [node and [fake.address for fake in fakes.nodes].index(node.address) for node in nodes._slots]
            assert found == [2] * 100 + [0] * 8092 + [1] * 7809 + [2] * 383

    asyncio.run(main())


def test_a_start_that_fails_goes_on() -> None:
    async def main() -> None:
        fakes, changes = FakeCluster(), Heard()
        async with fake_redis(fakes.script(0)) as one:
            fakes.nodes = [one, one]
            fakes.answers[0, b"CLUSTER"] = [b"-ERR This instance has cluster support disabled\r\n"]
            nodes = ClusterNodes(ConnectOptions(asyncio.get_running_loop(), writes=False), (one.address,), Soon())
            nodes.on_change = changes
            with pytest.raises(StateError, match="returned ERR: it is not a cluster"):
                await nodes.start()
            assert not nodes.up
            assert (await changes.next())[0] is True
            assert await ask(nodes, b"GET", LOW) == b"OK"
            await nodes.close()
            assert not nodes.up
            assert str(await ask(nodes, b"GET", LOW)).endswith("closed")

    asyncio.run(main())


def test_an_empty_cluster_and_one_that_hangs() -> None:
    async def main() -> None:
        async with fake_redis(lambda command: b"*0\r\n" if command[0] == b"CLUSTER" else polite(command)) as empty:
            nodes = ClusterNodes(ConnectOptions(asyncio.get_running_loop()), (empty.address,))
            with pytest.raises(StateError, match=r"no node of the cluster responds: .* no slot has an owner"):
                await nodes.start()
            await nodes.close()
        async with fake_redis(lambda command: None if command[0] == b"CLUSTER" else polite(command)) as mute:
            nodes = ClusterNodes(ConnectOptions(asyncio.get_running_loop(), open_s=0.05), (mute.address,))
            with pytest.raises(StateError, match=r"did not respond within 0\.05 s"):
                await nodes.start()
            await nodes.close()

    asyncio.run(main())


def test_a_node_without_slots_is_left_but_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was asked while it had them, it may still answer."""
    monkeypatch.setattr("breakloop.store.redis.topology._LEAVE_S", 0.0)

    async def main() -> None:
        async with running() as (fakes, nodes, _):
            assert await ask(nodes, b"GET", HIGH) == b"OK"
            fakes.owners = [(0, SLOTS - 1, 0)]
            fakes.answers[1, b"GET"] = [fakes.moved(HIGH, 0)]
            assert await ask(nodes, b"GET", HIGH) == b"OK"
            while fakes.nodes[1].address in nodes._nodes or nodes._leaving:
                assert await ask(nodes, b"GET", LOW) == b"OK"
            assert nodes.up
            assert await ask(nodes, b"GET", HIGH) == b"OK"
            assert fakes.commands(1) == [(b"GET", HIGH)] * 2
            await asyncio.wait_for(fakes.nodes[1].ended.wait(), DEADLINE_S)

    asyncio.run(main())


def test_a_node_that_is_left_has_two_seconds_to_answer() -> None:
    """Or until all nodes are closed."""
    loop = FakeLoop()
    nodes = ClusterNodes(ConnectOptions(loop), ())
    one, other = (_Node(ConnectOptions(loop), Address("10.0.0.1", port), Heard()) for port in (1, 2))
    nodes._leave(one)
    loop.advance(1.99)
    assert one.why == "not connected yet"
    nodes._leave(other)
    loop.advance(0.02)
    assert (one.why, other.why) == ("it has no slots any more", "not connected yet")
    loop.run_until_complete(nodes.close())
    assert other.why == "closed"
    loop.close()


def test_each_master_can_be_asked() -> None:
    """What is to be asked of all; one that is not connected answers with its error (S-2)."""

    async def main() -> None:
        async with running() as (fakes, nodes, changes):
            heard = Heard()
            for send in nodes.each():
                send((b"DBSIZE",), heard)
            assert [await heard.next() for _ in nodes.each()] == 2 * [b"OK"]
            assert [[command[0] for command in fakes.commands(index)] for index in range(2)] == 2 * [[b"DBSIZE"]]
            fakes.nodes[1].drop()
            assert (await changes.next())[0] is False
            for send in nodes.each():
                send((b"DBSIZE",), heard)
            answers = [await heard.next() for _ in range(2)]
            assert [type(one) for one in answers if one != b"OK"] == [StateError]

    asyncio.run(main())
