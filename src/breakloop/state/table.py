"""A bounded mapping with a time to live on every entry: the memory store's drawer.

Entries are tuples whose first item is the time they expire. Tuples of numbers are not tracked by the garbage
collector for long, so a million of them do not slow a collection down. The least recently used goes first.
Reading is the dictionary's own `get`, at the speed of C: whoever reads looks at the expiry himself.
Whoever saves it sets `dirty`, and finds there the keys that were changed; what has expired need not be saved.
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
        self._quiet_until = 0.0  # before that nothing has expired, as far as the oldest entry told
        self.evicted = 0  # dropped alive, for lack of room
        self.dirty: dict[str, None] | None = None  # changed or dropped since they were saved; None: nobody saves them

    def put(self, key: str, entry: Entry, now: float) -> None:
        """Store an entry as the most recently used."""
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
        """Store an entry in its place among the others."""
        self[key] = entry
        if self.dirty is not None:
            self.dirty[key] = None

    def discard(self, key: str) -> None:
        """Drop a key, if it is there."""
        if self.pop(key, None) is not None and self.dirty is not None:
            self.dirty[key] = None

    def live(self, key: str, now: float) -> Entry | None:
        """Return an entry that has not expired, or None."""
        entry = self.get(key)
        return None if entry is None or entry[0] <= now else entry

    def drop_prefix(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`. Walks everything: for operators, not for requests."""
        doomed = [key for key in self if key.startswith(prefix)]
        for key in doomed:
            self.discard(key)
        return len(doomed)

    def _make_room(self, now: float) -> None:
        """Clear away up to two expired entries for each new one, so that they go faster than anything comes."""
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
