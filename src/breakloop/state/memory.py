"""The in-process store (`memory://`): a commit is a plain function call. Bounded, with a time to live on everything.

The bytes: one table a family of keys, each entry a tuple that begins with the time it expires. Here is what makes a
commit, and the windows; `memory_repeats` counts, `memory_limits` keeps buckets, accounts and breakers. Survival of
restarts is the durable companion's work, not this file's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from breakloop.state.memory_limits import Charge, Limits
from breakloop.state.memory_repeats import Lead, Repeats
from breakloop.state.ops import (
    ENFORCED,
    Breaker,
    BreakerKept,
    Bucket,
    Committed,
    Correct,
    Op,
    Refuse,
    Repeat,
    Repeated,
    Result,
    Settle,
    Spend,
    Window,
    WindowWrite,
)
from breakloop.state.table import Entry, Table

_NO_WINDOW: Final = Window(0, b"")
_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes


class MemoryStore:
    """Counts, limits and windows of one process."""

    __slots__ = ("_latest", "_limits", "_repeats", "_windows")

    def __init__(self, max_entries: int = 1_000_000) -> None:
        self._repeats = Repeats(max_entries)
        self._limits = Limits(max_entries)
        self._windows = Table(max(1, max_entries // 10))
        self._latest = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._tables()))

    @property
    def evicted(self) -> int:
        """How many live entries had to go for lack of room."""
        return sum(table.evicted for table in self._tables())

    def _tables(self) -> tuple[Table, ...]:
        return (*self._repeats.tables(), *self._limits.tables(), self._windows)

    def kept(self) -> dict[str, Table]:
        """Return what should outlive the process, by the names it has on disk."""
        counted = {"counts": self._repeats.counts, "cooldowns": self._repeats.cooldowns}
        limits = self._limits
        spent = {"accounts": limits.accounts, "rates": limits.rates, "open": limits.open}
        return {**counted, "buckets": limits.buckets, **spent, "windows": self._windows}

    @property
    def latest(self) -> float:
        """The latest time it was told: from there it goes on."""
        return self._latest

    def resume(self, at: float) -> None:
        """Go on from where another life ended, also where the clock stepped back meanwhile."""
        self._latest = max(self._latest, at)

    def commit(self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = ()) -> Committed:
        """Carry out `ops` in one; see `state.store`."""
        # A clock that stepped back stands still here: nothing refills twice.
        now = self._latest = now if now > self._latest else self._latest  # noqa: FURB136 - half the time of `max`
        newer = self._newer(windows, now) if windows else None
        if newer is not None:
            return Committed([], -1, newer, now)
        limits, repeats = self._limits, self._repeats
        results: list[Result] = []
        charges: list[Charge] = []
        leads: list[Lead] = []
        denied: dict[int, int] = {}  # group -> index of the operation that denied it first
        result: Result
        for op in ops:
            if type(op) is Repeat:
                result = repeated = repeats.track(op, now, leads) if op.tracked else repeats.count(op, now)
                passes = not (repeated[1] and op.spec.denies)
            elif op.group in denied:
                result, passes = None, True
            elif type(op) is Bucket:
                result = left = limits.left(op, now)
                charges.append((op, left))  # what is denied is not charged: its group is not
                passes = left >= 0.0
            elif type(op) is Spend:
                result = used = limits.used(op, now)
                charges.append((op, used))
                passes = used <= op.spec.budget
            else:
                result, passes = self._less_often(op, now)
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
        return Committed(results, denied.get(ENFORCED, -1), None, now)

    def _less_often(self, op: Op, now: float) -> tuple[Result, bool]:
        """Do what few commits carry; return its result, and whether it lets the request pass."""
        if type(op) is Breaker:
            broken = self._limits.meter(op, now)
            return broken, not broken[0]
        return None, type(op) is not Refuse

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        """Say that requests have ended; see `state.store`."""
        now = self._latest = max(now, self._latest)
        taken_back = 0
        for op in ops:
            if op.flight:
                self._repeats.land(op)
            if failed and self._repeats.take_back(op, now):
                taken_back += 1
        return taken_back

    def correct(self, ops: Sequence[Correct], now: float) -> None:
        """Correct what was charged; see `state.store`."""
        now = self._latest = max(now, self._latest)
        for op in ops:
            self._limits.correct(op, now)

    def remember(self, op: Repeat, found: Repeated, now: float) -> None:
        """Take over what another store has found tripped: it stays blocked here as long as it would there."""
        now = self._latest = max(now, self._latest)
        self._repeats.remember(op, found, now)

    def read_window(self, key: str, now: float) -> Window:
        """Return the session window under `key`, with version 0 if there is none."""
        entry = self._windows.get(key)
        return _NO_WINDOW if entry is None or entry[0] <= now else _new(Window, entry[1:])

    def breakers(self, prefix: str, now: float, most: int) -> list[BreakerKept]:
        """Return the breakers whose key begins with `prefix`, open ones first."""
        return self._limits.breakers(prefix, max(now, self._latest), most)

    def look_up(self, prefix: str, most: int) -> list[Mapping[str, object]]:
        """Return what is kept under keys that begin so, for operators. Walks everything."""
        found: list[Mapping[str, object]] = []
        for kind, table in self.kept().items():
            for key, entry in table.items():
                if key.startswith(prefix) and entry[0] > self._latest:
                    found.append({"key": key, "kind": kind, "expires_at": entry[0], "value": _shown(entry)})
                    if len(found) >= most:
                        return found
        return found

    def drop(self, keys: Sequence[str]) -> None:
        """Drop what is kept under these very keys."""
        for table in self._tables():
            for key in keys:
                table.discard(key)

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`."""
        parts = (self._repeats.forget(prefix), self._limits.forget(prefix), self._windows.drop_prefix(prefix))
        return sum(parts)

    def _newer(self, windows: Sequence[WindowWrite], now: float) -> dict[str, Window] | None:
        newer: dict[str, Window] | None = None
        for write in windows:
            entry = self._windows.get(write.key)
            if write.version != (0 if entry is None or entry[0] <= now else entry[1]):
                newer = newer or {}
                newer[write.key] = self.read_window(write.key, now)
        return newer


def _shown(entry: Entry) -> list[object]:
    """Return an entry for people: of what is packed or long, its size."""
    return [part if isinstance(part, int | float | str) else len(part) for part in entry[1:]]
