"""Clocks. Nothing else reads the time: other modules take `now` as an argument, or a `Clock` in their constructor.

There are two lines of time. `now` is the time of day, for periods of budgets, expiry dates, and times that people read;
it steps when the system clock is set. `steady` never steps, so rates, windows, cooldowns and everything else that lasts
is measured by it. Both are in seconds since the epoch, and equal until the first step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

_TOLERANCE_S: Final = 0.05  # smaller differences may be the time that the answer took
_STEP_S: Final = 1.0  # a larger difference is a step; smaller ones are followed without notice
_DRIFT: Final = 0.001  # no clock that NTP corrects gradually drifts as fast as this
_CHECK_EVERY_S: Final = 1.0
Read = Callable[[], float]
OnStep = Callable[[float], None]  # seconds, negative if the clock was set back


class Clock(Protocol):
    """The time of day, and a time that never steps. Both in seconds since the epoch."""

    @property
    def ahead_s(self) -> float:
        """How far `now` is ahead of `steady`: the sum of all steps."""

    @property
    def on_step(self) -> list[OnStep]:
        """Called when `now` has stepped, before it returns a time after the step."""

    def now(self) -> float:
        """Return the time of day."""

    def steady(self) -> float:
        """Return the time for durations: it passes like real time, and never steps."""

    def resume(self, steady: float) -> None:
        """Set `steady`, so that it continues from that of a previous process."""


def _since_boot() -> float:
    """Return a steady time that passes while the machine is suspended. `time.monotonic` stands still then."""
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME >= 0 else time.monotonic()


# Linux has CLOCK_BOOTTIME for this. The CLOCK_MONOTONIC of macOS counts time asleep, too. Windows has neither.
_BOOTTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", -1))


class SystemClock:
    """The clocks of the system. `now` continues the wall clock by the monotonic one, and compares them once a second.

    The time that the machine was suspended passes on both lines: limits refill, and waking up is no step. It is added
    with the comparison, because CLOCK_BOOTTIME takes half as long again to read as the monotonic clock.
    """

    __slots__ = (
        "_asleep_s", "_check_at", "_checked_at", "_from_steady", "_from_wall", "_monotonic", "_since_boot", "_wall",
        "ahead_s", "on_step",
    )  # fmt: skip

    def __init__(
        self, wall: Read = time.time, monotonic: Read = time.monotonic, since_boot: Read = _since_boot
    ) -> None:
        self._wall, self._monotonic, self._since_boot = wall, monotonic, since_boot
        at = monotonic()
        self._asleep_s = since_boot() - at
        self._from_wall = self._from_steady = wall() - at  # what to add to the monotonic clock
        self._checked_at = at
        self._check_at = at + _CHECK_EVERY_S
        self.ahead_s = 0.0
        self.on_step: list[OnStep] = []

    def now(self) -> float:
        monotonic = self._monotonic  # calling an attribute with slots takes longer
        at = monotonic()
        if at >= self._check_at:
            self._check(at)
        return at + self._from_wall

    def steady(self) -> float:
        return self._monotonic() + self._from_steady

    def resume(self, steady: float) -> None:
        self._from_steady = steady - self._monotonic()
        self.ahead_s = self._from_wall - self._from_steady

    def _check(self, at: float) -> None:
        self._check_at = at + _CHECK_EVERY_S  # first, because the library may be called from several threads
        asleep_s = self._since_boot() - at - self._asleep_s
        differs_s = self._wall() - at - self._from_wall
        if self._monotonic() - at > _TOLERANCE_S:  # interrupted between two readings: compare at the next call
            self._check_at = at
            return
        elapsed_s, self._checked_at = at - self._checked_at, at
        if asleep_s > _TOLERANCE_S:
            self._asleep_s += asleep_s
            self._from_steady += asleep_s
            self._from_wall += asleep_s
            differs_s -= asleep_s
        if abs(differs_s) <= _TOLERANCE_S:
            return
        self._from_wall += differs_s
        self.ahead_s = self._from_wall - self._from_steady
        if abs(differs_s) > _STEP_S + elapsed_s * _DRIFT:
            for told in self.on_step:
                told(differs_s)


class SharedClock:
    """Follows the clock of a store that several processes share, and not the system's, as soon as it is known.

    Of several servers it follows the one that is furthest ahead: it goes back if none has been ahead for a second.
    """

    __slots__ = ("_behind_since", "_follows", "_offset_s", "_own", "on_step")

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._offset_s = 0.0  # how far the store's clock is ahead of the system's
        self._follows = False
        self._behind_since = 0.0  # by the own clock, since when the store has been behind; 0: it is not
        self.on_step: list[OnStep] = []
        own.on_step.append(self._own_stepped)

    @property
    def ahead_s(self) -> float:
        return self._own.ahead_s + self._offset_s

    def now(self) -> float:
        return self._own.now() + self._offset_s

    def steady(self) -> float:
        return self._own.steady()

    def resume(self, steady: float) -> None:
        self._own.resume(steady)

    def adjust(self, at: float, sent: float) -> None:
        """Follow the store's clock, which showed `at` when it executed what was sent at `sent` by this clock."""
        if self._follows and -_TOLERANCE_S <= at - sent <= _TOLERANCE_S:  # the usual case, without reading the clock
            self._behind_since = 0.0
            return
        first, self._follows = not self._follows, True
        # It was executed between `sent` and now, however late the response is read.
        differs_s = at - sent if at < sent else max(at - self.now(), 0.0)
        if differs_s >= -_TOLERANCE_S:
            self._behind_since = 0.0
            if differs_s <= _TOLERANCE_S:
                return
        elif not first:
            steady = self._own.steady()
            self._behind_since = self._behind_since or steady
            if steady - self._behind_since < _STEP_S:
                return
            self._behind_since = 0.0
        self._offset_s += differs_s
        if not first:
            if abs(differs_s) > _STEP_S:
                self._tell(differs_s)
        elif at > self._own.steady():
            self._own.resume(at)

    def _own_stepped(self, step_s: float) -> None:
        if self._follows:
            self._offset_s -= step_s
        else:
            self._tell(step_s)

    def _tell(self, step_s: float) -> None:
        for told in self.on_step:
            told(step_s)


class FakeClock:
    """A clock that moves only by `advance` and `step`; part of `breakloop.testing`."""

    __slots__ = ("_steady", "ahead_s", "on_step")

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._steady = start
        self.ahead_s = 0.0
        self.on_step: list[OnStep] = []

    def now(self) -> float:
        """Return the simulated time of day, in seconds since 1970."""
        return self._steady + self.ahead_s

    def steady(self) -> float:
        """Return the simulated time without steps."""
        return self._steady

    def resume(self, steady: float) -> None:
        """Set `steady`; the time of day stays the same."""
        self.ahead_s += self._steady - steady
        self._steady = steady

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, which may be negative."""
        self._steady += seconds

    def step(self, seconds: float) -> None:
        """Set the time of day forward, or back if `seconds` is negative. No time passes."""
        self.ahead_s += seconds
        for told in self.on_step:
            told(seconds)


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
