"""Persistence of the memory store: changes are saved every 0.75 seconds, so that `kill -9` loses about a second.

Entries are gathered on the event loop in small steps and written in a thread. Without a usable file the process runs
normally, but nothing is saved. The file format is in `snapshot_file`; operator state is stored separately
(`orders`).

`SnapshotLock` allows one process at a time per data directory and is released when the process ends for any reason.
`look` reads `state.db` without changing it, whether or not its process is running.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple
from urllib.parse import quote

from breakloop.clock import Clock
from breakloop.errors import StateError
from breakloop.store.memory import MemoryStore
from breakloop.store.snapshot_file import (
    FILE,
    SCHEMA,
    EntryBatch,
    EntryPacker,
    RunInThread,
    SegmentChange,
    StateFile,
    at_once,
    tidied,
)
from breakloop.store.sqlite import SqliteTrouble


class SnapshotLock:
    """A lock on a separate file, which is never deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self) -> str:
        """Take the lock; return why that is not possible, or an empty string."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            return error.strerror or str(error)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return "another process uses this data directory"
        except OSError as error:
            os.close(descriptor)
            return error.strerror or str(error)
        self._descriptor = descriptor
        return ""

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


_FINISH_S: Final = 5.0
_IN_VAIN: Final = 20_000  # entries gathered for a failed save, per second of delay before the next attempt


class Snapshotter:
    """Loads a store before traffic, saves it every second, and once more on shutdown."""

    def __init__(
        self, store: MemoryStore, directory: Path | None, clock: Clock, problem: Callable[[str], None]
    ) -> None:
        self.problems = 0  # failed saves, and files that could not be used
        self.saved_at = 0.0
        self._store = store
        self._tables = store.kept()
        self._directory = directory
        self._clock = clock
        self._problem = problem
        self._lock: SnapshotLock | None = None
        self._file: StateFile | None = None
        self._troubles: list[SqliteTrouble] = []  # reported by a thread
        self._whole = False  # the file is incomplete: everything has to be written
        self._taken: dict[str, dict[str, None]] | None = None  # keys that are being saved
        self._rest_until = 0.0

    @property
    def keeps(self) -> bool:
        """Whether the store is currently being saved."""
        return self._file is not None and not self._file.troubles.current

    # -- start and end ---------------------------------------------------------------------------------------------

    def load(self) -> int:
        """Fill the empty store with the saved entries; return how many there were. Never fails: `problem` is called
        instead.
        """
        if self._directory is None:
            return 0
        lock = SnapshotLock(self._directory / "state.lock")
        why = lock.take()
        if why:
            self.problems += 1
            self._problem(
                f"{self._directory / FILE} is not used ({lock.path}: {why}): counters are in memory only and are "
                f"lost when this process ends; give each process its own data_dir, or share state through Redis"
            )
            return 0
        self._lock = lock
        self._file = file = StateFile(self._directory, self._troubles.append, self._clock)
        self._fill(file)
        for table in self._tables.values():
            table.dirty = {}
        self._tell()
        return sum(map(len, self._tables.values()))

    def _fill(self, file: StateFile) -> None:
        for _ in range(2):  # the second attempt uses a new file, after the old one was set aside
            try:
                file.load(self._take, self._resume)
            except StateError:
                for table in self._tables.values():
                    table.clear()
                continue
            return
        self._whole = True

    def _take(self, pack: EntryBatch) -> None:
        table, now = self._tables[pack.table], self._clock.steady()
        for key, entry in zip(pack.keys, pack.entries, strict=True):
            if entry is None or entry[0] <= now:
                table.pop(key, None)
            else:
                table.put(key, entry, now)

    def _resume(self, latest: float, ahead_s: float) -> None:
        """Continue the time of the previous process: it went on since, and never back, however the clock was set."""
        if latest:
            self._clock.resume(max(latest, self._clock.now() - ahead_s))
            self._store.resume(latest)

    def finish(self, timeout_s: float = _FINISH_S) -> None:
        """Save the remaining changes and close the file; gives up after `timeout_s`."""
        file, self._file = self._file, None
        if file is None:
            return
        self._put_back()
        ending = _Ending(file, self._gathered())
        ending.join(timeout_s)
        if ending.another:
            self._whole = True
            ending = _Ending(file, self._gathered())
            ending.join(timeout_s)
        self._tell()
        if ending.is_alive():
            self.problems += 1
            self._problem(f"{file.path} could not be written within {timeout_s:.0f} s: the last second is lost")
            return
        file.finish()
        if self._lock is not None:
            self._lock.release()

    def _gathered(self) -> SegmentChange:
        packer = EntryPacker()
        for name, keys in self._changed().items():
            for some in _slices(keys, at_once(name)):
                self._gather(packer, name, some)
        return self._change(packer)

    # -- once a second ---------------------------------------------------------------------------------------------

    async def save(self, aside: RunInThread) -> None:
        """Save the changes since the last save. Saves never overlap; a failure is reported and retried."""
        file = self._file
        if file is None or self._taken is not None or self._clock.steady() < self._rest_until:
            return
        try:
            saved = await self._save(file, aside)
        except StateError:
            saved = False
        except BaseException:  # cancelled: the final save includes it
            self._put_back()
            raise
        if saved:
            self._whole = False
            self.saved_at = self._clock.now()
            await self._free()
        else:
            self.problems += not self._troubles  # failures reported by the thread are counted when they are passed on
            self._rest_until = self._clock.steady() + self._put_back() / _IN_VAIN
        self._tell()

    async def _save(self, file: StateFile, aside: RunInThread) -> bool:
        packer = EntryPacker()
        for name, keys in self._changed().items():
            packer.close()  # each part has entries of one table, which is easier to inspect
            for some in _slices(keys, at_once(name)):
                self._gather(packer, name, some)
                await asyncio.sleep(0)
        change = await tidied(self._change(packer), file, self._tables, aside)
        if not (change.parts or change.old or change.whole or file.rows.expired(change.now)):
            return True
        saved: bool = await aside(partial(file.write, change))
        self._whole = self._whole or not saved
        return saved

    def _changed(self) -> dict[str, dict[str, None]]:
        """Take the keys to save; later changes belong to the next save."""
        taken: dict[str, dict[str, None]] = {}
        for name, table in self._tables.items():
            # Copying all keys takes 10 ms per 100,000. It is necessary only after the file was lost.
            taken[name] = dict.fromkeys(table) if self._whole else table.dirty or {}
            table.dirty = {}
        self._taken = taken
        return taken

    def _put_back(self) -> int:
        """Mark the taken keys as unsaved again; return how many there were."""
        taken, self._taken = self._taken, None
        if taken is None:
            return 0
        count = sum(map(len, taken.values()))
        for name, table in self._tables.items():
            keys = taken[name]
            keys.update(table.dirty or {})
            # Dropped keys are also recorded until they are saved, but not without a bound.
            self._whole = self._whole or len(keys) > table.max_entries
            table.dirty = keys
        if self._whole:
            for table in self._tables.values():
                table.dirty = None
        return count

    async def _free(self) -> None:
        """Release the saved entries in small steps."""
        taken, self._taken = self._taken, None
        for name, keys in taken.items() if taken else ():
            while keys:
                for _ in range(min(len(keys), at_once(name))):
                    keys.popitem()
                await asyncio.sleep(0)

    def _gather(self, packer: EntryPacker, name: str, keys: list[str]) -> None:
        """Pack some entries in their current state. A key that was dropped since it was taken is left to the next save,
        together with its replacement (the cooldown of a count).
        """
        table = self._tables[name]
        entries = list(map(table.get, keys))
        if not all(entries):
            later = table.dirty or {}
            still = [number for number, entry in enumerate(entries) if entry is not None or keys[number] not in later]
            keys, entries = [keys[number] for number in still], [entries[number] for number in still]
        packer.add(name, keys, entries)

    def _change(self, packer: EntryPacker) -> SegmentChange:
        latest = self._store.latest
        clock = self._clock
        now = max(latest, clock.steady())
        return SegmentChange(packer.close(), latest, now, self._whole, ahead_s=clock.ahead_s)

    # -- reporting ------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Pass on what the file has reported."""
        troubles = self._troubles[:]
        del self._troubles[: len(troubles)]
        for trouble in troubles:
            self.problems += bool(trouble.wrong)
            self._problem(_text(trouble))


class _Ending(Thread):
    """The final save, in a daemon thread that does not keep the process alive if the disk hangs."""

    def __init__(self, file: StateFile, change: SegmentChange) -> None:
        super().__init__(daemon=True)
        self.another = False  # the file is not the one that was written
        self._file = file
        self._last = change
        self.start()

    def run(self) -> None:
        """Save; failures are reported by the file."""
        with suppress(StateError):
            self.another = not self._file.write(self._last)


def _text(trouble: SqliteTrouble) -> str:
    if not trouble.wrong:
        return f"{trouble.file}: {trouble.done}"
    remedy = "counters stay in memory; fix the data directory (space, permissions); writing is retried every second"
    if "renamed to" in trouble.done:
        remedy = "counters that were only in it start from zero; you can inspect or delete the file at any time"
    elif "in use" in trouble.wrong:
        remedy = "everything is written again; stop the process before you change its files"
    return f"{trouble.file}: {trouble.wrong}: {trouble.done} ({remedy})"


def _slices(keys: Iterable[str], count: int) -> Iterator[list[str]]:
    left = iter(keys)
    while some := list(islice(left, count)):
        yield some


class SnapshotView(NamedTuple):
    """The contents of a snapshot file. `wrong` is why it could not be used, or empty."""

    path: Path
    size: int
    changed_at: float
    entries: int = 0  # includes overwritten entries that have not been removed yet
    latest: float = 0.0  # the time of day of the last change
    wrong: str = ""


def look(directory: Path) -> SnapshotView | None:
    """Read the file of a data directory; None if there is none. Raises `OSError`."""
    path = directory / FILE
    found = [file.stat() for file in (path, path.with_name(f"{FILE}-wal")) if file.exists()]
    if not path.exists():
        return None
    about = SnapshotView(path, sum(one.st_size for one in found), max(one.st_mtime for one in found))
    if not about.size:
        return about
    # Without a write-ahead log no process has it open, and it can be read without creating one.
    how = "mode=ro" if len(found) == 2 else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=1.0)) as db:
            return _read(db, about)
    except (sqlite3.Error, TypeError, ValueError) as error:
        return about._replace(wrong=str(error))


def _read(db: sqlite3.Connection, about: SnapshotView) -> SnapshotView:
    if db.execute("PRAGMA application_id").fetchone()[0] != SCHEMA.application_id:
        return about._replace(wrong="it is another program's database")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > len(SCHEMA.steps):
        return about._replace(wrong=f"it was written by a newer version (schema {version})")
    if version < len(SCHEMA.steps):
        return about
    (entries,) = db.execute("SELECT coalesce(sum(entries), 0) FROM part").fetchone()
    meta = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('latest', 'ahead_s')"))
    return about._replace(entries=entries, latest=float(meta.get("latest", 0.0)) + float(meta.get("ahead_s", 0.0)))
