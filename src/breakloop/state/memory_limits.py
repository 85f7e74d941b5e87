"""What the memory store keeps of limits: token buckets, accounts of a period, breakers. Each function is one step;
which steps make a commit, and whether what was checked is charged, is `memory`'s to say."""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Final

from breakloop.state.ops import Breaker, BreakerKept, Broken, Bucket, BucketSpec, Correct, Spend
from breakloop.state.table import Entry, Table

Charge = tuple[Bucket | Spend, float]  # and what is left or used after it

_MINUTE_S: Final = 60.0
# So little short of enough is rounding: whoever waits as long as he is told has to pass, and ten tenths are one.
_DUST: Final = 1e-9
# So long after its end an account is kept: a clock that steps back over the end of a period finds what was used in it.
_LATE_S: Final = 3600.0
# So long after its reset an open breaker waits for its probe; later its room may go to others.
_UNASKED_S: Final = 86_400.0


class Limits:
    """What was taken, spent, and how fast."""

    __slots__ = ("accounts", "buckets", "open", "rates")

    def __init__(self, max_entries: int) -> None:
        self.buckets = Table(max_entries)  # (expires, tokens, last); it expires when it is full again
        self.accounts = Table(max_entries)  # (expires, used); it expires some time after its period has ended
        # A breaker is (expires, minute, spend of that minute, spend of the one before, since when it is open), in one
        # of two tables: however many invented keys are counted, none pushes an open one out.
        self.rates = Table(max_entries)
        self.open = Table(max(1, max_entries // 10))

    def tables(self) -> tuple[Table, ...]:
        """Return everything that is kept."""
        return self.buckets, self.accounts, self.rates, self.open

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`; return how many."""
        return sum(table.drop_prefix(prefix) for table in self.tables())

    def charge(self, charges: list[Charge], denied: dict[int, int], now: float) -> None:
        """Charge what was checked, but for the groups that are denied."""
        buckets = self.buckets
        for op, after in charges:
            if op.group in denied:
                continue
            if type(op) is Bucket:
                spec = op.spec
                buckets.put(op.key, (now + (spec.burst - after) / spec.rate, after, now), now)
            elif type(op) is Spend:
                self.accounts.put(op.key, (max(op.ends, now) + _LATE_S, after), now)

    # -- buckets ---------------------------------------------------------------------------------------------------

    def left(self, op: Bucket, now: float) -> float:
        """Return what would be left; less than nothing is too little."""
        spec = op.spec
        entry = self.buckets.get(op.key)
        if entry is None or entry[0] <= now:
            return spec.burst - op.cost
        left: float = min(entry[1] + (now - entry[2]) * spec.rate, spec.burst) - op.cost
        return left if left >= 0.0 or left < -_DUST else 0.0

    def _correct_bucket(self, spec: BucketSpec, key: str, amount: float, now: float) -> None:
        # One that has expired is full again, not gone: what an answer of a minute used beyond its estimate is not lost.
        entry = self.buckets.live(key, now)
        tokens = spec.burst if entry is None else min(entry[1] + (now - entry[2]) * spec.rate, spec.burst)
        left = min(tokens - amount, spec.burst)
        if entry is not None or left < spec.burst:
            self.buckets.put(key, (now + (spec.burst - left) / spec.rate, left, now), now)

    # -- accounts --------------------------------------------------------------------------------------------------

    def used(self, op: Spend, now: float) -> int:
        """Return what would be used, this charge included."""
        entry = self.accounts.get(op.key)
        # Only a clock that stepped back asks for a period that has ended, and then what was used in it counts.
        if entry is None or entry[0] - _LATE_S <= now < op.ends:
            return op.cost
        used: int = entry[1] + op.cost
        return used

    def correct(self, op: Correct, now: float) -> None:
        """Take more of what was charged too little, give back of what was charged too much."""
        if isinstance(op.spec, BucketSpec):
            self._correct_bucket(op.spec, op.key, op.amount, now)
            return
        entry = self.accounts.live(op.key, now)
        if entry is not None:
            self.accounts.change(op.key, (entry[0], max(0, entry[1] + round(op.amount))))

    # -- breakers --------------------------------------------------------------------------------------------------

    def meter(self, op: Breaker, now: float) -> Broken:
        """Count an amount into the rate, and say whether the breaker is open then."""
        spec, key = op.spec, op.key
        entry = self.open.get(key) if self.open else None
        probe = entry is not None
        if entry is None:
            entry = self.rates.get(key)
        elif not spec.reset_s or now < entry[4] + spec.reset_s:
            return self._stay_open(op, entry, now)
        minute = now // _MINUTE_S
        current, previous = _spent(entry, minute)
        current += op.amount
        rate = _sliding(current, previous, now)
        if rate >= spec.threshold - _DUST:
            kept_s = spec.reset_s + _UNASKED_S if spec.reset_s else float("inf")
            self.rates.discard(key)
            self.open.put(key, (now + kept_s, minute, current, previous, now), now)
            return Broken(True, rate, spec.reset_s, "opened")
        if probe:
            self.open.discard(key)
        self.rates.put(key, ((minute + 2.0) * _MINUTE_S, minute, current, previous, 0.0), now)
        return Broken(False, rate, 0.0, "closed" if probe else "")

    def breakers(self, prefix: str, now: float, most: int) -> list[BreakerKept]:
        """Return open ones by key, then closed ones, the last one counted first."""
        minute = now // _MINUTE_S
        keys = heapq.nsmallest(most, [key for key in self.open if key.startswith(prefix)])
        closed = (key for key in reversed(self.rates) if key.startswith(prefix) and self.rates.live(key, now))
        entries = [(key, self.open[key], True) for key in keys]
        entries += [(key, self.rates[key], False) for key in islice(closed, most - len(entries))]
        return [
            BreakerKept(key, _sliding(*_spent(entry, minute), now), entry[4] if is_open else None)
            for key, entry, is_open in entries
        ]

    def _stay_open(self, op: Breaker, entry: Entry, now: float) -> Broken:
        self.open.move_to_end(op.key)  # what is asked for is in use
        rate = _sliding(*_spent(entry, now // _MINUTE_S), now)
        return Broken(True, rate, entry[4] + op.spec.reset_s - now if op.spec.reset_s else 0.0)


def _spent(entry: Entry | None, minute: float) -> tuple[float, float]:
    """Return the spend of this minute and of the one before."""
    if entry is not None:
        if entry[1] == minute:
            return entry[2], entry[3]
        if entry[1] == minute - 1.0:
            return 0.0, entry[2]
    return 0.0, 0.0


def _sliding(current: float, previous: float, now: float) -> float:
    """Return the rate of the last 60 s: of the minute before, what is still within them."""
    return current + previous * (_MINUTE_S - now % _MINUTE_S) / _MINUTE_S if previous else current
