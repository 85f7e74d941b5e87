"""Counters of a key, whatever the store says of them (X-1)."""

from __future__ import annotations

from breakloop.admin.dashboard import views
from tests.admin_world import COUNTERS


def test_the_key_comes_first() -> None:
    names, rows = views.counters_table([{"used": 1_200, "key": "a"}, {"key": "b", "flag": True}])
    assert names == ["key", "used", "flag"]
    assert rows == [["a", "1,200", ""], ["b", "", "yes"]]


def test_times_are_times() -> None:
    names, rows = views.counters_table(COUNTERS)
    assert names == ["key", "kind", "value", "expires at"]
    assert rows[0][3] == "2027-01-15 08:00:40 UTC"


def test_none_and_many() -> None:
    assert views.counters_table([]) == ([], [])
    assert len(views.counters_table([{"key": str(at)} for at in range(views.ROWS_MAX + 9)])[1]) == views.ROWS_MAX
