"""A look at `state.db` from outside, while its process runs or not: changes nothing, and sets nothing aside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from breakloop.state.durable_file import FILE, SCHEMA


class Look(NamedTuple):
    """What there is. `wrong` says why it could not be used, or is empty."""

    path: Path
    size: int
    changed_at: float
    entries: int = 0  # those that were overtaken and not cleared away yet are among them
    latest: float = 0.0  # the time it goes on from
    wrong: str = ""


def look(directory: Path) -> Look | None:
    """Look at the file of a data directory; None if there is none. Raises `OSError`."""
    path = directory / FILE
    found = [file.stat() for file in (path, path.with_name(f"{FILE}-wal")) if file.exists()]
    if not path.exists():
        return None
    about = Look(path, sum(one.st_size for one in found), max(one.st_mtime for one in found))
    if not about.size:
        return about
    # Without a log of changes nobody has it open, and then it can be read without making one.
    how = "mode=ro" if len(found) == 2 else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=1.0)) as db:
            return _read(db, about)
    except (sqlite3.Error, TypeError, ValueError) as error:
        return about._replace(wrong=str(error))


def _read(db: sqlite3.Connection, about: Look) -> Look:
    if db.execute("PRAGMA application_id").fetchone()[0] != SCHEMA.application_id:
        return about._replace(wrong="it is another program's database")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > len(SCHEMA.steps):
        return about._replace(wrong=f"it was written by a newer version (its form is {version})")
    if version < len(SCHEMA.steps):
        return about
    (entries,) = db.execute("SELECT coalesce(sum(entries), 0) FROM part").fetchone()
    latest = db.execute("SELECT value FROM meta WHERE name = 'latest'").fetchone()
    return about._replace(entries=entries, latest=float(latest[0]) if latest else 0.0)
