"""A look at the file from outside."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from breakloop.clock import FakeClock
from breakloop.store.snapshot import look
from tests.durable_state import Life, files, state_file


def test_no_file(tmp_path: Path) -> None:
    """Nothing to say (T-1)."""
    assert look(tmp_path) is None
    assert look(tmp_path / "nowhere") is None


def test_it_changes_nothing(tmp_path: Path, clock: FakeClock) -> None:
    """While the process runs, after it was killed and after it has ended (T-1)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:a")
    life.spend("tpd:b")
    life.save()
    running = look(tmp_path)
    assert running is not None
    assert (running.entries, running.latest, running.wrong) == (2, clock.now(), "")
    life.spend("tpd:b")
    life.save()
    assert life.durable.keeps
    life.end()
    assert files(tmp_path) == ["state.db"]
    ended = look(tmp_path)
    assert ended is not None
    assert (ended.entries, ended.wrong, ended.size) == (3, "", state_file(tmp_path).stat().st_size)
    assert files(tmp_path) == ["state.db"]


@pytest.mark.parametrize(
    ("statement", "wrong"),
    [
        ("PRAGMA user_version = 99", "written by a newer version (schema 99)"),
        ("PRAGMA application_id = 1", "another program's database"),
        ("DROP TABLE part", "no such table: part"),
        ("UPDATE meta SET value = 'x' WHERE name = 'latest'", "could not convert string to float"),
        ("UPDATE meta SET value = NULL WHERE name = 'latest'", "not 'NoneType'"),
    ],
)
def test_what_is_wrong(tmp_path: Path, clock: FakeClock, statement: str, wrong: str) -> None:
    """In the words of a start that would set it aside (T-1)."""
    Life(tmp_path, clock).end()
    database = sqlite3.connect(state_file(tmp_path), isolation_level=None)
    database.execute(statement)
    database.close()
    found = look(tmp_path)
    assert found is not None
    assert wrong in found.wrong


def test_times_that_an_earlier_version_did_not_write(tmp_path: Path, clock: FakeClock) -> None:
    """Each is 0 then (T-1)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:a")
    life.end()
    for name, latest in (("ahead_s", clock.steady()), ("latest", 0.0)):
        database = sqlite3.connect(state_file(tmp_path), isolation_level=None)
        database.execute("DELETE FROM meta WHERE name = ?", (name,))
        database.close()
        found = look(tmp_path)
        assert found is not None
        assert (found.latest, found.wrong) == (latest, "")


def test_a_file_of_an_earlier_version(tmp_path: Path, clock: FakeClock) -> None:
    """A start brings it up to date; until then, only its size is known (T-1)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:a")
    life.end()
    database = sqlite3.connect(state_file(tmp_path), isolation_level=None)
    database.execute("PRAGMA user_version = 0")
    database.close()
    found = look(tmp_path)
    assert found is not None
    assert (found.entries, found.wrong, found.size) == (0, "", state_file(tmp_path).stat().st_size)


def test_no_database_and_a_new_one(tmp_path: Path) -> None:
    """An empty file is as good as none (T-1)."""
    state_file(tmp_path).write_bytes(b"nonsense" * 1000)
    found = look(tmp_path)
    assert found is not None
    assert found.wrong == "file is not a database"
    state_file(tmp_path).write_bytes(b"")
    found = look(tmp_path)
    assert found is not None
    assert (found.wrong, found.entries) == ("", 0)


def test_a_process_without_requests_keeps_the_time_of_the_one_before(tmp_path: Path, clock: FakeClock) -> None:
    """So that the next one goes on from it, however the clock is set (S-1)."""
    first = Life(tmp_path, clock)
    clock.step(1000.0)  # the time of day is ahead of the store's
    first.spend("tpd:a")
    first.end()
    before = look(tmp_path)
    idle = Life(tmp_path, clock)
    idle.end()
    after = look(tmp_path)
    assert before is not None
    assert after is not None
    assert after.latest == before.latest == clock.now()
