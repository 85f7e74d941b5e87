"""Looking through keys: what is dropped, which breakers are found, and what an error ends."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from breakloop.errors import StateError
from breakloop.state.ops import BreakerKept
from breakloop.state.redis_scan import Forget, KeptBreakers

NOW = 1_800_000_030.0
MINUTE = NOW // 60


class Scripted:
    """Answers one command after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[bytes, ...]] = []

    def send(self, key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        assert key.startswith(b"bl:{p}:")
        self.sent.append(args)
        then(self.answers.pop(0))


def kept(minute: float, spent: float, earlier: float = 0.0, since: float = 0.0) -> bytes:
    return struct.pack("<B6d", ord("k"), NOW - 5, minute, spent, earlier, bool(since), since)


def breakers(*answers: Any, now: float | None = NOW, most: int = 10) -> tuple[Any, Scripted]:
    nodes, found = Scripted(*answers), list[Any]()
    KeptBreakers(nodes, "brk:p:", most, now, found.append).scan()
    assert len(found) == 1
    return found[0], nodes


def test_keys_are_dropped_as_they_are_found() -> None:
    """S-2: over as many rounds as it takes; a round may find nothing."""
    nodes = Scripted([b"7", [b"a", b"b"]], 2, [b"9", []], [b"0", [b"c"]], 1)
    found: list[int | StateError] = []
    Forget(nodes, "cnt:p:", found.append).scan()
    assert found == [3]
    assert [args[:2] for args in nodes.sent if args[0] == b"SCAN"] == [
        (b"SCAN", b"0"),
        (b"SCAN", b"7"),
        (b"SCAN", b"9"),
    ]


def test_an_error_ends_it() -> None:
    """Whatever step it comes at."""
    for answers in ([StateError("gone")], [[b"0", [b"a"]], StateError("gone")]):
        found: list[Any] = []
        Forget(Scripted(*answers), "cnt:p:", found.append).scan()
        assert [str(one) for one in found] == ["gone"]


def test_open_breakers_come_first() -> None:
    """CB-2: with the rate of the last minute: half of the minute before is still within it."""
    keys = [b"bl:{p}:brk:p:x:r:b", b"bl:{p}:brk:p:x:r:a", b"bl:{p}:brk:p:x:r:c"]
    values = [kept(MINUTE, 3.0, 4.0), kept(MINUTE - 1, 10.0, since=NOW - 40), kept(MINUTE - 3, 9.0)]
    found, _ = breakers([b"0", keys], values)
    assert found == [BreakerKept("brk:p:x:r:a", 5.0, NOW - 40), BreakerKept("brk:p:x:r:b", 5.0, None)]


def test_what_is_no_breaker_is_passed_over() -> None:
    """Keys that begin alike, and one that expired between two commands."""
    keys = [b"bl:{p}:brk:p:x", b"bl:{p}:brk:p:y", b"bl:{p}:brk:p:z"]
    assert breakers([b"0", keys], [None, b"k short", b"b" + bytes(48)])[0] == []


def test_the_time_is_that_of_the_store_and_the_most_is_kept_to() -> None:
    """S-2."""
    keys = [b"bl:{p}:brk:p:x:r:b", b"bl:{p}:brk:p:x:r:a"]
    told = [b"1800000030", b"500000"]
    found, nodes = breakers(told, [b"0", keys], [kept(MINUTE, 3.0), kept(MINUTE, 2.0)], now=None, most=1)
    assert nodes.sent[0] == (b"TIME",)
    assert found == [BreakerKept("brk:p:x:r:a", 2.0, None)]
