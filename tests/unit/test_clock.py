"""Clocks: the system's never runs backwards, the fake one does what it is told."""

from __future__ import annotations

import time

import pytest

from breakloop.clock import Clock, FakeClock, SharedClock, SystemClock


def test_the_system_clock_never_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step back holds still until time catches up (S-2)."""
    times = iter([100.0, 101.5, 50.0, 101.0, 101.6])
    monkeypatch.setattr(time, "time", lambda: next(times))
    clock = SystemClock()
    assert [clock.now() for _ in range(5)] == [100.0, 101.5, 101.5, 101.5, 101.6]


def test_the_system_clock_is_the_wall_clock() -> None:
    """Seconds since the epoch (S-2)."""
    assert SystemClock().now() > 1_700_000_000
    assert isinstance(SystemClock().now(), float)


def test_the_fake_clock() -> None:
    """Moves only when told, in both directions (E-7)."""
    clock: Clock = FakeClock(10.0)
    assert (clock.now(), clock.now()) == (10.0, 10.0)
    assert isinstance(clock, FakeClock)
    clock.advance(2.5)
    assert clock.now() == 12.5
    clock.advance(-5)
    assert clock.now() == 7.5


def test_a_shared_clock_goes_by_the_store() -> None:
    """Time is the store's own; what may be the way of its answer is left alone, and it never runs backwards (S-2)."""
    own = FakeClock(1000.0)
    clock = SharedClock(own)
    assert clock.now() == 1000.0
    clock.adjust(1000.04)
    assert clock.now() == 1000.0
    clock.adjust(1010.0)
    assert clock.now() == 1010.0
    clock.adjust(990.0)  # the store was replaced by one whose clock is behind
    assert clock.now() == 1010.0
    own.advance(25.0)
    assert clock.now() == 1015.0
