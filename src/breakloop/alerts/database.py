"""The file of alerts, `alerts.db` in the data directory: its tables, and one transaction at a time from any thread. It
holds secrets of webhooks, so only its owner can read it (`state.sqlite_file` sees to that)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Final, TypeVar

from breakloop.state.sqlite_file import Report, Schema, SqliteFile

T = TypeVar("T")

FILE: Final = "alerts.db"
SCHEMA: Final = Schema(
    0x424C_414C,
    (
        (
            "CREATE TABLE webhook (id TEXT PRIMARY KEY, url TEXT, events TEXT, secret TEXT, old_secret TEXT, "
            "old_until REAL, allow_private INTEGER, created_at REAL, disabled TEXT) WITHOUT ROWID"
        ),
        (
            "CREATE TABLE delivery (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, target TEXT, event TEXT, body TEXT, "
            "order_key TEXT, critical INTEGER, made_at REAL, tries INTEGER, next_at REAL, state TEXT, status INTEGER, "
            "error TEXT, ended_at REAL)"
        ),
        "CREATE INDEX delivery_due ON delivery (target, next_at) WHERE state = 'waiting'",
        "CREATE INDEX delivery_order ON delivery (target, order_key, seq) WHERE state = 'waiting'",
        "CREATE INDEX delivery_ended ON delivery (state, ended_at) WHERE state != 'waiting'",
        "CREATE TABLE standing (rule TEXT, key TEXT, text TEXT, PRIMARY KEY (rule, key)) WITHOUT ROWID",
    ),
)


class Database:
    """The file. `on_new` writes what its owners still know into one that had to be begun anew."""

    def __init__(self, folder: Path, report: Report) -> None:
        self._file = SqliteFile(folder / FILE, SCHEMA, report)
        self._lock = RLock()
        self.on_new: list[Callable[[sqlite3.Connection], None]] = []

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in one transaction, on disk when this returns. Raises `StateError`."""
        with self._lock:
            made = self._file.made
            result = self._file.run(work)
            if self._file.made != made:
                self._file.run(self._fill)
            return result

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._file.close()

    def _fill(self, connection: sqlite3.Connection) -> None:
        for write in self.on_new:
            write(connection)
