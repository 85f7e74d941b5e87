"""How alert rules stand, on disk: read at the start, and written in the same transaction as the deliveries that come of
it, so that a restart neither tells of a loop again nor forgets that it is to tell of its end."""

from __future__ import annotations

import sqlite3

from breakloop.alerts.database import Database
from breakloop.alerts.router import Change, Router, Standing

_LAST = ""  # the subject under which it is kept when a rule last told


def load(database: Database, router: Router) -> None:
    """Let a router go on where it was; what belongs to rules that are no more is removed. Raises `StateError`."""
    rows = database.run(lambda file: file.execute("SELECT rule, key, text FROM standing").fetchall())
    names = {rule.name for rule in router.rules}
    change = Change()
    for rule, key, text in rows:
        standing = _read(text) if rule in names and key != _LAST else None
        if rule in names and key == _LAST:
            change.last_at[rule] = float(text)
        elif standing is not None:
            change.standings[rule, key] = standing
    router.accept(change)
    gone = {row[0] for row in rows} - names
    database.run(lambda file: file.executemany("DELETE FROM standing WHERE rule = ?", [(name,) for name in gone]))
    database.on_new.append(lambda file: write(file, Change(standings=dict(router.known))))


def write(file: sqlite3.Connection, change: Change) -> None:
    """Write what has changed."""
    for (rule, key), standing in change.standings.items():
        if standing is None:
            file.execute("DELETE FROM standing WHERE rule = ? AND key = ?", (rule, key))
        else:
            file.execute("INSERT OR REPLACE INTO standing VALUES (?, ?, ?)", (rule, key, standing.text()))
    for rule, at in change.last_at.items():
        file.execute("INSERT OR REPLACE INTO standing VALUES (?, ?, ?)", (rule, _LAST, str(at)))


def _read(text: str) -> Standing | None:
    try:
        return Standing.read(text)
    except (ValueError, TypeError):  # of another version
        return None
