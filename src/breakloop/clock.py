"""Clocks. Nothing else reads the time: other modules take `now` as an argument, or a `Clock` in their constructor."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar

_TOLERANCE_S: Final = 0.05  # smaller differences may be the time that the answer took


class Clock(Protocol):
    """Seconds since the epoch, as a float."""

    def now(self) -> float: ...


class SystemClock:
    """The wall clock. It never runs backwards within one process: set back, it stands still until it catches up."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = 0.0

    def now(self) -> float:
        now = time.time()
        if now < self._last:
            return self._last
        self._last = now
        return now


class SharedClock:
    """Follows the clock of a store that several processes share. It never runs backwards."""

    __slots__ = ("_last", "_own", "offset_s")

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._last = 0.0
        self.offset_s = 0.0

    def now(self) -> float:
        now = self._own.now() + self.offset_s
        if now < self._last:
            return self._last
        self._last = now
        return now

    def adjust(self, at: float) -> None:
        """Correct the offset: the store's clock showed `at` a moment ago."""
        if abs(at - self._last) <= _TOLERANCE_S:  # the usual case, without reading the clock
            return
        ahead_s = at - self._own.now() - self.offset_s
        if abs(ahead_s) > _TOLERANCE_S:
            self.offset_s += ahead_s


class FakeClock:
    """A clock that moves only by `advance`; part of `breakloop.testing`."""

    __slots__ = ("_now",)

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the simulated time, in seconds since 1970."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move by `seconds`, which may be negative."""
        self._now += seconds


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Throttle(Generic[K, V]):
    """Limits repeated messages: per key, the first of an interval passes, and the others are counted.

    Call `expired` regularly: it returns one message for the others of each interval that is over.
    """

    __slots__ = ("_interval_s", "_max_keys", "_runs", "dropped")

    def __init__(self, interval_s: float, max_keys: int) -> None:
        self._interval_s = interval_s
        self._max_keys = max_keys
        self._runs: dict[K, tuple[float, V, int]] = {}  # begin of the interval, latest message, messages held back
        self.dropped = 0  # messages whose key was beyond `max_keys`; not returned by `expired`

    def admit(self, key: K, message: V, now: float) -> bool:
        """Return whether the message passes; otherwise it is counted."""
        run = self._runs.get(key)
        if run is not None:
            self._runs[key] = (run[0], message, run[2] + 1)
            return False
        if len(self._runs) >= self._max_keys:
            self.dropped += 1
            return False
        self._runs[key] = (now, message, 0)
        return True

    def expired(self, now: float, *, everything: bool = False) -> list[tuple[K, V, int]]:
        """End the intervals that are over; return key, latest message, and how many more were held back."""
        over = [
            key
            for key, (since, _, _) in self._runs.items()
            if everything or not 0 <= now - since < self._interval_s  # the clock may have been set back
        ]
        ended = [(key, *self._runs.pop(key)) for key in over]
        return [(key, message, held - 1) for key, _, message, held in ended if held]
