"""Counts since start."""

from __future__ import annotations

from dataclasses import fields

from breakloop.model.counters import Tally


def test_everything_begins_at_nothing() -> None:
    tally = Tally()
    assert all(not getattr(tally, one.name) for one in fields(tally))
    tally.denied["loop_detected"] = 1
    assert Tally().denied == {}
