"""Records of operator state, and the ledger that keeps the newest of each (S-1)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from breakloop.store.orders import LIFTED, OVER_KEPT_S, Order, OrderSet, read

NOW = 1_800_000_000.0


def record(key: str = "k", at: float = NOW, until: float = math.inf, **value: Any) -> Order:
    return Order("switch", key, value, until, at)


@pytest.mark.parametrize(
    "made",
    [
        record(reason="line one\nline two", n=1, deep={"a": [None, 1.5]}),
        record(until=NOW + 0.1, at=NOW + 1e-6),
        record(until=LIFTED, by="ann"),
        record(key="half a pair \ud800, umlaut \u00fc", why="\udc80"),
    ],
)
def test_a_record_is_one_line_of_ascii_and_reads_back(made: Order) -> None:
    text = made.text()
    assert text.isascii()
    assert "\n" not in text
    assert read(text) == made
    assert read(text.encode()) == made


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", "[1,2,3,4,5]", '["x","a","b",null,{}]', '[1,"a","b",null,[]]', "[" * 100_000, b"\xff\xfe"],
)
def test_what_is_no_record_is_told_apart(text: str | bytes) -> None:
    assert read(text) is None


def test_a_record_lives_until_its_time() -> None:
    made = record(until=NOW + 5)
    assert made.live(NOW + 4.9)
    assert not made.live(NOW + 5)
    assert record().live(NOW * 100)
    assert not record(until=LIFTED).live(NOW)


def test_what_is_over_is_remembered_for_a_while() -> None:
    """An instance that was away must not bring back what was taken back meanwhile."""
    assert not record().stale(NOW * 100)
    over = record(until=NOW + 5)
    assert not over.stale(NOW + 4 + OVER_KEPT_S)
    assert over.stale(NOW + 5 + OVER_KEPT_S)
    by_a_person, by_itself = record(until=LIFTED, by="ann"), record(until=LIFTED)
    thirty_days = 30 * 86_400
    assert not by_a_person.stale(NOW + thirty_days - 1)
    assert by_a_person.stale(NOW + thirty_days)
    assert by_itself.stale(NOW + OVER_KEPT_S)
    assert OVER_KEPT_S == 3_600
    written = read(f'[{NOW},"hold","k",0.0,{{"by":"ann"}}]')  # by an earlier version, or another instance
    assert written is not None
    assert not written.stale(NOW + thirty_days - 1)


def test_the_newest_form_stays() -> None:
    ledger = OrderSet()
    first, second = record(at=NOW, n=1), record(at=NOW + 1, n=2)
    assert ledger.take([first]) == [first]
    assert ledger.take([second, first]) == [second]
    assert ledger.take([second]) == []
    assert ledger.get("switch", "k") == second
    assert ledger.get("switch", "other") is None
    tie = record(at=NOW + 1, n=3)
    assert ledger.take([tie]) == [tie]
    assert len(ledger.all()) == 1


def test_what_is_in_force_is_listed_by_kind() -> None:
    ledger = OrderSet()
    hold = Order("hold", "k", {}, math.inf, NOW)
    ledger.take([record("a"), record("b", until=NOW + 1), record("c", until=LIFTED), hold])
    assert [one.key for one in ledger.live("switch", NOW)] == ["a", "b"]
    assert [one.key for one in ledger.live("switch", NOW + 1)] == ["a"]
    assert ledger.live("hold", NOW) == [hold]
    assert len(ledger.all()) == 4


def test_what_is_stale_is_forgotten_unless_it_changed() -> None:
    ledger = OrderSet()
    old = record(until=NOW + 1)
    ledger.take([old, record("other")])
    later = NOW + 2 + OVER_KEPT_S
    assert ledger.stale(later) == [old]
    ledger.take([record(at=NOW + 1)])
    ledger.forget([old])
    assert len(ledger.all()) == 2
    ledger.forget(ledger.all())
    assert len(ledger.all()) == 0


def test_a_change_is_later_than_the_one_before_whosever_clock_is_wrong() -> None:
    ledger = OrderSet()
    assert ledger.next_change("switch", "k", NOW) == NOW
    ledger.take([record(at=NOW + 60)])  # by an instance whose clock is fast
    changed = ledger.next_change("switch", "k", NOW)
    assert changed > NOW + 60
    assert changed - (NOW + 60) < 0.001
    assert ledger.next_change("switch", "k", NOW + 61) == NOW + 61
