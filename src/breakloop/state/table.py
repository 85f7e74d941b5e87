"""A bounded mapping with a time to live on every entry: the memory store's drawer.

Entries are tuples whose first item is the time they expire. Tuples of numbers are not tracked by the garbage
collector for long, so a million of them do not slow a collection down. The least recently used goes first.
Reading is the dictionary's own `get`, at the speed of C: whoever reads looks at the expiry himself.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

Entry = tuple[Any, ...]  # (expires, ...): the rest is its owner's


class Table(OrderedDict[str, Entry]):
    """Constant time throughout; memory is bounded by `max_entries`."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self.max_entries = max_entries
        self.evicted = 0  # dropped alive, for lack of room

    def put(self, key: str, entry: Entry, now: float) -> None:
        """Store an entry as the most recently used."""
        if key in self:
            self[key] = entry
            self.move_to_end(key)
        else:
            self._make_room(now)
            self[key] = entry

    def live(self, key: str, now: float) -> Entry | None:
        """Return an entry that has not expired, or None."""
        entry = self.get(key)
        return None if entry is None or entry[0] <= now else entry

    def drop_prefix(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`. Walks everything: for operators, not for requests."""
        doomed = [key for key in self if key.startswith(prefix)]
        for key in doomed:
            del self[key]
        return len(doomed)

    def _make_room(self, now: float) -> None:
        """Clear away up to two expired entries for each new one, so that they go faster than anything comes."""
        for _ in (1, 2):
            if not self:
                return
            key = next(iter(self))
            if self[key][0] > now:
                break
            del self[key]
        if len(self) >= self.max_entries:
            self.popitem(last=False)
            self.evicted += 1
