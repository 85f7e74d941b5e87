"""The in-process store (`memory://`): a commit is a plain function call.

`MemoryFingerprints` stores counts, cooldowns, flights and counts taken back; `MemoryLimits` stores token buckets,
accounts and breakers; `MemoryStore` combines them into commits and stores the windows. All data is in
`ExpiringTable`s, which are bounded and give every entry a time to live. Saving to disk is done by `snapshot`.

An entry is a tuple whose first item is its expiry. The garbage collector soon stops tracking tuples of numbers, so a
million of them do not slow down a collection. The least recently used entry is evicted first. Reads use the plain
`dict.get` for speed, so the reader checks the expiry. A table whose `dirty` set is enabled collects the keys that
were changed; expired entries need not be saved.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, assert_never

from breakloop.store.ops import (
    ENFORCED,
    FLIGHT_S,
    JOINED,
    AdjustCharge,
    BreakerResult,
    BucketSpec,
    Charge,
    ChargeBudget,
    CheckBreaker,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    Observation,
    Op,
    Result,
    Settle,
    StoredBreaker,
    StoredWindow,
    TakeTokens,
    WindowWrite,
)

Entry = tuple[Any, ...]  # (expires, ...); the remaining items depend on the table


class ExpiringTable(OrderedDict[str, Entry]):
    """A bounded mapping with expiry. All operations take constant time; memory is bounded by `max_entries`."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self.max_entries = max_entries
        self._quiet_until = 0.0  # nothing expires before this time, judging by the oldest entry
        self.evicted = 0  # live entries dropped for lack of room
        self.dirty: dict[str, None] | None = None  # keys changed or dropped since the last save; None: not saved

    def put(self, key: str, entry: Entry, now: float) -> None:
        """Store an entry and make it the most recently used."""
        if key in self:
            self[key] = entry
            self.move_to_end(key)
        else:
            if now >= self._quiet_until or len(self) >= self.max_entries:
                self._make_room(now)
            self[key] = entry
        dirty = self.dirty
        if dirty is not None:
            dirty[key] = None

    def change(self, key: str, entry: Entry) -> None:
        """Store an entry without changing its position."""
        self[key] = entry
        if self.dirty is not None:
            self.dirty[key] = None

    def discard(self, key: str) -> None:
        """Drop a key if it exists."""
        if self.pop(key, None) is not None and self.dirty is not None:
            self.dirty[key] = None

    def live(self, key: str, now: float) -> Entry | None:
        """Return an entry that has not expired, or None."""
        entry = self.get(key)
        return None if entry is None or entry[0] <= now else entry

    def drop_prefix(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`. Scans the whole table: for operators, not for requests."""
        doomed = [key for key in self if key.startswith(prefix)]
        for key in doomed:
            self.discard(key)
        return len(doomed)

    def _make_room(self, now: float) -> None:
        """Remove up to two expired entries for each new one, so that they are removed faster than new ones arrive."""
        for _ in (1, 2):
            key = next(iter(self), None)
            if key is None:
                return
            expires = self[key][0]
            if expires > now:
                self._quiet_until = expires
                break
            del self[key]
        if len(self) >= self.max_entries:
            key, _ = self.popitem(last=False)
            self.evicted += 1
            if self.dirty is not None:
                self.dirty[key] = None


Checked = tuple[Charge, float]  # a charge, and what would be left or used after it

_MINUTE_S: Final = 60.0
# Tolerance for rounding: a client that waits as long as advised has to pass, and ten charges of 0.1 are 1.
_DUST: Final = 1e-9
# How long an account is stored after its end, so that usage is still known if the clock steps back into the period.
_LATE_S: Final = 3600.0
# How long an open breaker is stored after its reset, waiting for a probe; later its entry may be evicted.
_UNASKED_S: Final = 86_400.0


class MemoryLimits:
    """Token buckets, accounts and breakers."""

    __slots__ = ("accounts", "buckets", "open", "rates")

    def __init__(self, max_entries: int) -> None:
        self.buckets = ExpiringTable(max_entries)  # (expires, tokens, last); expires when it is full again
        self.accounts = ExpiringTable(max_entries)  # (expires, used); expires some time after its period has ended
        # A breaker is (expires, minute, spend of that minute, spend of the one before, open since), in one of two
        # tables, so that counting any number of invented keys cannot evict an open one.
        self.rates = ExpiringTable(max_entries)
        self.open = ExpiringTable(max(1, max_entries // 10))

    def tables(self) -> tuple[ExpiringTable, ...]:
        return self.buckets, self.accounts, self.rates, self.open

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`; return how many there were."""
        return sum(table.drop_prefix(prefix) for table in self.tables())

    def charge(self, charges: list[Checked], denied: dict[int, int], now: float) -> None:
        """Apply the checked charges, except those of denied groups."""
        buckets = self.buckets
        for op, after in charges:
            if op.group in denied:
                continue
            if type(op) is TakeTokens:
                spec = op.spec
                buckets.put(op.key, (now + (spec.burst - after) / spec.rate, after, now), now)
            else:
                self.accounts.put(op.key, (max(op.ends, now) + _LATE_S, after), now)

    # -- buckets ---------------------------------------------------------------------------------------------------

    def left(self, op: TakeTokens, now: float) -> float:
        """Return the tokens that would be left; a negative number is a denial."""
        spec = op.spec
        entry = self.buckets.get(op.key)
        if entry is None or entry[0] <= now:
            return spec.burst - op.cost
        left: float = min(entry[1] + (now - entry[2]) * spec.rate, spec.burst) - op.cost
        return left if left >= 0.0 or left < -_DUST else 0.0

    def _correct_bucket(self, spec: BucketSpec, key: str, amount: float, now: float) -> None:
        # An expired bucket is full, not missing: usage beyond the estimate of a long call is still charged.
        entry = self.buckets.live(key, now)
        tokens = spec.burst if entry is None else min(entry[1] + (now - entry[2]) * spec.rate, spec.burst)
        left = min(tokens - amount, spec.burst)
        if entry is not None or left < spec.burst:
            self.buckets.put(key, (now + (spec.burst - left) / spec.rate, left, now), now)

    # -- accounts --------------------------------------------------------------------------------------------------

    def used(self, op: ChargeBudget, now: float) -> int:
        """Return the usage including this charge."""
        entry = self.accounts.get(op.key)
        # An ended period is requested only after the clock stepped back; its usage still counts.
        if entry is None or entry[0] - _LATE_S <= now < op.ends:
            return op.cost
        used: int = entry[1] + op.cost
        return used

    def correct(self, op: AdjustCharge, now: float) -> None:
        """Charge the missing amount or refund the excess."""
        if isinstance(op.spec, BucketSpec):
            self._correct_bucket(op.spec, op.key, op.amount, now)
            return
        entry = self.accounts.live(op.key, now)
        if entry is not None:
            self.accounts.change(op.key, (entry[0], max(0, entry[1] + round(op.amount))))

    # -- breakers --------------------------------------------------------------------------------------------------

    def check(self, op: CheckBreaker, now: float) -> BreakerResult:
        """Count an amount into the rate and return whether the breaker is then open."""
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
            return BreakerResult(True, rate, spec.reset_s, "opened")
        if probe:
            self.open.discard(key)
        self.rates.put(key, ((minute + 2.0) * _MINUTE_S, minute, current, previous, 0.0), now)
        return BreakerResult(False, rate, 0.0, "closed" if probe else "")

    def breakers(self, prefix: str, now: float, most: int) -> list[StoredBreaker]:
        """Return open breakers by key, then closed ones, most recently counted first."""
        minute = now // _MINUTE_S
        keys = heapq.nsmallest(most, [key for key in self.open if key.startswith(prefix)])
        closed = (key for key in reversed(self.rates) if key.startswith(prefix) and self.rates.live(key, now))
        entries = [(key, self.open[key], True) for key in keys]
        entries += [(key, self.rates[key], False) for key in islice(closed, most - len(entries))]
        return [
            StoredBreaker(key, _sliding(*_spent(entry, minute), now), entry[4] if is_open else None)
            for key, entry, is_open in entries
        ]

    def _stay_open(self, op: CheckBreaker, entry: Entry, now: float) -> BreakerResult:
        self.open.move_to_end(op.key)  # reading counts as use
        rate = _sliding(*_spent(entry, now // _MINUTE_S), now)
        return BreakerResult(True, rate, entry[4] + op.spec.reset_s - now if op.spec.reset_s else 0.0)


def _spent(entry: Entry | None, minute: float) -> tuple[float, float]:
    """Return the spend of this minute and of the previous one."""
    if entry is not None:
        if entry[1] == minute:
            return entry[2], entry[3]
        if entry[1] == minute - 1.0:
            return 0.0, entry[2]
    return 0.0, 0.0


def _sliding(current: float, previous: float, now: float) -> float:
    """Return the rate of the last 60 s, including the share of the previous minute that is still within them."""
    return current + previous * (_MINUTE_S - now % _MINUTE_S) / _MINUTE_S if previous else current


Lead = tuple[CountFingerprint, Entry]  # a flight that starts if its request passes

# A sliding count stores the times of at most this many hits beyond its limit: the delay of a throttle grows up to
# 30 s, which is 300 hits of 100 ms.
_HITS_KEPT = 301


# Most counts are small and do not trip, so their results are shared.
_SMALL_COUNTS = tuple(FingerprintCount(count) for count in range(64))


class MemoryFingerprints:
    """Counts, cooldowns and flights of fingerprints."""

    __slots__ = ("cooldowns", "counts", "flights", "taken_back")

    def __init__(self, max_entries: int) -> None:
        few = max(1, max_entries // 10)
        self.counts = ExpiringTable(max_entries)  # (expires, count or times)
        self.cooldowns = ExpiringTable(max_entries)  # (expires, until, hits, cooldown_s, detected)
        # (expires, started, number, free, hits); `free` requests may still join, 0 once the leader has a response
        self.flights = ExpiringTable(few)
        self.taken_back = ExpiringTable(few)  # (expires, times)

    def tables(self) -> tuple[ExpiringTable, ...]:
        return self.counts, self.cooldowns, self.flights, self.taken_back

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`; return how many fingerprints there were."""
        self.flights.drop_prefix(prefix)
        self.taken_back.drop_prefix(prefix)
        return self.counts.drop_prefix(prefix) + self.cooldowns.drop_prefix(prefix)

    # -- counts and cooldowns --------------------------------------------------------------------------------------

    def count(self, op: CountFingerprint, now: float) -> FingerprintCount:
        """Count a hit and return whether it trips."""
        spec = op.spec
        cooled = None
        if spec.cooldown_s:
            cooled = self.cooldowns.get(op.key)
            if cooled is not None and cooled[0] <= now:
                cooled = None
            if cooled is not None:
                if now < cooled[1]:
                    return self._cooling(op, cooled, now)
                # A hit after the cooldown extends the entry, so that the next cooldown still grows.
                self.cooldowns.put(op.key, (now + spec.cooldown_max_s, *cooled[1:]), now)
        before, count = self._slide(op, now) if spec.sliding else self._count_idle(op, now)
        if count <= op.limit and (cooled is not None or not spec.at_once):
            return _SMALL_COUNTS[count] if count < len(_SMALL_COUNTS) else FingerprintCount(count)
        if spec.cooldown_s:
            return self._cool_down(op, count, cooled, now)
        return FingerprintCount(count, True, before <= op.limit, spec.window_s)

    def _count_idle(self, op: CountFingerprint, now: float) -> tuple[int, int]:
        """Count a hit; return the count before and after it."""
        entry = self.counts.live(op.key, now)
        # A count of the other kind belongs to a block whose settings have changed: start from zero.
        before: int = 0 if entry is None or type(entry[1]) is not int else entry[1]
        self.counts.put(op.key, (now + op.spec.window_s, before + 1), now)
        return before, before + 1

    def _slide(self, op: CountFingerprint, now: float) -> tuple[int, int]:
        """Like `_count_idle`, with a true sliding window."""
        window_s = op.spec.window_s
        entry = self.counts.get(op.key)
        if entry is None or entry[0] <= now or type(entry[1]) is int:  # at most
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

    def _cool_down(
        self, op: CountFingerprint, count: int, before: tuple[float, ...] | None, now: float
    ) -> FingerprintCount:
        spec = op.spec
        cooldown_s = spec.next_cooldown_s(None if before is None else before[3])
        until = now + cooldown_s
        self.cooldowns.put(op.key, (until + spec.cooldown_max_s, until, count, cooldown_s, now), now)
        self.counts.discard(op.key)  # the first request after the cooldown starts a new count
        self.flights.discard(op.key)
        return FingerprintCount(count, True, True, cooldown_s)

    def _cooling(self, op: CountFingerprint, cooled: tuple[float, ...], now: float) -> FingerprintCount:
        expires, until, hits, cooldown_s, detected = cooled
        self.cooldowns.put(op.key, (expires, until, hits + 1, cooldown_s, detected), now)
        return FingerprintCount(int(hits) + 1, True, False, until - now)

    def remember(self, op: CountFingerprint, found: FingerprintCount, now: float) -> None:
        """Copy a block from another store, with its duration and hits."""
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

    def track(self, op: CountFingerprint, now: float, leads: list[Lead]) -> FingerprintCount:
        """Join the flight of this key, or count the request and prepare to lead the next flight."""
        flight = self.flights.get(op.key)
        number = 1
        if flight is not None and flight[0] > now:
            expires, started, number, free, hits = flight
            if free > 0:
                self.flights[op.key] = (expires, started, number, free - 1, hits)
                return FingerprintCount(
                    hits, False, False, 0.0, JOINED
                )  # positional: keyword arguments take twice as long
            number += 1
        repeated = self.count(op, now)
        if repeated.tripped or not op.spec.concurrent_free:
            return repeated
        leads.append((op, (now + FLIGHT_S, now, number, op.spec.concurrent_free, repeated.hits)))
        return _new(FingerprintCount, (repeated[0], False, False, 0.0, number))

    def lead(self, leads: list[Lead], denied: dict[int, int], now: float) -> None:
        """Start flights, except for denied requests: they already have their response."""
        for op, flight in leads:
            if op.group not in denied:
                self.flights.put(op.key, flight, now)

    def land(self, op: Settle) -> None:
        """End a flight if it is still the same one. Its number stays in use, so that another flight is not mistaken for
        it.
        """
        flight = self.flights.get(op.key)
        if flight is not None and flight[1] == op.at and flight[2] == op.flight:
            self.flights[op.key] = (flight[0], op.at, op.flight, 0, 0)

    # -- counts taken back -----------------------------------------------------------------------------------------

    def take_back(self, op: Settle, now: float) -> bool:
        """Take back the count of a failed request, if it is still present and the allowance is not used up."""
        spec = op.spec
        count = self.counts.live(op.key, now)
        # A count expires a window after its last hit; until then it includes the hit, unless a detection consumed it.
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


_NO_WINDOW: Final = StoredWindow(0, b"")
_new: Final = tuple.__new__  # creates a named tuple in half the time of its constructor


class MemoryStore:
    """Counts, limits and windows of one process."""

    __slots__ = ("_latest", "_limits", "_repeats", "_windows")

    def __init__(self, max_entries: int = 1_000_000) -> None:
        self._repeats = MemoryFingerprints(max_entries)
        self._limits = MemoryLimits(max_entries)
        self._windows = ExpiringTable(max(1, max_entries // 10))
        self._latest = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._tables()))

    @property
    def evicted(self) -> int:
        """How many live entries were evicted for lack of room."""
        return sum(table.evicted for table in self._tables())

    def _tables(self) -> tuple[ExpiringTable, ...]:
        return (*self._repeats.tables(), *self._limits.tables(), self._windows)

    def kept(self) -> dict[str, ExpiringTable]:
        """Return the tables that are saved, by their names on disk."""
        counted = {"counts": self._repeats.counts, "cooldowns": self._repeats.cooldowns}
        limits = self._limits
        spent = {"accounts": limits.accounts, "rates": limits.rates, "open": limits.open}
        return {**counted, "buckets": limits.buckets, **spent, "windows": self._windows}

    @property
    def latest(self) -> float:
        """The latest time passed to the store; time continues from there."""
        return self._latest

    def resume(self, at: float) -> None:
        """Continue from the time of a previous process, even if the clock stepped back since."""
        self._latest = max(self._latest, at)

    def commit(self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = ()) -> CommitResult:
        """Execute `ops` and write `windows` atomically; see `Store`."""
        # If the clock steps back, time stands still here, so that nothing refills twice.
        now = self._latest = now if now > self._latest else self._latest  # noqa: FURB136 - half the time of `max`
        newer = self._newer(windows, now) if windows else None
        if newer is not None:
            return CommitResult([], -1, newer, now)
        limits, repeats = self._limits, self._repeats
        results: list[Result] = []
        charges: list[Checked] = []
        leads: list[Lead] = []
        denied: dict[int, int] = {}  # group -> index of the first operation that denied it
        result: Result
        for op in ops:
            if type(op) is CountFingerprint:
                result = repeated = repeats.track(op, now, leads) if op.tracked else repeats.count(op, now)
                passes = not (repeated[1] and op.spec.denies)
            elif op.group in denied:
                result, passes = None, True
            elif type(op) is TakeTokens:
                result = left = limits.left(op, now)
                charges.append((op, left))  # a denied operation is not charged, because its group is denied
                passes = left >= 0.0
            elif type(op) is ChargeBudget:
                result = used = limits.used(op, now)
                charges.append((op, used))
                passes = used <= op.spec.budget
            else:
                result, passes = self._rare(op, now)
            if not passes:
                denied.setdefault(op.group, len(results))
            results.append(result)
        if charges and ENFORCED not in denied:
            limits.charge(charges, denied, now)
        if leads and ENFORCED not in denied:
            repeats.lead(leads, denied, now)
        for write in windows:
            if write.data is not None:
                self._windows.put(write.key, (now + write.ttl_s, write.becomes, write.data), now)
        return CommitResult(results, denied.get(ENFORCED, -1), None, now)

    def _rare(self, op: CheckBreaker | Deny | Observation, now: float) -> tuple[Result, bool]:
        """Run an operation that is rare in commits; return its result and whether the request passes."""
        match op:
            case CheckBreaker():
                checked = self._limits.check(op, now)
                return checked, not checked.open
            case Deny():
                return None, False
            case Observation():
                return None, True
            case _:
                assert_never(op)

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        """Report that requests have ended; see `Store`."""
        now = self._latest = max(now, self._latest)
        taken_back = 0
        for op in ops:
            if op.flight:
                self._repeats.land(op)
            if failed and self._repeats.take_back(op, now):
                taken_back += 1
        return taken_back

    def correct(self, ops: Sequence[AdjustCharge], now: float) -> None:
        """Correct charges; see `Store`."""
        now = self._latest = max(now, self._latest)
        for op in ops:
            self._limits.correct(op, now)

    def remember(self, op: CountFingerprint, found: FingerprintCount, now: float) -> None:
        """Copy a tripped fingerprint from another store: it stays blocked here for as long as there."""
        now = self._latest = max(now, self._latest)
        self._repeats.remember(op, found, now)

    def read_window(self, key: str, now: float) -> StoredWindow:
        """Return the session window under `key`, with version 0 if there is none."""
        entry = self._windows.get(key)
        return _NO_WINDOW if entry is None or entry[0] <= now else _new(StoredWindow, entry[1:])

    def breakers(self, prefix: str, now: float, most: int) -> list[StoredBreaker]:
        """Return the breakers whose key begins with `prefix`, open ones first."""
        return self._limits.breakers(prefix, max(now, self._latest), most)

    def look_up(self, prefix: str, most: int) -> list[Mapping[str, object]]:
        """Return the entries whose key begins with a prefix, for operators. Scans the whole store."""
        found: list[Mapping[str, object]] = []
        for kind, table in self.kept().items():
            for key, entry in table.items():
                if key.startswith(prefix) and entry[0] > self._latest:
                    found.append({"key": key, "kind": kind, "expires_at": entry[0], "value": _shown(entry)})
                    if len(found) >= most:
                        return found
        return found

    def drop(self, keys: Sequence[str]) -> None:
        """Drop the entries with exactly these keys."""
        for table in self._tables():
            for key in keys:
                table.discard(key)

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`."""
        parts = (self._repeats.forget(prefix), self._limits.forget(prefix), self._windows.drop_prefix(prefix))
        return sum(parts)

    def _newer(self, windows: Sequence[WindowWrite], now: float) -> dict[str, StoredWindow] | None:
        newer: dict[str, StoredWindow] | None = None
        for write in windows:
            entry = self._windows.get(write.key)
            if write.version != (0 if entry is None or entry[0] <= now else entry[1]):
                newer = newer or {}
                newer[write.key] = self.read_window(write.key, now)
        return newer


def _shown(entry: Entry) -> list[object]:
    """Return an entry in readable form: packed or long values are replaced by their size."""
    return [part if isinstance(part, int | float | str) else len(part) for part in entry[1:]]
