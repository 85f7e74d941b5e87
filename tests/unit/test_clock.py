"""Clocks: the system's never runs backwards, the fake one does what it is told."""

from __future__ import annotations

import time

import pytest

from breakloop.clock import Clock, FakeClock, SharedClock, SystemClock


def test_the_system_clock_never_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-2: a step back holds still until time catches up."""
    times = iter([100.0, 101.5, 50.0, 101.0, 101.6])
    monkeypatch.setattr(time, "time", lambda: next(times))
    clock = SystemClock()
    assert [clock.now() for _ in range(5)] == [100.0, 101.5, 101.5, 101.5, 101.6]


def test_the_system_clock_is_the_wall_clock() -> None:
    """S-2: seconds since the epoch."""
    assert SystemClock().now() > 1_700_000_000
    assert isinstance(SystemClock().now(), float)


def test_the_fake_clock() -> None:
    """E-7: moves only when told, in both directions."""
    clock: Clock = FakeClock(10.0)
    assert (clock.now(), clock.now()) == (10.0, 10.0)
    assert isinstance(clock, FakeClock)
    clock.advance(2.5)
    assert clock.now() == 12.5
    clock.advance(-5)
    assert clock.now() == 7.5


def test_a_shared_clock_goes_by_the_store() -> None:
    """S-2: time is the store's own; what may be the way of its answer is left alone, and it never runs backwards."""
    own = FakeClock(1000.0)
    clock = SharedClock(own)
    assert clock.now() == 1000.0
    clock.heard(1000.04)
    assert clock.now() == 1000.0
    clock.heard(1010.0)
    assert clock.now() == 1010.0
    clock.heard(990.0)  # the store was replaced by one whose clock is behind
    assert clock.now() == 1010.0
    own.advance(25.0)
    assert clock.now() == 1015.0
