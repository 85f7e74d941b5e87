"""What is still true of old rows of `state.db`, packed anew to take their place (and their order: the least recently
used stay first). Which rows is `durable_rows`' to say, the writing is `durable_file`'s."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from breakloop.state.durable_file import Change, StateFile
from breakloop.state.durable_pack import PART_BYTES, WINDOWS, Pack, Packer, Part, at_once
from breakloop.state.durable_rows import Row
from breakloop.state.table import Entry, Table

T = TypeVar("T")


class Aside(Protocol):
    """Runs something slow in a thread."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Return what it returns, or raise what it raises."""
        ...


async def tidied(change: Change, file: StateFile, tables: dict[str, Table], aside: Aside) -> Change:
    """Add to a save what is still true of the oldest rows, where too much was overtaken. Raises `StateError`."""
    saved_bytes = sum(len(part.data) for part in change.parts)
    old = () if change.whole else file.rows.overtaken(saved_bytes, len(change.parts))
    if not old:
        return change
    sieve = Sieve(old, tables, change.now)
    doubtful = []
    for row in old:
        if not sieve.overtaken(row):
            doubtful.append(row)
        await asyncio.sleep(0)
    packs = await aside(partial(file.read, doubtful)) if doubtful else []
    packs.reverse()
    while packs:  # each is freed with its turn: all together would take 20 ms
        sieve.sift(packs.pop())
        await asyncio.sleep(0)
    return change._replace(old=old, instead=sieve.left())


class Sieve:
    """Takes packs one by one. What it keeps is never more rows than there were."""

    __slots__ = ("_now", "_old", "_packer", "_seen", "_some", "_tables")

    def __init__(self, old: Sequence[Row], tables: dict[str, Table], now: float) -> None:
        self._old = old
        self._tables = tables
        self._now = now
        self._packer = Packer(max(PART_BYTES, 2 * sum(row.size for row in old) // len(old)))
        self._some: dict[str, tuple[list[str], list[Entry | None]]] = {name: ([], []) for name in tables}
        self._seen = 0

    def overtaken(self, row: Row) -> bool:
        """Whether nothing of a row is true any more, as far as that is seen from its versions."""
        if row.versions is None:
            return False
        table = self._tables[WINDOWS]
        unsaved = table.dirty or {}
        for key, version in row.versions.items():
            entry = table.get(key)
            if key in unsaved or (entry is not None and entry[1] == version and entry[0] > self._now):
                return False
        self._seen += len(row.versions)
        return True

    def sift(self, pack: Pack) -> None:
        """Keep what is as it is in memory, for then it may be the newest that was saved. And what was changed since it
        was saved: then the newest is this, or behind it."""
        self._seen += len(pack.keys)
        table = self._tables[pack.table]
        unsaved = table.dirty or {}
        keys, entries = self._some[pack.table]
        for key, entry, current in zip(pack.keys, pack.entries, map(table.get, pack.keys), strict=True):
            if (entry == current and entry is not None and entry[0] > self._now) or key in unsaved:
                keys.append(key)
                entries.append(entry)
        if len(keys) >= at_once(pack.table):
            self._flush(pack.table)

    def _flush(self, name: str) -> None:
        self._packer.add(name, *self._some[name])
        self._some[name] = [], []

    def left(self) -> list[Part] | None:
        """Return what takes the place of the rows; None: they are best left as they are."""
        for name in self._some:
            self._flush(name)
        parts = self._packer.close()
        all_true = sum(part.entries for part in parts) == self._seen
        return None if all_true and len(parts) >= len(self._old) else parts
