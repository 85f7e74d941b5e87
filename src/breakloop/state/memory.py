"""The in-process store (`memory://`): a commit is a plain function call. Bounded, with a time to live on everything.

The bytes: one table a family of keys (counts, cooldowns, flights, ...), each entry a tuple that begins with the
time it expires. Survival of restarts is the durable companion's work, not this file's.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from breakloop.state.ops import (
    ENFORCED,
    FLIGHT_S,
    JOINED,
    Bucket,
    Committed,
    Op,
    Refuse,
    Repeat,
    Repeated,
    Result,
    Settle,
    Window,
    WindowWrite,
)
from breakloop.state.table import Entry, Table

# A sliding count keeps the times of at most so many hits beyond its limit: a throttle's delay grows up to 30 s,
# which is 300 hits of 100 ms.
_HITS_KEPT = 301

# Almost every count is small and trips nothing: its result need not be made anew.
_SMALL_COUNTS = tuple(Repeated(count) for count in range(64))
# So little short of enough is rounding: whoever waits as long as he is told has to pass.
_DUST = 1e-9


class MemoryStore:
    """Counts, buckets and windows of one process."""

    __slots__ = ("_buckets", "_cooldowns", "_counts", "_flights", "_latest", "_taken_back", "_windows")

    def __init__(self, max_entries: int = 1_000_000) -> None:
        self._counts = Table(max_entries)
        self._cooldowns = Table(max_entries)
        self._buckets = Table(max_entries)
        self._windows = Table(max(1, max_entries // 10))
        self._flights = Table(max(1, max_entries // 10))
        self._taken_back = Table(max(1, max_entries // 10))
        self._latest = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._tables()))

    @property
    def evicted(self) -> int:
        """How many live entries had to go for lack of room."""
        return sum(table.evicted for table in self._tables())

    def _tables(self) -> tuple[Table, ...]:
        return (self._counts, self._cooldowns, self._buckets, self._windows, self._flights, self._taken_back)

    def commit(self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = ()) -> Committed:
        """Carry out `ops` in one; see `state.store`."""
        # A clock that stepped back stands still here: nothing refills twice.
        now = self._latest = max(self._latest, now)
        newer = self._newer(windows, now) if windows else None
        if newer is not None:
            return Committed([], -1, newer, now)
        results: list[Result] = []
        charges: list[tuple[Bucket, float]] = []
        leads: list[tuple[Repeat, Entry]] = []
        denied: dict[int, int] = {}  # group -> index of the operation that denied it first
        for op in ops:
            result: Result = None
            if type(op) is Bucket:
                if op.group not in denied:
                    result = left = self._left(op, now)
                    if left >= 0.0:
                        charges.append((op, left))
                    else:
                        denied[op.group] = len(results)
            elif type(op) is Repeat:
                result = repeated = self._tracked(op, now, leads) if op.tracked else self._repeat(op, now)
                if repeated[1] and op.spec.denies:
                    denied.setdefault(op.group, len(results))
            elif type(op) is Refuse:
                denied.setdefault(op.group, len(results))
            results.append(result)
        if charges and ENFORCED not in denied:
            self._charge(charges, denied, now)
        if leads and ENFORCED not in denied:
            self._lead(leads, denied, now)
        for write in windows:
            self._windows.put(write.key, (now + write.ttl_s, write.version + 1, write.data), now)
        return Committed(results, denied.get(ENFORCED, -1), None, now)

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        """Say that requests have ended; see `state.store`."""
        now = self._latest = max(now, self._latest)
        taken_back = 0
        for op in ops:
            if op.flight:
                self._land(op)
            if failed and self._take_back(op, now):
                taken_back += 1
        return taken_back

    def read_window(self, key: str, now: float) -> Window:
        """Return the session window under `key`, with version 0 if there is none."""
        entry = self._windows.live(key, now)
        return Window(0, b"") if entry is None else Window(entry[1], entry[2])

    def drop(self, keys: Sequence[str]) -> None:
        """Drop what is kept under these very keys."""
        for table in self._tables():
            for key in keys:
                table.pop(key, None)

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`."""
        self._flights.drop_prefix(prefix)
        self._taken_back.drop_prefix(prefix)
        tables = (self._counts, self._cooldowns, self._buckets, self._windows)
        return sum(table.drop_prefix(prefix) for table in tables)

    def _newer(self, windows: Sequence[WindowWrite], now: float) -> Window | None:
        for write in windows:
            current = self.read_window(write.key, now)
            if current.version != write.version:
                return current
        return None

    # -- token buckets: (expires, tokens, last); it expires when it is full again ----------------------------------

    def _left(self, op: Bucket, now: float) -> float:
        spec = op.spec
        entry = self._buckets.get(op.key)
        if entry is None or entry[0] <= now:
            return spec.burst - op.cost
        left: float = min(entry[1] + (now - entry[2]) * spec.rate, spec.burst) - op.cost
        return left if left >= 0.0 or left < -_DUST else 0.0

    def _charge(self, charges: list[tuple[Bucket, float]], denied: dict[int, int], now: float) -> None:
        buckets = self._buckets
        for op, left in charges:
            if op.group not in denied:
                spec = op.spec
                buckets.put(op.key, (now + (spec.burst - left) / spec.rate, left, now), now)

    # -- repeats: counts (expires, count or times), cooldowns (expires, until, hits, cooldown_s, detected) ----------

    def _repeat(self, op: Repeat, now: float) -> Repeated:
        spec = op.spec
        cooled = None
        if spec.cooldown_s:
            cooled = self._cooldowns.live(op.key, now)
            if cooled is not None:
                if now < cooled[1]:
                    return self._cooling(op, cooled, now)
                # A hit after the cooldown is not quiet: its memory lives on.
                self._cooldowns.put(op.key, (now + spec.cooldown_max_s, *cooled[1:]), now)
        before, count = self._slide(op, now) if spec.sliding else self._count_idle(op, now)
        if count <= op.limit and (cooled is not None or not spec.at_once):
            return _SMALL_COUNTS[count] if count < len(_SMALL_COUNTS) else Repeated(count)
        if spec.cooldown_s:
            return self._cool_down(op, count, cooled, now)
        return Repeated(count, True, before <= op.limit, spec.window_s, spec.window_s)

    def _count_idle(self, op: Repeat, now: float) -> tuple[int, int]:
        """Count a hit; return the count of the hit before, and this one's."""
        entry = self._counts.live(op.key, now)
        before: int = 0 if entry is None else entry[1]
        self._counts.put(op.key, (now + op.spec.window_s, before + 1), now)
        return before, before + 1

    def _slide(self, op: Repeat, now: float) -> tuple[int, int]:
        """The same over a true window."""
        window_s = op.spec.window_s
        entry = self._counts.live(op.key, now)
        times: array[float] = array("d") if entry is None else entry[1]
        before = len(times)
        stale = 0
        while stale < len(times) and times[stale] <= now - window_s:
            stale += 1
        if len(times) - stale > op.limit + _HITS_KEPT:
            stale += 1
        del times[:stale]
        times.append(now)
        self._counts.put(op.key, (now + window_s, times), now)
        return before, len(times)

    def _cool_down(self, op: Repeat, count: int, before: tuple[float, ...] | None, now: float) -> Repeated:
        spec = op.spec
        cooldown_s = spec.cooldown_s if before is None else min(before[3] * spec.growth, spec.cooldown_max_s)
        until = now + cooldown_s
        self._cooldowns.put(op.key, (until + spec.cooldown_max_s, until, count, cooldown_s, now), now)
        self._counts.pop(op.key, None)  # the first request after the cooldown starts a new count
        self._flights.pop(op.key, None)
        return Repeated(count, True, True, cooldown_s, spec.window_s)

    def _cooling(self, op: Repeat, cooled: tuple[float, ...], now: float) -> Repeated:
        expires, until, hits, cooldown_s, detected = cooled
        self._cooldowns.put(op.key, (expires, until, hits + 1, cooldown_s, detected), now)
        return Repeated(int(hits) + 1, True, False, until - now, op.spec.window_s + now - detected)

    # -- flights: (expires, started, number, free, hits); `free` places are left, none once the leader has its answer --

    def _tracked(self, op: Repeat, now: float, leads: list[tuple[Repeat, Entry]]) -> Repeated:
        """Join the flight of this key, or count and be ready to lead the next."""
        flight = self._flights.get(op.key)
        number = 1
        if flight is not None and flight[0] > now:
            expires, started, number, free, hits = flight
            if free > 0:
                self._flights[op.key] = (expires, started, number, free - 1, hits)
                return Repeated(hits, False, False, 0.0, 0.0, JOINED)  # by position: names cost twice as much
            number += 1
        repeated = self._repeat(op, now)
        if repeated.tripped or not op.spec.concurrent_free:
            return repeated
        leads.append((op, (now + FLIGHT_S, now, number, op.spec.concurrent_free, repeated.hits)))
        return Repeated(repeated.hits, False, False, 0.0, 0.0, number)

    def _lead(self, leads: list[tuple[Repeat, Entry]], denied: dict[int, int], now: float) -> None:
        """Begin flights. Not of what is denied: it has its answer already."""
        for op, flight in leads:
            if op.group not in denied:
                self._flights.put(op.key, flight, now)

    def _land(self, op: Settle) -> None:
        """End a flight, if it is still this one's. It keeps its number, so that no other is taken for it."""
        flight = self._flights.get(op.key)
        if flight is not None and flight[1] == op.at and flight[2] == op.flight:
            self._flights[op.key] = (flight[0], op.at, op.flight, 0, 0)

    # -- counts taken back: (expires, times) -----------------------------------------------------------------------

    def _take_back(self, op: Settle, now: float) -> bool:
        spec = op.spec
        count = self._counts.live(op.key, now)
        # A count lives for a window after each hit, so within that time the hit is in it, unless a detection took it.
        if count is None or op.at + spec.window_s <= now or (spec.sliding and op.at not in count[1]):
            return False
        cooled = self._cooldowns.live(op.key, now)
        if cooled is not None and op.at <= cooled[4]:
            return False
        known = self._taken_back.live(op.key, now)
        times = [] if known is None else [time for time in known[1] if time > now - spec.window_s]
        if len(times) >= spec.retry_free:
            return False
        self._taken_back.put(op.key, (now + spec.window_s, (*times, now)), now)
        if spec.sliding:
            count[1].remove(op.at)
        else:
            self._counts[op.key] = (count[0], count[1] - 1)
        return True
