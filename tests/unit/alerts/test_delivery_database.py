"""The file: one transaction at a time, and what is known is written into a new one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from breakloop.alerts.delivery import FILE, AlertDatabase
from breakloop.store.sqlite import SqliteTrouble


def tables(database: AlertDatabase) -> set[str]:
    sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
    return {row[0] for row in database.run(lambda file: file.execute(sql).fetchall())}


def test_tables_are_made_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    """It holds the secrets of webhooks (Y-1)."""
    database = AlertDatabase(tmp_path, lambda _trouble: None)
    assert tables(database) == {"webhook", "delivery", "standing"}
    database.close()
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_is_begun_anew_with_what_is_known(tmp_path: Path) -> None:
    """Webhooks outlive the file they were kept in (G-4)."""
    told: list[SqliteTrouble] = []
    database = AlertDatabase(tmp_path, told.append)
    assert tables(database)

    def remembered(file: sqlite3.Connection) -> None:
        file.execute("INSERT INTO standing VALUES ('r', 'k', 't')")

    database.on_new.append(remembered)
    database.close()
    for path in tmp_path.iterdir():
        path.write_bytes(b"damaged" * 1000)
    rows = database.run(lambda file: file.execute("SELECT count(*) FROM delivery").fetchall())
    assert rows == [(0,)]
    assert database.run(lambda file: file.execute("SELECT * FROM standing").fetchall()) == [("r", "k", "t")]
    assert "renamed to" in told[0].done
    database.close()
