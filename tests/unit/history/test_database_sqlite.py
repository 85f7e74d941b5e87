"""A SQLite file that may fail in any way: set aside, tried again, reported; and traffic never hears of it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from breakloop.errors import HistoryError
from breakloop.history.database import APPLICATION_ID, SqliteBackend
from breakloop.history.schema import STEPS
from breakloop.history.store import History
from breakloop.model.records import EventFilter
from tests.histories import NOTHING, Past, told


def write(history: History, name: str = "e") -> None:
    history.write([told(name, 1.0)], NOTHING(), 1.0)


def names(history: History) -> list[str]:
    return [event.name for event in history.events(EventFilter())]


def quick(past: Past) -> History:
    """One that does not wait for locks."""
    made = past.open()
    made._database._backend._busy_s = 0.01  # type: ignore[attr-defined]
    return made


def test_a_new_file(sqlite_past: Past) -> None:
    """Only its owner reads it. It can shrink, and is written beside readers (Y-1)."""
    history = sqlite_past.open()
    assert not Path(sqlite_past.where).exists()
    write(history)
    assert Path(sqlite_past.where).stat().st_mode & 0o777 == 0o600
    file = sqlite3.connect(sqlite_past.where)
    pragmas = [file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("auto_vacuum", "journal_mode", "user_version")]
    assert pragmas == [2, "wal", 1 + len(STEPS)]
    assert file.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    file.close()
    assert sqlite_past.troubles == []


def test_it_outlives_the_process(sqlite_past: Past) -> None:
    history = sqlite_past.open()
    write(history)
    history.close()
    assert names(sqlite_past.open()) == ["e"]
    assert names(history) == ["e"]


def test_folders_on_the_way_are_made(sqlite_past: Past) -> None:
    sqlite_past.where = str(Path(sqlite_past.where).parent / "a" / "b" / "h.db")
    write(sqlite_past.open())
    assert Path(sqlite_past.where).is_file()


def aside(past: Past) -> list[str]:
    folder = Path(past.where).parent
    return sorted(
        path.name for path in folder.iterdir() if path.name.startswith("history.db.") and "-wal" not in path.name
    )


def test_a_damaged_file_is_set_aside(sqlite_past: Past) -> None:
    """And a new one is begun; the old one stays to be looked at (G-2)."""
    Path(sqlite_past.where).write_bytes(b"not a database, and long enough to be one" * 100)
    history = sqlite_past.open()
    write(history)
    assert names(history) == ["e"]
    assert aside(sqlite_past) == ["history.db.damaged-1"]
    (trouble,) = sqlite_past.troubles
    assert trouble.wrong == "damaged: file is not a database"
    assert trouble.done.endswith("history.db.damaged-1, and a new file was created")


def test_another_programs_file_is_set_aside_unchanged(sqlite_past: Past) -> None:
    file = sqlite3.connect(sqlite_past.where)
    file.execute("CREATE TABLE theirs (x)")
    file.commit()
    file.close()
    before = Path(sqlite_past.where).read_bytes()
    write(sqlite_past.open())
    assert (Path(sqlite_past.where).parent / "history.db.foreign-1").read_bytes() == before
    assert sqlite_past.troubles[0].wrong == "foreign: another program's database"


def test_a_newer_file_is_set_aside(sqlite_past: Past) -> None:
    """After going back to an earlier version: what the newer one wrote is not lost."""
    history = sqlite_past.open()
    write(history, "newer")
    history.close()
    file = sqlite3.connect(sqlite_past.where)
    file.execute("PRAGMA user_version = 99")
    file.close()
    older = sqlite_past.open()
    assert names(older) == []
    assert aside(sqlite_past) == ["history.db.newer-1"]
    assert "written by a newer version (schema 99, supported is 1)" in sqlite_past.troubles[0].wrong


def test_damage_while_it_is_open(sqlite_past: Past) -> None:
    """The call that finds it fails, and the next one has a new file."""
    history = sqlite_past.open()
    for _ in range(50):
        history.write([told("e", 1.0, text="x" * 500) for _ in range(20)], NOTHING(), 1.0)
    history.close()
    with Path(sqlite_past.where).open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 100))
    history = sqlite_past.open()
    for attempt in range(3):
        try:
            history.write([told("new", 1.0) for _ in range(100)], NOTHING(), 1.0)
            history.events(EventFilter(most=1000))
        except HistoryError as error:
            assert "malformed" in str(error), attempt  # noqa: PT017 - which of the two calls finds it is SQLite's affair
    assert aside(sqlite_past) == ["history.db.damaged-1"]
    assert names(history)[0] == "new"


def test_one_bad_page_costs_its_rows_only(sqlite_past: Past) -> None:
    """The audit log and all other events are copied from the file that is set aside, and ids go on (G-2)."""
    history = sqlite_past.open()
    for number in range(200):
        history.add_audit("me", "admin", "kill", f"agent-{number}", {}, 1.0)
        history.write([told("e", 1.0, text=f"<{number}>".ljust(500, "x"))], NOTHING(), 1.0)
    history.set_agent("", "a", {"active": False})
    history.close()
    content = Path(sqlite_past.where).read_bytes()
    page = content.index(b"<100>") // 4096 * 4096
    Path(sqlite_past.where).write_bytes(content[:page] + b"\xff" * 4096 + content[page + 4096 :])
    with pytest.raises(HistoryError, match="malformed"):
        history.events(EventFilter(most=1000))
    kept = history.events(EventFilter(most=1000))
    numbers = {int(str(event.data["text"]).strip("<x").partition(">")[0]) for event in kept}
    assert 185 < len(kept) < 200
    assert {0, 199} < numbers
    assert 100 not in numbers
    assert len(history.audit(most=1000)) == 200
    found = history.agent("", "a")
    assert found is not None
    assert found.settings == {"active": False}
    write(history, "new")
    assert history.events(EventFilter(most=1))[0].id == 201
    assert aside(sqlite_past) == ["history.db.damaged-1"]
    assert sqlite_past.troubles[0].done.startswith("renamed")
    assert "rows that could still be read were copied" in sqlite_past.troubles[1].done


def test_a_row_that_cannot_be_decoded_does_not_hide_the_others(sqlite_past: Past) -> None:
    """Neither a text that is not UTF-8 nor one that is not JSON (G-2)."""
    history = sqlite_past.open()
    for name in ("a", "b", "c"):
        write(history, name)
        history.add_audit("me", "admin", name, "", {}, 1.0)
    file = sqlite3.connect(sqlite_past.where)
    for table, column in (("events", "data"), ("audit", "detail")):
        file.execute(f"UPDATE breakloop_{table} SET {column} = CAST(x'7bff7d' AS TEXT) WHERE id = 1")
        file.execute(f"UPDATE breakloop_{table} SET {column} = '[' WHERE id = 2")
    file.commit()
    file.close()
    assert [(event.name, "unreadable" in event.data) for event in history.events(EventFilter())] == [
        ("c", False),
        ("b", True),
        ("a", True),
    ]
    assert ["unreadable" in entry.detail for entry in history.audit()] == [False, True, True]
    assert sqlite_past.troubles == []


def test_a_folder_in_its_place(sqlite_past: Past) -> None:
    Path(sqlite_past.where).mkdir()
    write(sqlite_past.open())
    assert aside(sqlite_past) == ["history.db.unusable-1"]


def test_no_more_than_nine_are_set_aside(sqlite_past: Past) -> None:
    """With more the disk is at fault, and what is made new will not be better."""
    folder = Path(sqlite_past.where).parent
    for number in range(1, 10):
        (folder / f"history.db.damaged-{number}").touch()
    Path(sqlite_past.where).write_bytes(b"not a database, and long enough to be one" * 100)
    with pytest.raises(HistoryError, match="not a database"):
        write(sqlite_past.open())
    assert "there are already 9 such files" in sqlite_past.troubles[0].done


def test_a_file_that_was_removed_is_made_again(sqlite_past: Past) -> None:
    """What is written goes where a restart looks for it."""
    history = sqlite_past.open()
    write(history)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{sqlite_past.where}{suffix}").unlink()
    write(history, "again")
    assert names(sqlite_past.open()) == ["again"]


def test_a_file_that_was_replaced_is_left_for_the_new_one(sqlite_past: Past) -> None:
    """As after putting back a copy."""
    history = sqlite_past.open()
    write(history, "first")
    history.close()
    copy = Path(f"{sqlite_past.where}.copy")
    copy.write_bytes(Path(sqlite_past.where).read_bytes())
    write(history, "second")
    copy.replace(sqlite_past.where)
    for suffix in ("-wal", "-shm"):
        Path(f"{sqlite_past.where}{suffix}").unlink()
    write(history, "third")
    assert names(history) == ["third", "first"]


def test_who_writes_says_so_at_once(sqlite_past: Past) -> None:
    """Two processes that read first and then write would refuse each other."""
    database = sqlite_past.open()._database
    other = sqlite3.connect(sqlite_past.where, timeout=0, isolation_level=None)
    with database.writing(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    with database.reading() as connection:
        connection.exec_driver_sql("SELECT 1")
        other.execute("BEGIN IMMEDIATE")
    other.close()


def test_a_locked_file_is_tried_again(sqlite_past: Past) -> None:
    """The failure is told once, and so is its end; readers do not wait."""
    history = quick(sqlite_past)
    write(history, "before")
    other = sqlite3.connect(sqlite_past.where, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(HistoryError, match="it is locked by another program"):
            write(history, "meanwhile")
    assert names(history) == ["before"]
    other.execute("ROLLBACK")
    other.close()
    write(history, "after")
    assert names(history) == ["after", "before"]
    assert [trouble.wrong for trouble in sqlite_past.troubles] == ["it is locked by another program", ""]


def test_a_full_disk(sqlite_past: Past) -> None:
    """Nothing of the batch is there; what was there is, and can be read."""
    history = sqlite_past.open()
    write(history, "before")
    pool = history._database._engine
    assert pool is not None
    with pool.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(HistoryError, match="the disk is full"):
        history.write([told("big", 1.0, text="x" * 5000) for _ in range(50)], NOTHING(), 1.0)
    assert names(history) == ["before"]
    with pool.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    write(history, "after")
    assert names(history) == ["after", "before"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(sqlite_past: Past) -> None:  # pragma: no cover
    folder = Path(sqlite_past.where).parent
    folder.chmod(0o500)
    with pytest.raises(HistoryError, match="Permission denied"):
        write(sqlite_past.open())
    folder.chmod(0o700)


def test_a_folder_that_cannot_be_made(sqlite_past: Past) -> None:
    """A file stands where a folder should."""
    blocked = Path(sqlite_past.where).parent / "file"
    blocked.touch()
    sqlite_past.where = str(blocked / "history.db")
    history = sqlite_past.open()
    with pytest.raises(HistoryError, match=r"File exists|Not a directory"):
        write(history)
    assert sqlite_past.troubles[0].done == "nothing is stored until it is writable again"


def test_what_must_last_is_written_through(tmp_path: Path) -> None:
    """An order outlives a failure of the power; the rest may lose its last second (K-3)."""
    place = SqliteBackend(tmp_path / "h.db", lambda _trouble: None)
    engine = place.engine()
    found = []
    for durable in (True, False):
        with engine.connect() as connection:
            place.begin(connection, durable=durable)
            found.append(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
    engine.dispose()
    assert found == [2, 1]
