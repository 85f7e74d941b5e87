"""Operator state on disk (S-1): there when `put` returns, and never the reason for a failed start or request."""

from __future__ import annotations

import asyncio
import itertools
import math
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from breakloop.errors import StateError
from breakloop.store.orders import FILE, LIFTED, OVER_KEPT_S, FileOrderStore, Order
from breakloop.store.sqlite import SqliteTrouble

NOW = 1_800_000_000.0


def record(key: str = "k", at: float = NOW, until: float = math.inf, **value: Any) -> Order:
    return Order("hold", key, value, until, at)


class Here:
    """A data directory, and books in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / FILE
        self.troubles: list[SqliteTrouble] = []
        self.books: list[FileOrderStore] = []

    def book(self) -> FileOrderStore:
        made = FileOrderStore(self.folder, self.troubles.append)
        self.books.append(made)
        made.load()
        return made

    def kept(self) -> list[Order]:
        """What another process finds."""
        return sorted(self.book().ledger.all(), key=lambda one: one.key)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path)
    yield made
    for book in made.books:
        asyncio.run(book.close())


def test_what_is_put_is_on_disk_when_the_call_returns(here: Here) -> None:
    """On disk before they are acknowledged. The first book is not closed: a crash does not do that either (S-1)."""
    book = here.book()
    first, second = record("a", why="it loops"), record("b \ud800", until=NOW + 5)
    assert book.put([first, second]) == [first, second]
    assert here.kept() == [first, second]
    assert here.troubles == []
    assert stat.S_IMODE(here.file.stat().st_mode) == 0o600


def test_a_commit_is_forced_to_the_disk(here: Here) -> None:
    """FULL, so that a commit waits for the disk (S-1)."""
    book = here.book()
    levels: list[int] = []
    assert book._try(lambda db: levels.append(db.execute("PRAGMA synchronous").fetchone()[0]))
    assert levels == [2]


def test_the_newest_form_stays_whoever_writes_last(here: Here) -> None:
    one, two = here.book(), here.book()
    one.put([record(at=NOW + 2, n="new")])
    two.put([record(at=NOW + 1, n="old")])
    assert here.kept() == [record(at=NOW + 2, n="new")]


def test_what_can_wait_survives_the_process_and_is_forced_to_the_disk_by_the_tick(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kill -9` loses no hold that was told, however many there are in a second (S-1)."""
    book = here.book()
    file = book._file
    assert file is not None
    forced: list[bool] = []
    run = file.run

    def noted(work: Any, *, synced: bool = True) -> Any:
        forced.append(synced)
        return run(work, synced=synced)

    monkeypatch.setattr(file, "run", noted)
    book.put([record()], at_once=False)
    assert here.kept() == [record()]
    assert forced == [False]
    book.tick(NOW)
    assert forced == [False, True]
    book.tick(NOW)
    assert forced == [False, True]
    book.put([record("b")], at_once=False)
    assert asyncio.run(book.settled(1.0))
    assert forced == [False, True, False, True]
    assert len(here.kept()) == 2
    book.put([record("c")], at_once=False)
    asyncio.run(book.close())
    assert forced == [False, True, False, True, False, True]
    assert len(here.kept()) == 3


def test_what_is_stale_goes_for_good(here: Here) -> None:
    book = here.book()
    book.put([record("over", until=NOW + 1), record("lifted", until=LIFTED), record("live")])
    book.tick(NOW + 2)
    assert len(here.kept()) == 3
    book.tick(NOW + 2 + OVER_KEPT_S)
    assert here.kept() == [record("live")]
    assert book.ledger.all() == [record("live")]


def test_what_is_stale_is_looked_for_every_ten_minutes(here: Here) -> None:
    """After a step of the clock not before ten more: what seems to be over may be in force (K-3)."""
    book = here.book()
    now = NOW + OVER_KEPT_S
    book.tick(now)
    book.put([record("over", until=LIFTED)])
    book.tick(now + 599.9)
    assert len(book.ledger.all()) == 1
    book.tick(now + 600.0)
    assert book.ledger.all() == []
    book.put([record("over", until=LIFTED)])
    book.clock_stepped(now + 5000.0)
    book.tick(now + 5599.9)
    assert len(book.ledger.all()) == 1
    book.tick(now + 5600.0)
    assert book.ledger.all() == []


def test_earlier_orders_are_known_once_the_file_was_read(tmp_path: Path) -> None:
    """Without a file there are none, so nobody waits for them."""
    assert asyncio.run(FileOrderStore(None, print).ready(0.0))
    unread = FileOrderStore(tmp_path, print)
    assert not asyncio.run(unread.ready(0.0))
    unread.load()
    assert asyncio.run(unread.ready(0.0))
    asyncio.run(unread.close())


def test_without_a_directory_it_works_in_memory() -> None:
    book = FileOrderStore(None, lambda trouble: pytest.fail(str(trouble)))
    book.load()
    assert book.put([record()]) == [record()]
    book.tick(NOW)
    assert asyncio.run(book.settled(1.0))
    asyncio.run(book.close())
    assert book.ledger.all() == [record()]


@pytest.mark.parametrize(
    "content", [b"this is no database at all, but text" * 50, b"SQLite format 3\x00" + b"\x07" * 5000]
)
def test_a_damaged_file_is_set_aside(here: Here, content: bytes) -> None:
    """Reported with file, what is wrong and what was done; the start goes on with a new one (S-1)."""
    here.file.write_bytes(content)
    book = here.book()
    book.put([record()])
    assert here.kept() == [record()]
    [trouble] = here.troubles
    assert trouble.file == str(here.file)
    assert trouble.wrong.startswith("damaged: ")
    assert f"renamed to {here.file}.damaged-1" in trouble.done
    assert (here.folder / f"{FILE}.damaged-1").read_bytes() == content


def test_damage_in_use_loses_nothing_that_is_known(here: Here) -> None:
    book = here.book()
    book.put([record("a"), record("b")])
    asyncio.run(book.close())
    here.file.write_bytes(b"\x00" * 10_000)
    book.put([record("c")])
    book.tick(NOW)
    assert here.kept() == [record("a"), record("b"), record("c")]
    assert [trouble.wrong.partition(":")[0] for trouble in here.troubles] == ["damaged"]


def test_a_file_that_is_removed_in_use_is_made_again(here: Here) -> None:
    book = here.book()
    book.put([record("a")])
    for file in here.folder.iterdir():
        file.unlink()
    book.put([record("b")])
    assert here.kept() == [record("a"), record("b")]


def test_a_file_that_is_made_again_gets_everything_once(here: Here) -> None:
    book = here.book()
    book.put([record("a")])
    for file in here.folder.iterdir():
        file.unlink()
    book.put([record("b")])
    book._try(lambda db: db.execute("DELETE FROM record"))
    book.put([record("c")])
    assert here.kept() == [record("c")]


def test_a_file_that_is_made_again_and_fails_gets_everything_later(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk may take the last order and refuse the others."""
    book = here.book()
    book.put([record(key) for key in "abc"])
    here.file.unlink()
    tried = FileOrderStore._try

    def once(self: FileOrderStore, *work: Any, **options: Any) -> bool:
        monkeypatch.setattr(FileOrderStore, "_try", lambda *_, **__: False)
        return tried(self, *work, **options)

    monkeypatch.setattr(FileOrderStore, "_try", once)
    book.put([record("d")])
    monkeypatch.setattr(FileOrderStore, "_try", tried)
    assert [one.key for one in here.kept()] == ["d"]
    book.tick(NOW)
    assert [one.key for one in here.kept()] == ["a", "b", "c", "d"]


def test_how_often_a_file_that_fails_is_tried(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less and less often, and at least every 17th tick."""
    book, tried = here.book(), list[int]()
    work = book._try

    def recorded(*given: Any, **named: Any) -> bool:
        tried.append(ticks[-1])
        return work(*given, **named)

    ticks = [0]
    monkeypatch.setattr(book, "_try", recorded)
    monkeypatch.setattr(book._file, "run", Mock(side_effect=StateError("locked")))
    book.put([record("a")])
    for number in range(1, 70):
        ticks.append(number)
        book.tick(NOW)
    assert [after - before for before, after in itertools.pairwise(tried)] == [2, 3, 5, 9, 17, 17]


def test_files_of_earlier_versions_are_known_by_their_mark(here: Here) -> None:
    """It never changes: another mark is another program's (S-1)."""
    here.book().put([record()])
    with sqlite3.connect(here.file) as db:
        assert db.execute("PRAGMA application_id").fetchone()[0] == int.from_bytes(b"BLOP")
    db.close()


def test_a_foreign_file_is_set_aside(here: Here) -> None:
    with sqlite3.connect(here.file) as db:
        db.execute("CREATE TABLE record (mine TEXT)")
    db.close()
    here.book().put([record()])
    assert here.kept() == [record()]
    assert here.troubles[0].wrong == "foreign: another program's database"


def test_a_file_of_a_newer_version_is_set_aside(here: Here) -> None:
    asyncio.run(here.book().close())
    with sqlite3.connect(here.file) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    here.book().put([record()])
    assert here.kept() == [record()]
    assert here.troubles[0].wrong == "newer: written by a newer version (schema 99, supported is 1)"
    assert (here.folder / f"{FILE}.newer-1").exists()


def test_a_full_disk_fails_nothing_and_is_caught_up_with(here: Here) -> None:
    """In force in memory, reported once, written when there is room (S-4)."""
    book = here.book()
    book.put([record("a")])
    pages: list[int] = []
    book._try(lambda db: pages.append(db.execute("PRAGMA page_count").fetchone()[0]))
    book._try(lambda db: db.execute(f"PRAGMA max_page_count = {pages[0]}").fetchall())
    book.put([record("b", why="x" * 50_000)])
    book.put([record("c")])
    assert len(book.ledger.all()) == 3
    assert [(trouble.wrong, trouble.done) for trouble in here.troubles] == [
        ("the disk is full", "nothing is stored until it is writable again")
    ]
    assert not asyncio.run(book.settled(1.0))
    assert book._file is not None
    book._file.close()  # a new connection has no such bound
    for _ in range(20):
        book.tick(NOW)
    assert here.troubles[-1] == SqliteTrouble(str(here.file), "", "it is writable again")
    assert [one.key for one in here.kept()] == ["a", "b", "c"]


def test_a_locked_file_keeps_nobody_waiting_twice(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for the lock once; then the tick tries, less and less often."""
    asyncio.run(here.book().close())
    book = here.book()
    other = sqlite3.connect(here.file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    book.put([record("a")])
    tries = len(here.troubles)
    assert here.troubles[-1].wrong == "it is locked by another program"
    assert book._file is not None
    run = Mock(wraps=book._file.run)
    monkeypatch.setattr(book._file, "run", run)
    book.put([record("b")])
    assert run.call_count == 0
    other.execute("COMMIT")
    other.close()
    for _ in range(3):
        book.tick(NOW)
    assert run.call_count == 1
    assert len(here.troubles) == tries + 1
    assert [one.key for one in here.kept()] == ["a", "b"]


def test_a_file_that_was_locked_at_the_start_is_read_later(here: Here) -> None:
    """Nothing that was acknowledged is lost for a lock at the wrong moment (S-1)."""
    book = here.book()
    book.put([record("a")])
    asyncio.run(book.close())
    other = sqlite3.connect(here.file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    late = here.book()
    told: list[Order] = []
    late.on_change = told.extend
    assert late.ledger.all() == []
    other.execute("COMMIT")
    other.close()
    for _ in range(3):
        late.tick(NOW)
    assert told == [record("a")]
    assert late.ledger.all() == [record("a")]


def test_entries_that_cannot_be_read_are_left_out(here: Here) -> None:
    book = here.book()
    book.put([record("a")])
    book._try(lambda db: db.execute("INSERT INTO record VALUES ('hold', x'00', 1.0, 'nonsense')"))
    assert here.kept() == [record("a")]
    assert here.troubles == [SqliteTrouble(str(here.file), "1 entries cannot be read", "they are ignored")]
