"""Looking through keys: which are found, which breakers are among them, and what an error ends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from breakloop.errors import StateError
from breakloop.store.ops import StoredBreaker
from breakloop.store.redis.connection import RedisError
from breakloop.store.redis.store import RedisStore

NOW = 1_800_000_030.0
MINUTE = NOW // 60
A, B, C = (f"bl:{{p}}:cnt:p:{name}".encode() for name in "abc")
OF_AGENTS = [b"bl:{p|x}:brk:p|x:a", b"bl:{p|y}:brk:p|y:a", b"bl:{p|x}:brk:p|x:b"]


class Scripted:
    """Two servers that answer one command after the other; each command is kept with the server or key it went to."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[bytes, ...]] = []
        self.where: list[object] = []

    def send(self, key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        self._answer(key, args, then)

    def each(self) -> list[Callable[..., None]]:
        return [partial(self._answer, 1), partial(self._answer, 2)]

    def _answer(self, where: object, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        self.where.append(where)
        self.sent.append(args)
        then(self.answers.pop(0))


def kept(minute: float, spent: float, earlier: float = 0.0, since: float = 0.0) -> bytes:
    return struct.pack("<B6d", ord("k"), NOW - 5, minute, spent, earlier, bool(since), since)


def breakers(*answers: Any, now: float | None = NOW, most: int = 10) -> tuple[list[StoredBreaker], Scripted]:
    nodes = Scripted(*answers)
    store = RedisStore(nodes, None if now is None else lambda: now)
    return asyncio.run(store.breakers("brk:p:", most)), nodes


def keys(nodes: Scripted, prefix: str, most: int = 10) -> list[bytes]:
    return asyncio.run(RedisStore(nodes).keys(prefix, most))


def test_keys_are_found_in_as_many_rounds_as_it_takes() -> None:
    """A round may find nothing; a prefix that names a project is looked for where that is (S-2)."""
    nodes = Scripted([b"7", [B, A]], [b"9", []], [b"0", [C, A]])
    assert keys(nodes, "cnt:p:") == [A, B, C]
    assert [args[:2] for args in nodes.sent] == [(b"SCAN", b"0"), (b"SCAN", b"7"), (b"SCAN", b"9")]
    assert nodes.where == [b"bl:{p}:cnt:p:"] * 3


def test_it_ends_when_enough_is_found() -> None:
    """Nobody reads a million keys to show a hundred."""
    nodes = Scripted([b"7", [B, A]])
    assert keys(nodes, "cnt:p:", 1) == [A]
    assert len(nodes.sent) == 1


@pytest.mark.parametrize("answers", [[StateError("gone")], [[b"0", [A]], StateError("gone")]])
def test_an_error_ends_it(answers: list[Any]) -> None:
    """Whatever step it comes at."""
    with pytest.raises(StateError, match="gone"):
        breakers(*answers)


def test_an_error_names_no_key() -> None:
    """Its code is enough (S-3, Y-1)."""
    with pytest.raises(StateError, match=r"^Redis returned WRONGTYPE$"):
        breakers([b"0", [A]], RedisError("WRONGTYPE Operation against a key holding tb:secret"))


def test_open_breakers_come_first() -> None:
    """With the rate of the last minute: half of the minute before is still within it (CB-2)."""
    names = [b"bl:{p}:brk:p:x:r:b", b"bl:{p}:brk:p:x:r:a", b"bl:{p}:brk:p:x:r:c"]
    values = [kept(MINUTE, 3.0, 4.0), kept(MINUTE - 1, 10.0, since=NOW - 40), kept(MINUTE - 3, 9.0)]
    found, _ = breakers([b"0", names], values)
    assert found == [StoredBreaker("brk:p:x:r:a", 5.0, NOW - 40), StoredBreaker("brk:p:x:r:b", 5.0, None)]


def test_what_is_no_breaker_is_passed_over() -> None:
    """Keys that begin alike, and one that expired between two commands."""
    names = [b"bl:{p}:brk:p:x", b"bl:{p}:brk:p:y", b"bl:{p}:brk:p:z"]
    assert breakers([b"0", names], [None, b"k short", b"b" + bytes(48)])[0] == []


def test_the_time_is_that_of_the_store_and_the_most_is_kept_to() -> None:
    """The time is that of the store and the most is kept to (S-2)."""
    names = [b"bl:{p}:brk:p:x:r:b", b"bl:{p}:brk:p:x:r:a"]
    told = [b"1800000030", b"500000"]
    found, nodes = breakers(told, [b"0", names], [kept(MINUTE, 3.0), kept(MINUTE, 2.0)], now=None, most=1)
    assert nodes.sent[0] == (b"TIME",)
    assert found == [StoredBreaker("brk:p:x:r:a", 2.0, None)]


def test_every_server_is_looked_through_where_the_prefix_names_no_place() -> None:
    """One after the other; what is found is asked for slot by slot, for no command takes keys of two (S-2, CB-2)."""
    x, y, other = OF_AGENTS[0], OF_AGENTS[1], OF_AGENTS[2]
    assert keys(Scripted([b"0", [x]], [b"0", [y]]), "brk:p") == [x, y]
    values = [kept(MINUTE, 1.0), None], [kept(MINUTE, 2.0, since=NOW)]
    nodes = Scripted([b"5", [x, y, other]], *values, [b"0", []], [b"0", []])
    found = asyncio.run(RedisStore(nodes, lambda: NOW).breakers("brk:p", 10))
    assert found == [StoredBreaker("brk:p|y:a", 2.0, NOW), StoredBreaker("brk:p|x:a", 1.0, None)]
    assert nodes.where == [1, x, y, 1, 2]
    assert [args for args in nodes.sent if args[0] == b"MGET"] == [(b"MGET", x, other), (b"MGET", y)]


def test_no_servers_are_an_error() -> None:
    """Whoever asks is told (S-3)."""
    none = Scripted()
    none.each = list  # type: ignore[method-assign]
    with pytest.raises(StateError, match="no server is known"):
        keys(none, "brk:")
