"""The only reader of time. Everything below gets `now` as an argument or a `Clock` through its constructor."""

from __future__ import annotations

import time
from typing import Final, Protocol

_NOTICED_S: Final = 0.05  # clocks that differ less are the same


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


class SharedClock:
    """Goes by the clock of a store that several processes share, as far as it is known. Never runs backwards."""

    __slots__ = ("_last", "_own", "offset_s")

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._last = 0.0
        self.offset_s = 0.0

    def now(self) -> float:
        """Return the store's time, never less than what was returned before."""
        now = self._own.now() + self.offset_s
        if now < self._last:
            return self._last
        self._last = now
        return now

    def heard(self, at: float) -> None:
        """It was `at` there a moment ago. What may be the way of the answer is left alone."""
        ahead_s = at - self._own.now() - self.offset_s
        if abs(ahead_s) > _NOTICED_S:
            self.offset_s += ahead_s


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
