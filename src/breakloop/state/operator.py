"""Operator state as data (SPEC S-1): what persons and detectors have ordered to hold until its time is over or somebody
lifts it. Here a record, and the ledger that keeps of each the newest; `operator_file` has it on disk, `operator_redis`
shares it with other instances, and what a record means is the business of `breakloop.operator`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

HOLD, SWITCH, OVERRIDE, SNOOZE, AGENT = "hold", "switch", "override", "snooze", "agent"
KINDS: Final = (HOLD, SWITCH, OVERRIDE, SNOOZE, AGENT)
LIFTED: Final = 0.0  # as `expires_at`: not over, but taken back
# A record that is over stays for a while, so that an instance that was away does not bring an older form of it back.
LIFTED_KEPT_S: Final = 30 * 86_400.0  # where a person took it back
OVER_KEPT_S: Final = 3_600.0

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Record:
    """One order. `value` is JSON; `changed_at` decides between two forms of the same record."""

    kind: str
    key: str
    value: dict[str, Any]
    expires_at: float  # infinite where only a person ends it
    changed_at: float

    @property
    def name(self) -> Name:
        """What tells it from others."""
        return self.kind, self.key

    def live(self, now: float) -> bool:
        """Tell whether it is in force."""
        return self.expires_at > now

    def stale(self, now: float) -> bool:
        """Tell whether nobody needs to know of it any more."""
        if self.expires_at > now:
            return False
        kept_s = LIFTED_KEPT_S if self.value.get("by") and self.expires_at == LIFTED else OVER_KEPT_S
        return max(self.expires_at, self.changed_at) + kept_s <= now

    def text(self) -> str:
        """Write it as one line of ASCII. The time of change comes first: the script in Redis reads it."""
        expires_at = None if self.expires_at == math.inf else self.expires_at
        parts = [self.changed_at, self.kind, self.key, expires_at, self.value]
        return json.dumps(parts, separators=(",", ":"), allow_nan=False)


def read(text: str | bytes) -> Record | None:
    """Read what `Record.text` wrote; None where it is something else."""
    try:
        changed_at, kind, key, expires_at, value = json.loads(text)
        ends = math.inf if expires_at is None else float(expires_at)
        if isinstance(kind, str) and isinstance(key, str) and isinstance(value, dict):
            return Record(kind, key, value, ends, float(changed_at))
    except (ValueError, TypeError, RecursionError):
        pass
    return None


class Ledger:
    """Of every record the newest form, also of what is over, until it is stale."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, Record]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    def get(self, kind: str, key: str) -> Record | None:
        """Return the newest form of a record."""
        return self._kinds.get(kind, {}).get(key)

    def live(self, kind: str, now: float) -> list[Record]:
        """Return what is in force of one kind, in the order in which it was first heard of."""
        return [record for record in self._kinds.get(kind, {}).values() if record.expires_at > now]

    def all(self) -> list[Record]:
        """Return everything."""
        return [record for records in self._kinds.values() for record in records.values()]

    def stale(self, now: float) -> list[Record]:
        """Return what can be forgotten."""
        return [record for record in self.all() if record.stale(now)]

    def take(self, records: Iterable[Record]) -> list[Record]:
        """Take what is newer than what is known, or as new and different; return that."""
        won = []
        for record in records:
            known = self.get(record.kind, record.key)
            if known is None or (record.changed_at >= known.changed_at and record != known):
                self._kinds.setdefault(record.kind, {})[record.key] = record
                won.append(record)
        return won

    def forget(self, records: Iterable[Record]) -> None:
        """Drop these, unless they have changed."""
        for record in records:
            if self.get(record.kind, record.key) == record:
                del self._kinds[record.kind][record.key]

    def next_change(self, kind: str, key: str, now: float) -> float:
        """Return the time of a change that is made now: later than the last one, whosever clock that went by."""
        known = self.get(kind, key)
        return now if known is None or known.changed_at < now else math.nextafter(known.changed_at, math.inf)


class Book(Protocol):
    """Who keeps the ledger. Nothing here raises: what cannot be kept is reported, and tried again by `tick`."""

    @property
    def ledger(self) -> Ledger:
        """What is known."""
        ...

    on_change: Callable[[Sequence[Record]], None] | None  # hears of what others have changed

    def load(self) -> None:
        """Fill the ledger with what was kept."""
        ...

    def put(self, records: Sequence[Record], *, at_once: bool = True) -> list[Record]:
        """Take records into the ledger; on disk when this returns. If not `at_once` they are in the system's hands
        then, so that they survive this process, and on disk with the next `tick`.

        Returns those that are newer than what was known.
        """
        ...

    def tick(self, now: float) -> None:
        """Do what is due: a few times a second."""
        ...

    async def ready(self, timeout_s: float) -> bool:
        """Wait until the ledger has what others have ordered before; tell whether it has."""
        ...

    async def settled(self, timeout_s: float) -> bool:
        """Wait until everything put so far is where it must be; tell whether it is."""
        ...

    async def close(self) -> None:
        """Write what is left and let go."""
        ...
