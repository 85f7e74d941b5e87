"""A SQLite file that may fail in any way: set aside, tried again, reported; never an error that nobody expects."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from breakloop.clock import FakeClock
from breakloop.errors import StateError
from breakloop.store.sqlite import Schema, SqliteFile, SqliteTrouble, Troubles, UnfitError, in_words, is_damage

SCHEMA = Schema(77, ("CREATE TABLE t (x TEXT)",))


class Here:
    """A folder, and files opened in it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "some.db"
        self.troubles: list[SqliteTrouble] = []
        self.opened: list[SqliteFile] = []

    def open(self, schema: Schema = SCHEMA, synchronous: str = "FULL") -> SqliteFile:
        made = SqliteFile(self.path, schema, self.troubles.append, busy_s=0.01, synchronous=synchronous)
        self.opened.append(made)
        return made


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path)
    yield made
    for one in made.opened:
        one.close()


def add(file: SqliteFile, text: str) -> None:
    file.run(lambda db: db.execute("INSERT INTO t (x) VALUES (?)", (text,)))


def texts(file: SqliteFile) -> list[str]:
    return file.run(lambda db: [text for (text,) in db.execute("SELECT x FROM t")])


def test_what_is_written_is_there_for_the_next(here: Here) -> None:
    file = here.open()
    add(file, "a")
    other = here.open()
    assert texts(other) == ["a"]
    assert (file.made, other.made) == (1, 0)
    assert here.path.stat().st_mode & 0o777 == 0o600
    assert here.troubles == []


def test_what_need_not_be_forced_to_the_disk(here: Here) -> None:
    """Synchronous 1 does not wait for the disk, 2 does; a failure in between does not change that for the next."""

    def level(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA synchronous").fetchone()[0])

    def fail(_db: sqlite3.Connection) -> None:
        raise ZeroDivisionError

    file = here.open()
    assert [file.run(level), file.run(level, synced=False), file.run(level)] == [2, 1, 2]
    with pytest.raises(ZeroDivisionError):
        file.run(fail, synced=False)
    assert file.run(level) == 2


def test_work_that_fails_leaves_nothing_behind(here: Here) -> None:
    """One transaction: all of it or nothing. An error of the caller's own is the caller's."""
    file = here.open()

    def half(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO t VALUES ('half')")
        raise KeyError("mine")

    with pytest.raises(KeyError):
        file.run(half)
    assert texts(file) == []


def test_a_newer_schema_takes_the_steps_that_are_missing(here: Here) -> None:
    """Versioned: data of the version before is kept."""
    old = here.open()
    add(old, "a")
    old.close()
    new = here.open(Schema(77, (*SCHEMA.steps, "ALTER TABLE t ADD COLUMN y TEXT", "UPDATE t SET y = 'new'")))
    assert new.run(lambda db: db.execute("SELECT x, y FROM t").fetchall()) == [("a", "new")]
    assert new.made == 0
    new.close()
    add(here.open(), "by the old one")  # which cannot know what the new one means
    assert here.troubles[-1].wrong == "newer: written by a newer version (schema 3, supported is 1)"


def test_each_file_that_is_set_aside_has_its_own_name(here: Here) -> None:
    for number in range(1, 4):
        here.path.write_bytes(b"damaged" * 1000)
        file = here.open()
        add(file, "a")
        file.close()
        assert here.path.with_name(f"some.db.damaged-{number}").exists()
    assert len(here.troubles) == 3


def test_a_disk_that_damages_everything_is_given_up(here: Here) -> None:
    """Ten files of nonsense help nobody."""
    for number in range(1, 10):
        here.path.with_name(f"some.db.damaged-{number}").touch()
    here.path.write_bytes(b"damaged" * 1000)
    file = here.open()
    for _ in range(2):
        with pytest.raises(StateError, match="damaged"):
            texts(file)
    assert [trouble.done for trouble in here.troubles] == [
        "it cannot be renamed (there are already 9 such files), so nothing is stored"
    ]
    assert not file.set_aside("damaged", "as it was")
    assert file.set_aside("foreign", "as it was")  # under another name


def test_two_processes_that_find_the_same_damage_keep_one_new_file(here: Here) -> None:
    """Whoever comes second does not set the new file aside."""
    here.path.write_bytes(b"damaged" * 1000)
    one, two = here.open(), here.open()
    add(one, "a")
    two._identity = (0, 0)  # it looked at the file that is no longer there
    two._unfit(UnfitError("damaged", "as it was"))
    assert texts(two) == ["a"]
    assert len(here.troubles) == 1


def test_the_owner_may_find_the_file_unfit(here: Here) -> None:
    file = here.open()
    add(file, "a")

    def doubt(_db: sqlite3.Connection) -> None:
        raise UnfitError("damaged", "a sum is wrong")

    with pytest.raises(StateError, match="a sum is wrong"):
        file.run(doubt)
    assert here.troubles[0].wrong == "damaged: a sum is wrong"
    assert texts(file) == []
    assert file.made == 2


def test_a_lock_is_waited_for_and_then_reported_once(here: Here) -> None:
    file = here.open()
    add(file, "a")
    other = sqlite3.connect(here.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(StateError, match="locked by another program"):
            add(file, "b")
    other.execute("COMMIT")
    other.close()
    add(file, "c")
    assert texts(file) == ["a", "c"]
    assert [trouble.wrong for trouble in here.troubles] == ["it is locked by another program", ""]


def test_when_a_file_is_opened_again(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error that does not pass by itself; one that is locked stays open."""
    file = here.open()
    add(file, "a")
    opened, connect = [], sqlite3.connect

    def counted(*args: Any, **rest: Any) -> sqlite3.Connection:
        opened.append(args)
        made: sqlite3.Connection = connect(*args, **rest)
        return made

    monkeypatch.setattr(sqlite3, "connect", counted)
    with connect(here.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError):
            add(file, "b")
        other.execute("COMMIT")
    other.close()
    add(file, "c")
    assert opened == []
    with pytest.raises(StateError):
        file.run(lambda db: db.execute("INSERT INTO none VALUES (1)"))
    add(file, "d")
    assert len(opened) == 1


def test_what_cannot_be_a_file_is_set_aside(here: Here) -> None:
    """A directory in its place, say."""
    here.path.mkdir()
    file = here.open()
    add(file, "a")
    assert texts(file) == ["a"]
    assert here.troubles[0].wrong.startswith("unusable: ")


def test_without_its_folder_nothing_can_be_kept(here: Here) -> None:
    file = here.open()
    folder = here.path.parent
    away = folder.rename(f"{folder}-gone")
    with pytest.raises(StateError):
        texts(file)
    assert here.troubles[0].done == "nothing is stored until it is writable again"
    away.rename(folder)
    add(file, "a")
    assert here.troubles[-1].wrong == ""


@pytest.mark.parametrize(("word", "level"), [("FULL", 2), ("NORMAL", 1)])
def test_how_much_a_commit_waits_for_is_the_owners_choice(here: Here, word: str, level: int) -> None:
    file = here.open(synchronous=word)
    assert file.run(lambda db: db.execute("PRAGMA synchronous").fetchone()[0]) == level
    assert file.run(lambda db: db.execute("PRAGMA journal_mode").fetchone()[0]) == "wal"


def test_a_file_that_cannot_be_opened_is_let_go(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that stays open would keep the renamed file on the disk."""
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def keep(*arguments: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*arguments, **options))
        return made[-1]

    here.path.write_bytes(b"not a database" * 100)
    monkeypatch.setattr(sqlite3, "connect", keep)
    file = here.open()
    assert file.troubles.current == ""
    add(file, "a")
    bad, good = made
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        bad.execute("SELECT 1")
    assert good.execute("SELECT x FROM t").fetchall() == [("a",)]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError("No space left on device")])
def test_an_error_of_the_disk_is_described_in_words(here: Here, error: OSError) -> None:
    def fail(_db: sqlite3.Connection) -> None:
        raise error

    with pytest.raises(StateError, match=r"^No space left on device$"):
        here.open().run(fail)
    assert [one.wrong for one in here.troubles] == ["No space left on device"]


def test_a_lock_holds_up_its_writer_for_a_quarter_of_a_second(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "some.db", SCHEMA, print)
    assert file.run(lambda db: db.execute("PRAGMA busy_timeout").fetchone()) == (250,)
    file.close()


def test_an_error_without_a_code_is_described_by_its_text() -> None:
    error = sqlite3.ProgrammingError("Cannot operate on a closed database.\nat all")
    assert in_words(error) == "Cannot operate on a closed database."
    assert not is_damage(error)


def test_a_problem_that_comes_and_goes_is_told_once_a_minute(clock: FakeClock) -> None:
    """On a disk that is nearly full some writes succeed: that is not the end of it (S-1)."""
    told: list[SqliteTrouble] = []
    troubles = Troubles("some.db", told.append, clock)
    for second in range(150):
        if second % 3:
            troubles.failed("the disk is full", "nothing is stored")
        else:
            troubles.works()
        clock.advance(1.0)
    assert [one.wrong for one in told] == ["the disk is full", "", "the disk is full", "the disk is full"]
    for _ in range(59):
        troubles.works()
        clock.advance(1.0)
    assert (troubles.current, len(told)) == ("", 4)
    clock.advance(1.0)
    troubles.works()
    assert [one.wrong for one in told[4:]] == [""]


def test_another_problem_is_told_at_once(clock: FakeClock) -> None:
    told: list[SqliteTrouble] = []
    troubles = Troubles("some.db", told.append, clock)
    for wrong in ("the disk is full", "disk error") * 20:
        troubles.failed(wrong, "nothing is stored")
        clock.advance(1.0)
    assert [one.wrong for one in told] == ["the disk is full", "disk error"]
    kept = []
    for number in range(100):
        troubles.failed(f"problem {number}", "nothing is stored")
        kept.append(len(troubles._told_at))
    assert (len(told), max(kept)) == (102, 21)


def test_a_clock_that_is_set_back_does_not_silence_troubles() -> None:
    """Even by half a second: how long ago the last report was is not known then."""
    told: list[SqliteTrouble] = []
    clock = FakeClock(1_800_000_000.0)
    troubles = Troubles("some.db", told.append, clock)
    troubles.failed("disk full", "not saved")
    troubles.failed("disk full", "not saved")
    assert len(told) == 1
    clock.step(-0.5)
    troubles.failed("disk full", "not saved")
    assert len(told) == 2
