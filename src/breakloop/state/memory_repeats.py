"""What the memory store keeps of repeats: counts, cooldowns, flights, and what was taken back. Whether a repeat denies
anything, and what else belongs to the same commit, is `memory`'s to say."""

from __future__ import annotations

from array import array
from typing import Final

from breakloop.state.ops import FLIGHT_S, JOINED, Repeat, Repeated, Settle
from breakloop.state.table import Entry, Table

Lead = tuple[Repeat, Entry]  # a flight that begins if its request passes

# A sliding count keeps the times of at most so many hits beyond its limit: a throttle's delay grows up to 30 s,
# which is 300 hits of 100 ms.
_HITS_KEPT = 301

_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes

# Almost every count is small and trips nothing: its result need not be made anew.
_SMALL_COUNTS = tuple(Repeated(count) for count in range(64))


class Repeats:
    """Fingerprints and how often they came."""

    __slots__ = ("cooldowns", "counts", "flights", "taken_back")

    def __init__(self, max_entries: int) -> None:
        few = max(1, max_entries // 10)
        self.counts = Table(max_entries)  # (expires, count or times)
        self.cooldowns = Table(max_entries)  # (expires, until, hits, cooldown_s, detected)
        # (expires, started, number, free, hits); `free` places are left, none once the leader has its answer
        self.flights = Table(few)
        self.taken_back = Table(few)  # (expires, times)

    def tables(self) -> tuple[Table, ...]:
        """Return everything that is kept."""
        return self.counts, self.cooldowns, self.flights, self.taken_back

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`; return how many fingerprints that were."""
        self.flights.drop_prefix(prefix)
        self.taken_back.drop_prefix(prefix)
        return self.counts.drop_prefix(prefix) + self.cooldowns.drop_prefix(prefix)

    # -- counts and cooldowns --------------------------------------------------------------------------------------

    def count(self, op: Repeat, now: float) -> Repeated:
        """Count a hit, and say whether it is one too many."""
        spec = op.spec
        cooled = None
        if spec.cooldown_s:
            cooled = self.cooldowns.get(op.key)
            if cooled is not None and cooled[0] <= now:
                cooled = None
            if cooled is not None:
                if now < cooled[1]:
                    return self._cooling(op, cooled, now)
                # A hit after the cooldown is not quiet: its memory lives on.
                self.cooldowns.put(op.key, (now + spec.cooldown_max_s, *cooled[1:]), now)
        before, count = self._slide(op, now) if spec.sliding else self._count_idle(op, now)
        if count <= op.limit and (cooled is not None or not spec.at_once):
            return _SMALL_COUNTS[count] if count < len(_SMALL_COUNTS) else Repeated(count)
        if spec.cooldown_s:
            return self._cool_down(op, count, cooled, now)
        return Repeated(count, True, before <= op.limit, spec.window_s)

    def _count_idle(self, op: Repeat, now: float) -> tuple[int, int]:
        """Count a hit; return the count of the hit before, and this one's."""
        entry = self.counts.live(op.key, now)
        # A count of the other kind is of a block that was changed meanwhile: it begins anew.
        before: int = 0 if entry is None or type(entry[1]) is not int else entry[1]
        self.counts.put(op.key, (now + op.spec.window_s, before + 1), now)
        return before, before + 1

    def _slide(self, op: Repeat, now: float) -> tuple[int, int]:
        """The same over a true window."""
        window_s = op.spec.window_s
        entry = self.counts.get(op.key)
        if entry is None or entry[0] <= now or type(entry[1]) is int:  # as most
            self.counts.put(op.key, (now + window_s, array("d", (now,))), now)
            return 0, 1
        times: array[float] = entry[1]
        before = len(times)
        stale = 0
        while stale < len(times) and times[stale] <= now - window_s:
            stale += 1
        if len(times) - stale > op.limit + _HITS_KEPT:
            stale += 1
        del times[:stale]
        times.append(now)
        self.counts.put(op.key, (now + window_s, times), now)
        return before, len(times)

    def _cool_down(self, op: Repeat, count: int, before: tuple[float, ...] | None, now: float) -> Repeated:
        spec = op.spec
        cooldown_s = spec.next_cooldown_s(None if before is None else before[3])
        until = now + cooldown_s
        self.cooldowns.put(op.key, (until + spec.cooldown_max_s, until, count, cooldown_s, now), now)
        self.counts.discard(op.key)  # the first request after the cooldown starts a new count
        self.flights.discard(op.key)
        return Repeated(count, True, True, cooldown_s)

    def _cooling(self, op: Repeat, cooled: tuple[float, ...], now: float) -> Repeated:
        expires, until, hits, cooldown_s, detected = cooled
        self.cooldowns.put(op.key, (expires, until, hits + 1, cooldown_s, detected), now)
        return Repeated(int(hits) + 1, True, False, until - now)

    def remember(self, op: Repeat, found: Repeated, now: float) -> None:
        """Block a key as another store does: for as long, and with as many hits."""
        spec, until = op.spec, now + found.wait_s
        if not found.tripped or not found.wait_s:
            return
        if spec.cooldown_s:
            cooled = (until + spec.cooldown_max_s, until, found.hits, max(found.wait_s, spec.cooldown_s), now)
            self.cooldowns.put(op.key, cooled, now)
        else:
            hits = array("d", [now] * found.hits) if spec.sliding else found.hits
            self.counts.put(op.key, (until, hits), now)

    # -- flights ---------------------------------------------------------------------------------------------------

    def track(self, op: Repeat, now: float, leads: list[Lead]) -> Repeated:
        """Join the flight of this key, or count and be ready to lead the next."""
        flight = self.flights.get(op.key)
        number = 1
        if flight is not None and flight[0] > now:
            expires, started, number, free, hits = flight
            if free > 0:
                self.flights[op.key] = (expires, started, number, free - 1, hits)
                return Repeated(hits, False, False, 0.0, JOINED)  # by position: names cost twice as much
            number += 1
        repeated = self.count(op, now)
        if repeated.tripped or not op.spec.concurrent_free:
            return repeated
        leads.append((op, (now + FLIGHT_S, now, number, op.spec.concurrent_free, repeated.hits)))
        return _new(Repeated, (repeated[0], False, False, 0.0, number))

    def lead(self, leads: list[Lead], denied: dict[int, int], now: float) -> None:
        """Begin flights. Not of what is denied: it has its answer already."""
        for op, flight in leads:
            if op.group not in denied:
                self.flights.put(op.key, flight, now)

    def land(self, op: Settle) -> None:
        """End a flight, if it is still this one's. It keeps its number, so that no other is taken for it."""
        flight = self.flights.get(op.key)
        if flight is not None and flight[1] == op.at and flight[2] == op.flight:
            self.flights[op.key] = (flight[0], op.at, op.flight, 0, 0)

    # -- counts taken back -----------------------------------------------------------------------------------------

    def take_back(self, op: Settle, now: float) -> bool:
        """Take the count of a failed request back, if it is still there and enough are not taken back already."""
        spec = op.spec
        count = self.counts.live(op.key, now)
        # A count lives for a window after each hit, so within that time the hit is in it, unless a detection took it.
        if count is None or op.at + spec.window_s <= now or spec.sliding is (type(count[1]) is int):
            return False
        if spec.sliding and op.at not in count[1]:
            return False
        cooled = self.cooldowns.live(op.key, now)
        if cooled is not None and op.at <= cooled[4]:
            return False
        known = self.taken_back.live(op.key, now)
        times = [] if known is None else [time for time in known[1] if time > now - spec.window_s]
        if len(times) >= spec.retry_free:
            return False
        self.taken_back.put(op.key, (now + spec.window_s, (*times, now)), now)
        if spec.sliding:
            count[1].remove(op.at)
            self.counts.change(op.key, count)
        else:
            self.counts.change(op.key, (count[0], count[1] - 1))
        return True
