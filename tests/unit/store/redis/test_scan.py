"""Looking through keys: what is dropped, which breakers are found, and what an error ends."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from breakloop.errors import StateError
from breakloop.store.ops import StoredBreaker
from breakloop.store.redis.scan import ForgetKeys, FoundKeys, StoredBreakers

NOW = 1_800_000_030.0
MINUTE = NOW // 60
A, B, C = (f"bl:{{p}}:cnt:p:{name}".encode() for name in "abc")
OF_AGENTS = [b"bl:{p|x}:brk:p|x:a", b"bl:{p|y}:brk:p|y:a", b"bl:{p|x}:brk:p|x:b"]


class Scripted:
    """Answers one command after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[bytes, ...]] = []

    def send(self, key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        assert key.startswith(b"bl:{p}:")
        self._answer(args, then)

    def each(self) -> list[Callable[..., None]]:
        raise AssertionError("a project that is named is in one place")

    def _answer(self, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        self.sent.append(args)
        then(self.answers.pop(0))


class Servers(Scripted):
    """Two servers; each command is kept with the server or the key that it went to."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.where: list[object] = []

    def send(self, key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        self.where.append(key)
        self._answer(args, then)

    def each(self) -> list[Callable[..., None]]:
        def to(number: int) -> Callable[..., None]:
            def send(args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
                self.where.append(number)
                self._answer(args, then)

            return send

        return [to(2), to(1)]


def kept(minute: float, spent: float, earlier: float = 0.0, since: float = 0.0) -> bytes:
    return struct.pack("<B6d", ord("k"), NOW - 5, minute, spent, earlier, bool(since), since)


def breakers(*answers: Any, now: float | None = NOW, most: int = 10) -> tuple[Any, Scripted]:
    nodes, found = Scripted(*answers), list[Any]()
    StoredBreakers(nodes, "brk:p:", most, now, found.append).scan()
    assert len(found) == 1
    return found[0], nodes


def test_keys_are_dropped_as_they_are_found() -> None:
    """Over as many rounds as it takes; a round may find nothing (S-2)."""
    nodes = Scripted([b"7", [A, B]], 2, [b"9", []], [b"0", [C]], 1)
    found: list[int | StateError] = []
    ForgetKeys(nodes, "cnt:p:", found.append).scan()
    assert found == [3]
    assert [args[:2] for args in nodes.sent if args[0] == b"SCAN"] == [
        (b"SCAN", b"0"),
        (b"SCAN", b"7"),
        (b"SCAN", b"9"),
    ]


def test_an_error_ends_it() -> None:
    """Whatever step it comes at."""
    for answers in ([StateError("gone")], [[b"0", [A]], StateError("gone")]):
        found: list[Any] = []
        ForgetKeys(Scripted(*answers), "cnt:p:", found.append).scan()
        assert [str(one) for one in found] == ["gone"]


def test_open_breakers_come_first() -> None:
    """With the rate of the last minute: half of the minute before is still within it (CB-2)."""
    keys = [b"bl:{p}:brk:p:x:r:b", b"bl:{p}:brk:p:x:r:a", b"bl:{p}:brk:p:x:r:c"]
    values = [kept(MINUTE, 3.0, 4.0), kept(MINUTE - 1, 10.0, since=NOW - 40), kept(MINUTE - 3, 9.0)]
    found, _ = breakers([b"0", keys], values)
    assert found == [StoredBreaker("brk:p:x:r:a", 5.0, NOW - 40), StoredBreaker("brk:p:x:r:b", 5.0, None)]


def test_what_is_no_breaker_is_passed_over() -> None:
    """Keys that begin alike, and one that expired between two commands."""
    keys = [b"bl:{p}:brk:p:x", b"bl:{p}:brk:p:y", b"bl:{p}:brk:p:z"]
    assert breakers([b"0", keys], [None, b"k short", b"b" + bytes(48)])[0] == []


def test_the_time_is_that_of_the_store_and_the_most_is_kept_to() -> None:
    """The time is that of the store and the most is kept to (S-2)."""
    keys = [b"bl:{p}:brk:p:x:r:b", b"bl:{p}:brk:p:x:r:a"]
    told = [b"1800000030", b"500000"]
    found, nodes = breakers(told, [b"0", keys], [kept(MINUTE, 3.0), kept(MINUTE, 2.0)], now=None, most=1)
    assert nodes.sent[0] == (b"TIME",)
    assert found == [StoredBreaker("brk:p:x:r:a", 2.0, None)]


def test_every_server_is_looked_through_where_the_prefix_names_no_place() -> None:
    """One after the other; what is found is asked for slot by slot, for no command takes keys of two (S-2, CB-2)."""
    x, y, other = OF_AGENTS[0], OF_AGENTS[1], OF_AGENTS[2]
    dropped = Servers([b"5", [x, y, other]], 2, 1, [b"0", []], [b"0", [y]], 0)
    found: list[Any] = []
    ForgetKeys(dropped, "brk:", found.append).scan()
    assert (found, dropped.where) == ([3], [1, x, y, 1, 2, y])
    assert [args for args in dropped.sent if args[0] == b"UNLINK"] == [
        (b"UNLINK", x, other),
        (b"UNLINK", y),
        (b"UNLINK", y),
    ]
    read = Servers([b"0", [x, y]], [kept(MINUTE, 1.0)], [kept(MINUTE, 2.0, since=NOW)], [b"0", []])
    StoredBreakers(read, "brk:p", 10, NOW, found.append).scan()
    assert found[1] == [StoredBreaker("brk:p|y:a", 2.0, NOW), StoredBreaker("brk:p|x:a", 1.0, None)]
    FoundKeys(Servers([b"0", [x]], [b"0", [y]]), "brk:p", 10, found.append).scan()
    assert found[2] == [x, y]


def test_of_several_errors_the_first_is_told_and_no_servers_are_one() -> None:
    """Whoever asks is answered once (S-3)."""
    found: list[Any] = []
    ForgetKeys(Servers([b"0", OF_AGENTS], StateError("first"), StateError("second")), "brk:", found.append).scan()
    none = Servers()
    none.each = list  # type: ignore[method-assign]
    ForgetKeys(none, "brk:", found.append).scan()
    assert [str(one) for one in found] == ["first", "no server is known"]
