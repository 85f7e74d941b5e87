"""The only reader of time. Everything below gets `now` as an argument or a `Clock` through its constructor."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch, as a float."""

    def now(self) -> float:
        """Return the current time."""
        ...


class SystemClock:
    """Wall clock that never runs backwards within one process: a step back holds still until time catches up."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0.0

    def now(self) -> float:
        """Return the current time, never less than what was returned before."""
        now = time.time()
        if now < self._last:
            return self._last
        self._last = now
        return now


class FakeClock:
    """A clock that moves only when told; part of `breakloop.testing`."""

    __slots__ = ("_now",)

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the time it was set to."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move by `seconds` (negative steps are allowed, to test that they do no harm)."""
        self._now += seconds
