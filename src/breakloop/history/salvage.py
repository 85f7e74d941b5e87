"""Copies what can still be read of a damaged SQLite file into the new one.

SQLite reports a bad page only to those who read it, so tables without one are whole. In the others, walking from both
ends reaches all rows but those between the first and the last bad page.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import Table

from breakloop.history.schema import METADATA

_ROWS_MAX: Final = 100_000  # per walk; meanwhile nothing else is read or written


def readable(raw: bytes) -> str:
    """Return the text of a column. One that is not UTF-8 must not make the other rows unreadable."""
    return raw.decode("utf-8", "replace")


def take_over(damaged: Path, new: sqlite3.Connection) -> int:
    """Copy rows within the transaction of the caller, the newest of each table first; return how many."""
    before = new.total_changes
    try:
        with closing(sqlite3.connect(damaged)) as old:
            old.text_factory = readable
            for table in METADATA.sorted_tables:
                _copy(table, old, new)
    except sqlite3.Error:
        pass  # nothing of it can be read
    return new.total_changes - before


def _copy(table: Table, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    names = ", ".join(column.name for column in table.columns)
    key = [column.name for column in table.primary_key.columns]
    adding = f"INSERT OR IGNORE INTO {table.name} ({names}) VALUES ({', '.join('?' for _ in table.columns)})"  # noqa: S608 - names of the schema
    for order in (["rowid"], key):  # a table without row ids is stored in the order of its key
        for way in ("DESC", "ASC"):
            ordered = ", ".join(f"{name} {way}" for name in order)
            reading = f"SELECT {names} FROM {table.name} ORDER BY {ordered} LIMIT {_ROWS_MAX}"  # noqa: S608 - as above
            rows = _Rows(old, reading)
            new.executemany(adding, rows)
            if rows.complete:
                return


class _Rows:
    """The rows of a query up to the first that cannot be read."""

    def __init__(self, connection: sqlite3.Connection, query: str) -> None:
        self._connection = connection
        self._query = query
        self.complete = False

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        try:
            yield from self._connection.execute(self._query)
        except sqlite3.DatabaseError:
            return
        self.complete = True
