"""The in-process store (`memory://`): a commit is a plain function call.

`MemoryFingerprints` stores counts, cooldowns, flights, counts taken back and the traffic of senders; the state of
limiters is in the tables that their operations declare (`limit_ops`); `MemoryStore` combines them into commits and
stores the windows. All data is in `ExpiringTable`s, which are bounded and give every entry a time to live. Saving to
disk is done by `snapshot`.

An entry is a tuple whose first item is its expiry. The garbage collector soon stops tracking tuples of numbers, so a
million of them do not slow down a collection. The least recently used entry is evicted first. Reads use the plain
`dict.get` for speed, so the reader checks the expiry. A table whose `dirty` set is enabled collects the keys that
were changed; expired entries need not be saved.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from breakloop.store.limit_ops import LIMIT_OPS, ChargeBudget, TakeTokens, accounts_in_memory, breakers_in_memory
from breakloop.store.ops import (
    ENFORCED,
    FLIGHT_S,
    JOINED,
    LANDED_S,
    MARK,
    NO_WINDOW,
    SMALL_COUNTS,
    TRAFFIC_MARKS,
    AdjustCharge,
    BucketRows,
    Change,
    CommitResult,
    CountFingerprint,
    FingerprintCount,
    Op,
    Result,
    Settle,
    StoredAccount,
    StoredBreaker,
    StoredWindow,
    WindowWrite,
    denies,
    is_mixed,
)

Entry = tuple[Any, ...]  # (expires, ...); the remaining items depend on the table


class ExpiringTable(OrderedDict[str, Entry]):
    """A bounded mapping with expiry. All operations take constant time; memory is bounded by `max_entries`."""

    __slots__ = ("_quiet_until", "dirty", "evicted", "max_entries", "overflow")

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self.max_entries = max_entries
        self._quiet_until = 0.0  # nothing expires before this time, judging by the oldest entry
        self.evicted = 0  # live entries dropped for lack of room
        self.dirty: dict[str, None] | None = None  # keys changed or dropped since the last save; None: not saved
        self.overflow: ExpiringTable | None = None  # gets what is evicted, and has no key of this one; None: it is lost

    def put(self, key: str, entry: Entry, now: float) -> None:
        """Store an entry and make it the most recently used."""
        if key in self:
            self[key] = entry
            self.move_to_end(key)
        else:
            if self.overflow is not None:
                self.overflow.discard(key)
            if now >= self._quiet_until or len(self) >= self.max_entries:
                self._make_room(now)
            self[key] = entry
        dirty = self.dirty
        if dirty is not None:
            dirty[key] = None

    def add(self, key: str, entry: Entry, now: float) -> None:
        """Do the same for a key that the table does not have, nor its overflow."""
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
        if self.pop(key, None) is not None and self.dirty is not None:
            self.dirty[key] = None

    def live(self, key: str, now: float) -> Entry | None:
        """Return an entry that has not expired, or None."""
        entry = self.get(key)
        return None if entry is None or entry[0] <= now else entry

    def _make_room(self, now: float) -> None:
        """Remove up to two expired entries for each new one, so that they are removed faster than new ones arrive."""
        for _ in range(2):
            key = next(iter(self), None)
            if key is None:
                return
            expires = self[key][0]
            if expires > now:
                self._quiet_until = expires
                break
            del self[key]
        if len(self) >= self.max_entries:
            key, entry = self.popitem(last=False)
            if self.dirty is not None:
                self.dirty[key] = None
            if self.overflow is None:
                self.evicted += 1
            else:
                self.overflow.put(key, entry, now)


Lead = tuple[CountFingerprint, Entry]  # a flight that starts if its request passes

# A sliding count stores the times of at most this many hits beyond its limit: the delay of a throttle grows up to
# 30 s, which is 300 hits of 100 ms.
_HITS_KEPT = 301
_TRAFFIC: Final = MARK * TRAFFIC_MARKS
_SMALL: Final = len(SMALL_COUNTS)


class MemoryFingerprints:
    """Counts, cooldowns and flights of fingerprints."""

    __slots__ = ("cooldowns", "counts", "flights", "landed", "taken_back", "traffic")

    def __init__(self, max_entries: int) -> None:
        few = max(1, max_entries // 10)
        self.counts = ExpiringTable(max_entries)  # (expires, count or times)
        self.cooldowns = ExpiringTable(max_entries)  # (expires, until, hits, cooldown_s, detected)
        # (expires, started, number, free, hits); `free` requests may still join, 0 once the leader has a response
        self.flights = ExpiringTable(few)
        self.taken_back = ExpiringTable(few)  # (expires, times)
        self.traffic = ExpiringTable(few)  # (expires, marks), see `is_mixed`
        self.landed = ExpiringTable(few)  # (expires, calls)

    def tables(self) -> tuple[ExpiringTable, ...]:
        return self.counts, self.cooldowns, self.flights, self.taken_back, self.traffic, self.landed

    # -- counts and cooldowns --------------------------------------------------------------------------------------

    def count(self, op: CountFingerprint, now: float) -> FingerprintCount:
        """Count a hit and return whether it trips."""
        spec, key = op.spec, op.key
        limit = spec.limit if op.own_limit < 0 else op.own_limit
        cooled = None
        if spec.cooldown_s:
            cooled = self.cooldowns.get(key)
            if cooled is not None and cooled[0] <= now:
                cooled = None
            if cooled is not None:
                if now < cooled[1]:
                    return self._cooling(op, cooled, now)
                # A hit after the cooldown extends the entry, so that the next cooldown still grows.
                self.cooldowns.put(key, (now + spec.cooldown_max_s, *cooled[1:]), now)
        entry = self.counts.get(key)
        if entry is None:
            before, count = 0, 1
            self.counts.add(key, (now + spec.window_s, array("d", (now,)) if spec.sliding else 1), now)
        elif spec.sliding:
            before, count = self._slide(op, limit, now)
        else:
            # A count of the other kind belongs to a block whose settings have changed: start from zero.
            before = 0 if entry[0] <= now or type(entry[1]) is not int else entry[1]
            count = before + 1
            self.counts.put(key, (now + spec.window_s, count), now)
        marks = self._add_traffic(op, now) if op.traffic else ""
        if count <= limit and (cooled is not None or not spec.at_once):
            return SMALL_COUNTS[count] if count < _SMALL else FingerprintCount(count)
        if op.opening and is_mixed(marks, limit):
            return FingerprintCount(count, True, before <= limit, mixed=True)
        if spec.land_calls and (landed := self._land(op, now)):
            return FingerprintCount(count, True, before <= limit, landed=landed)
        if spec.cooldown_s:
            return self._cool_down(op, count, cooled, now)
        return FingerprintCount(count, True, before <= limit, spec.window_s)

    def _slide(self, op: CountFingerprint, limit: int, now: float) -> tuple[int, int]:
        """Count a hit in a true sliding window; return the count before and after it."""
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
        if len(times) - stale > limit + _HITS_KEPT:
            stale += 1
        del times[:stale]
        times.append(now)
        self.counts.put(op.key, (now + window_s, times), now)
        return before, len(times)

    def _add_traffic(self, op: CountFingerprint, now: float) -> str:
        """Add a request to the traffic of its sender; return the marks of the last ones."""
        entry = self.traffic.get(op.traffic)
        marks: str = op.key[-MARK:] if entry is None or entry[0] <= now else (entry[1] + op.key[-MARK:])[-_TRAFFIC:]
        self.traffic.put(op.traffic, (now + op.spec.window_s, marks), now)
        return marks

    def _land(self, op: CountFingerprint, now: float) -> int:
        """Count a landed call; return how many there are by now, 0 if no more may be landed."""
        entry = self.landed.live(op.landed_key, now)
        calls: int = 1 if entry is None else entry[1] + 1
        if calls > op.spec.land_calls:
            return 0
        self.landed.put(op.landed_key, (now + LANDED_S, calls), now)
        return calls

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
        return _new(FingerprintCount, (repeated[0], False, False, 0.0, number, False, 0))

    def lead(self, leads: list[Lead], denied: dict[int, int], now: float) -> None:
        """Start flights, except for denied requests: they already have their response."""
        for op, flight in leads:
            if op.group not in denied:
                self.flights.put(op.key, flight, now)

    def land(self, op: Settle) -> None:
        """End a flight if it is still the same one. Its number stays in use, so that another flight is not mistaken for
        it.
        """
        key, at, number = op.key, op.at, op.flight
        flight = self.flights.get(key)
        if flight is not None and flight[1] == at and flight[2] == number:
            self.flights[key] = (flight[0], at, number, 0, 0)

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


_new: Final = tuple.__new__  # creates a named tuple in half the time of its constructor


class MemoryStore:
    """Counts, limits and windows of one process."""

    __slots__ = ("_buckets", "_latest", "_limits", "_repeats", "_windows")

    def __init__(self, max_entries: int = 1_000_000) -> None:
        self._repeats = MemoryFingerprints(max_entries)
        specs = [table for op in LIMIT_OPS for table in op.tables]
        self._limits = {table.name: ExpiringTable(max(1, max_entries // table.share)) for table in specs}
        for table in specs:
            self._limits[table.name].overflow = self._limits.get(table.overflow)
        self._buckets = self._limits[TakeTokens.tables[0].name]
        self._windows = ExpiringTable(max(1, max_entries // 10))
        self._latest = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._tables()))

    @property
    def evicted(self) -> int:
        """How many live entries were evicted for lack of room."""
        return sum(table.evicted for table in self._tables())

    def _tables(self) -> tuple[ExpiringTable, ...]:
        return (*self._repeats.tables(), *self._limits.values(), self._windows)

    def kept(self) -> dict[str, ExpiringTable]:
        """Return the tables that are saved, by their names on disk."""
        repeats = self._repeats
        counted = {"counts": repeats.counts, "cooldowns": repeats.cooldowns, "traffic": repeats.traffic}
        counted["landed"] = repeats.landed
        return {**counted, **self._limits, "windows": self._windows}

    @property
    def latest(self) -> float:
        """The latest time passed to the store; time continues from there."""
        return self._latest

    def resume(self, at: float) -> None:
        """Continue from the time of a previous process."""
        self._latest = max(self._latest, at)

    def commit(
        self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = (), rows: BucketRows | None = None
    ) -> CommitResult:
        # The caller's clock is steady. If another one goes back, time stands still here, so that nothing refills twice.
        now = self._latest = now if now > self._latest else self._latest  # noqa: FURB136 - half the time of `max`
        if rows is not None and (done := self._take(ops, rows, now)) is not None:
            return done
        newer = self._newer(windows, now)
        if newer is not None:
            return CommitResult([], -1, newer, now)
        if not ops:  # what an answer changes
            self._write(windows, now)
            return CommitResult([], -1, None, now)
        limits, repeats = self._limits, self._repeats
        results: list[Result] = []
        changes: list[Change] = []  # written if the request passes
        leads: list[Lead] = []
        denied: dict[int, int] = {}  # group -> index of the first operation that denied it
        for op in ops:
            if type(op) is CountFingerprint:
                repeated = repeats.track(op, now, leads) if op.tracked else repeats.count(op, now)
                results.append(repeated)
                if not repeated[1] or not op.spec.denies or repeated[5] or repeated[6]:
                    continue
            elif denied and op.group in denied:
                results.append(None)
                continue
            elif op.check(limits, now, results, changes):
                continue
            denied.setdefault(op.group, len(results) - 1)
        if ENFORCED not in denied:
            if changes:
                _put_all(changes, denied, now)
            if leads:
                repeats.lead(leads, denied, now)
        self._write(windows, now)
        return CommitResult(results, denied.get(ENFORCED, -1), None, now)

    def _take(self, ops: Sequence[Op], rows: BucketRows, now: float) -> CommitResult | None:
        """Do the same for counts followed by buckets that all hold enough, as most requests find them: a third of the
        time. Returns None, and changes nothing, if a bucket is new or does not hold enough.
        """
        buckets = self._buckets
        lefts, tightest, changed = rows.lefts, rows.tightest, rows.full
        for entry in map(buckets.get, rows.keys):
            if entry is None or entry[0] > now:  # not all are full
                taken = _taken(rows, buckets, now)
                if taken is None:
                    return None
                lefts, tightest, changed = taken
                break
        results: list[Result]
        counts = len(ops) - len(lefts)
        if counts:
            first = ops[0]
            if counts == 1 and type(first) is CountFingerprint and not first.tracked:
                counted = self._repeats.count(first, now)  # as in `_count`, for a count alone
                results = [counted, *lefts]
                is_quiet = not counted[1]
                denied_at = 0 if counted[1] and first.group == ENFORCED and denies(first, counted) else -1
            else:
                results = []
                denied_at, is_quiet = self._count(ops[:counts], results, now)
                results += lefts
            if denied_at >= 0:
                results[counts:] = [None] * len(lefts)
                return CommitResult(results, denied_at, None, now)
            tightest = tightest + counts if is_quiet else -1
        else:
            results = list(lefts)
        move_to_end, dirty = buckets.move_to_end, buckets.dirty
        for key, left, refill_s in changed:
            buckets[key] = (now + refill_s, left, now)
            move_to_end(key)
        if dirty is not None:
            dirty.update(rows.unsaved)
        return CommitResult(results, -1, None, now, tightest)

    def _count(self, ops: Sequence[Op], results: list[Result], now: float) -> tuple[int, bool]:
        """Count, and lead flights. Returns the index of the count that denies the request, or -1, and whether none
        trips."""
        repeats, is_quiet = self._repeats, True
        leads: list[Lead] = []
        denied: dict[int, int] = {}
        for op in ops:
            assert type(op) is CountFingerprint  # noqa: S101 - see `Store.commit`
            repeated = repeats.track(op, now, leads) if op.tracked else repeats.count(op, now)
            if repeated[1]:
                is_quiet = False
                if op.spec.denies and not (repeated[5] or repeated[6]):
                    denied.setdefault(op.group, len(results))
            results.append(repeated)
        if leads and ENFORCED not in denied:
            repeats.lead(leads, denied, now)
        return denied.get(ENFORCED, -1), is_quiet

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        now = self._latest = now if now > self._latest else self._latest  # noqa: FURB136 - as in `commit`
        taken_back = 0
        for op in ops:
            if op.flight:
                self._repeats.land(op)
            if failed and self._repeats.take_back(op, now):
                taken_back += 1
        return taken_back

    def correct(self, ops: Sequence[AdjustCharge], now: float) -> None:
        now = self._latest = max(now, self._latest)
        for op in ops:
            op.spec.correct(self._limits, op, now)

    def remember(self, op: CountFingerprint, found: FingerprintCount, now: float) -> None:
        """Copy a tripped fingerprint from another store: it stays blocked here for as long as there."""
        now = self._latest = max(now, self._latest)
        self._repeats.remember(op, found, now)

    def remember_account(self, op: ChargeBudget, used: int, ends: float, now: float) -> None:
        """Copy an account from another store; `ends` is the end of its period in the time of this one."""
        now = self._latest = max(now, self._latest)
        op.remember(self._limits, used, ends, now)

    def account(self, key: str) -> int | None:
        """Return what is used of an account, or None if there is none."""
        entry = self._limits["spent"].get(key) or self._limits["accounts"].get(key)
        return None if entry is None or entry[0] <= self._latest else entry[1]

    def read_window(self, key: str, now: float) -> StoredWindow:
        entry = self._windows.get(key)
        return NO_WINDOW if entry is None or entry[0] <= now else _new(StoredWindow, (entry[1], entry[2]))

    def breakers(self, prefix: str, now: float, most: int) -> list[StoredBreaker]:
        return breakers_in_memory(self._limits, prefix, max(now, self._latest), most)

    def accounts(self, prefix: str, now: float, most: int) -> list[StoredAccount]:
        return accounts_in_memory(self._limits, prefix, max(now, self._latest), most)

    def look_up(self, prefix: str, most: int, ahead_s: float = 0.0) -> list[Mapping[str, object]]:
        """Return the entries whose key begins with a prefix, for operators. Scans the whole store. The time of day is
        `ahead_s` ahead of the store's.
        """
        found: list[Mapping[str, object]] = []
        for kind, table in self.kept().items():
            for key, entry in table.items():
                if key.startswith(prefix) and entry[0] > self._latest:
                    found.append({"key": key, "kind": kind, "expires_at": entry[0] + ahead_s, "value": _shown(entry)})
                    if len(found) >= most:
                        return found
        return found

    def drop(self, keys: Sequence[str]) -> None:
        for table in self._tables():
            for key in keys:
                table.discard(key)

    def _write(self, windows: Sequence[WindowWrite], now: float) -> None:
        for key, version, data, ttl_s, first, step in windows:
            if data is not None:
                becomes = version + step if version else first  # as `WindowWrite.becomes`
                self._windows.put(key, (now + ttl_s, becomes, data), now)

    def _newer(self, windows: Sequence[WindowWrite], now: float) -> dict[str, StoredWindow] | None:
        newer: dict[str, StoredWindow] | None = None
        for write in windows:
            entry = self._windows.get(write.key)
            if write.version != (0 if entry is None or entry[0] <= now else entry[1]):
                newer = newer or {}
                newer[write.key] = self.read_window(write.key, now)
        return newer


_Taken = tuple[
    Sequence[float], int, Sequence[tuple[str, float, float]]
]  # `lefts`, `tightest` and `full` of `BucketRows`


def _taken(rows: BucketRows, buckets: ExpiringTable, now: float) -> _Taken | None:
    """Return what buckets have left, which of them the smallest share, and how they change; None if one is new or does
    not hold enough. As `TakeTokens.check`.
    """
    lefts: list[float] = []
    changed: list[tuple[str, float, float]] = []
    least, tightest = 2.0, 0
    for key, (rate, burst, cost) in zip(rows.keys, rows.buckets, strict=True):
        entry = buckets.get(key)
        if entry is None:
            return None
        left = burst
        if entry[0] > now:
            left = entry[1] + (now - entry[2]) * rate
            if left > burst:
                left = burst
        left -= cost
        if left < 0.0:
            return None
        share = left / burst
        if share < least:
            least, tightest = share, len(lefts)
        lefts.append(left)
        changed.append((key, left, (burst - left) / rate))
    return lefts, tightest, changed


def _put_all(changes: Sequence[Change], denied: Mapping[int, int], now: float) -> None:
    """Store entries, unless their group is denied. Most replace one, as `ExpiringTable.put` does it; here without a
    call for each."""
    if denied:
        changes = [change for change in changes if change[0] not in denied]
    for _, table, key, entry in changes:
        if key not in table:
            table.put(key, entry, now)
            continue
        table[key] = entry
        table.move_to_end(key)
        if table.dirty is not None:
            table.dirty[key] = None


def _shown(entry: Entry) -> list[object]:
    """Return an entry in readable form: packed or long values are replaced by their size."""
    return [part if isinstance(part, int | float | str) else len(part) for part in entry[1:]]
