"""Files that cannot be used: damaged, foreign, newer, forbidden, in the wrong place, or on a disk that is full. Never a
failed start, never a failed save; somebody is told, and nothing is overwritten."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from breakloop.clock import FakeClock
from breakloop.errors import StateError
from breakloop.store.snapshot_file import SCHEMA, EntryPacker, SegmentChange, StateFile, _read
from breakloop.store.sqlite import SqliteTrouble
from tests.durable_state import Life, files, state_file

PAGE = 16_384


def saved(folder: Path, clock: FakeClock, entries: int = 400) -> bytes:
    """Write a good file; return its bytes."""
    folder.mkdir(exist_ok=True)
    life = Life(folder, clock)
    for number in range(entries):
        life.spend(f"tpd:{number}", 3)
    life.end()
    return state_file(folder).read_bytes()


def check_begun_anew(folder: Path, clock: FakeClock, content: bytes | None, kind: str, entries: int = 0) -> str:
    """A life on a bad file: it starts, tells of it, sets it aside whole, keeps what comes. Returns what was told."""
    life = Life(folder, clock)
    assert (life.loaded, len(life.told), life.durable.keeps) == (entries, 1, True), life.told
    (aside,) = [name for name in files(folder) if "db." in name and not name.endswith(("-wal", "-shm"))]
    assert aside.startswith(f"state.db.{kind}-")
    assert (
        (str(state_file(folder)) in life.told[0])
        == (aside in life.told[0])
        == ("start from zero" in life.told[0])
        is True
    )
    if content is not None:
        assert (folder / aside).read_bytes() == content
    life.spend("tpd:after", 5)
    life.save()
    assert (life.durable.problems, life.durable.saved_at) == (1, clock.now())
    life.kill()
    again = Life(folder, clock)
    assert (again.spend("tpd:after"), again.told) == (6, [])
    again.end()
    return life.told[0]


def test_a_file_cut_off_at_every_page(tmp_path: Path, clock: FakeClock) -> None:
    """Whatever is left of it, there is a start; only what is nothing at all is taken for new (S-1)."""
    content = saved(tmp_path / "good", clock, 4000)
    assert len(content) > 4 * PAGE
    for size in range(PAGE, len(content), PAGE):
        folder = tmp_path / str(size)
        folder.mkdir()
        state_file(folder).write_bytes(content[:size])
        assert "damaged" in check_begun_anew(folder, clock, content[:size], "damaged")


@pytest.mark.parametrize("size", [15, 16, 99, 100, 512, PAGE - 1, PAGE + 1, 3 * PAGE + 7])
def test_a_file_cut_off_anywhere(tmp_path: Path, clock: FakeClock, size: int) -> None:
    """Also within a page (S-1)."""
    content = saved(tmp_path, clock, 4000)[:size]
    state_file(tmp_path).write_bytes(content)
    check_begun_anew(tmp_path, clock, content, "damaged")


def test_an_empty_file_is_a_new_one(tmp_path: Path, clock: FakeClock) -> None:
    """As a process leaves it that is killed while it makes it (S-1)."""
    state_file(tmp_path).touch()
    life = Life(tmp_path, clock)
    assert (life.loaded, life.told, life.durable.keeps) == (0, [], True)
    life.end()


@pytest.mark.parametrize(
    "content", [b"not a database", os.urandom(3 * PAGE), bytes(2 * PAGE)], ids=["text", "noise", "0"]
)
def test_a_file_that_is_no_database(tmp_path: Path, clock: FakeClock, content: bytes) -> None:
    """Set aside as it is (S-1)."""
    state_file(tmp_path).write_bytes(content)
    check_begun_anew(tmp_path, clock, content, "damaged")


@pytest.mark.parametrize("page", range(1, 6))
def test_noise_in_any_page(tmp_path: Path, clock: FakeClock, page: int) -> None:
    """It is seen, wherever it is (S-1)."""
    content = bytearray(saved(tmp_path, clock, 4000))
    content[page * PAGE : (page + 1) * PAGE] = os.urandom(PAGE)
    state_file(tmp_path).write_bytes(content)
    check_begun_anew(tmp_path, clock, None, "damaged")


def test_one_wrong_bit_in_what_is_kept(tmp_path: Path, clock: FakeClock) -> None:
    """SQLite does not see it, the checksum does; no half of a state is loaded (S-1)."""
    content = saved(tmp_path, clock)
    at = content.index(b"tpd:200")
    wrong = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    state_file(tmp_path).write_bytes(wrong)
    assert "the checksum of part 1 does not match" in check_begun_anew(tmp_path, clock, None, "damaged")


def test_any_other_letter_is_noticed(tmp_path: Path) -> None:
    """The checksum is long enough that none of many changes has the same one (S-1)."""
    file = StateFile(tmp_path, lambda _trouble: None)
    file.load(lambda _pack: None, lambda _latest, _ahead_s: None)
    packer = EntryPacker()
    packer.add("accounts", ["key ?"], [(200.0, 1)])
    (part,) = packer.close()
    file.write(SegmentChange([part], 100.0, 100.0))
    noticed = 0
    for letter in range(256):
        wrong = part.data.replace(b"key ?", b"key %c" % letter)
        file.run(lambda db, wrong=wrong: db.execute("UPDATE part SET data = ?", (wrong,)))  # type: ignore[misc]
        with suppress(ValueError):
            file.run(lambda db: list(_read(db, 1, 1)))
            continue
        noticed += 1
    assert noticed == 255
    file.close()


def test_damage_that_is_found_while_tidying(tmp_path: Path) -> None:
    """The file is set aside then, too (S-1)."""
    told: list[SqliteTrouble] = []
    file = StateFile(tmp_path, told.append)
    file.load(lambda _pack: None, lambda _latest, _ahead_s: None)
    packer = EntryPacker()
    packer.add("accounts", ["key"], [(200.0, 1)])
    file.write(SegmentChange(packer.close(), 100.0, 100.0))
    file.run(lambda db: db.execute("UPDATE part SET checksum = checksum + 1"))
    with pytest.raises(StateError, match="damaged: the checksum of part 1 does not match"):
        file.read(file.rows.all)
    assert "state.db.damaged-1" in files(tmp_path)
    file.close()


def test_what_was_read_before_the_damage_is_dropped(tmp_path: Path, clock: FakeClock) -> None:
    """Half a state is worse than none (S-1)."""
    life = Life(tmp_path, clock)
    for name in ("a", "b"):
        life.spend(f"tpd:{name}", 3)
        life.save()
    life.end()
    sql(tmp_path, "UPDATE part SET checksum = checksum + 1 WHERE id = (SELECT max(id) FROM part)")
    check_begun_anew(tmp_path, clock, None, "damaged")


def sql(folder: Path, *statements: str) -> None:
    database = sqlite3.connect(state_file(folder), isolation_level=None)
    for statement in statements:
        database.execute(statement)
    database.close()


@pytest.mark.parametrize("value", ["NULL", "'noon'", "-1"])
def test_a_time_that_is_none(tmp_path: Path, clock: FakeClock, value: str) -> None:
    """The state of an unknown time is not used (S-1)."""
    saved(tmp_path, clock)
    sql(tmp_path, f"UPDATE meta SET value = {value} WHERE name = 'latest'")
    check_begun_anew(tmp_path, clock, None, "damaged")


def test_another_programs_database(tmp_path: Path, clock: FakeClock) -> None:
    """Another program's database is not touched (S-1)."""
    sql(tmp_path, "CREATE TABLE songs (name)", "INSERT INTO songs VALUES ('la')")
    assert "another program's" in check_begun_anew(tmp_path, clock, None, "foreign")
    found = sqlite3.connect(tmp_path / "state.db.foreign-1")
    assert found.execute("SELECT name FROM songs").fetchall() == [("la",)]
    found.close()


def test_a_newer_version(tmp_path: Path, clock: FakeClock) -> None:
    """An older program does not guess what a newer one wrote (S-1)."""
    saved(tmp_path, clock)
    sql(tmp_path, "PRAGMA user_version = 99")
    assert "newer version" in check_begun_anew(tmp_path, clock, None, "newer")


def test_an_older_version_is_brought_up_to_date(tmp_path: Path, clock: FakeClock) -> None:
    """As far as it is known (S-1)."""
    sql(tmp_path, SCHEMA.steps[0], f"PRAGMA application_id = {SCHEMA.application_id}", "PRAGMA user_version = 1")
    life = Life(tmp_path, clock)
    life.spend("tpd:a")
    life.end()
    after = Life(tmp_path, clock)
    assert (after.spend("tpd:a"), after.told) == (2, [])
    after.end()


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE part",
        "DROP TABLE meta",
        "UPDATE part SET data = 'text'",
        "UPDATE part SET data = zeroblob(50), checksum = 3600000000",
        "UPDATE meta SET value = 'soon' WHERE name = 'latest'",
        "UPDATE meta SET value = 9e999 WHERE name = 'latest'",
        "UPDATE meta SET value = -1e12 WHERE name = 'ahead_s'",
        "UPDATE meta SET value = 1e11 WHERE name = 'ahead_s'",
        "ALTER TABLE part DROP COLUMN checksum",
    ],
)
def test_tables_that_are_not_what_we_made(tmp_path: Path, clock: FakeClock, statement: str) -> None:
    """Somebody worked on it with his own hands (S-1)."""
    saved(tmp_path, clock)
    sql(tmp_path, statement)
    check_begun_anew(tmp_path, clock, None, "damaged")


def test_another_kind_of_machine(tmp_path: Path, clock: FakeClock) -> None:
    """Numbers are written as the machine has them (S-1)."""
    saved(tmp_path, clock)
    sql(tmp_path, "UPDATE meta SET value = 'middle' WHERE name = 'byteorder'")
    check_begun_anew(tmp_path, clock, None, "foreign")


def test_a_directory_in_its_place(tmp_path: Path, clock: FakeClock) -> None:
    """Set aside with what is in it (S-1)."""
    state_file(tmp_path).mkdir()
    (state_file(tmp_path) / "mine").write_text("x")
    assert "Is a directory" in check_begun_anew(tmp_path, clock, None, "unusable")
    assert (tmp_path / "state.db.unusable-1" / "mine").read_text() == "x"


def test_a_file_without_permission(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is ours, so it can be set aside (S-1). Simulated: tests may run as root."""
    content = saved(tmp_path, clock)
    real, inode = os.open, state_file(tmp_path).stat().st_ino

    def refuses(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(path) == state_file(tmp_path) and Path(path).exists() and Path(path).stat().st_ino == inode:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuses)
    assert "Permission denied" in check_begun_anew(tmp_path, clock, content, "unusable")


@pytest.mark.parametrize("name", ["state.lock", "state.db"])
def test_a_disk_that_cannot_be_written(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without keeping anything it runs all the same, and says so (S-1)."""
    real = os.open

    def refuses(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).name == name:
            raise OSError(30, "Read-only file system")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuses)
    life = Life(tmp_path, clock)
    life.spend("tpd:a")
    life.save()
    life.end()
    (told,) = life.told
    assert "Read-only file system" in told
    assert "in memory" in told
    assert (life.loaded, life.durable.keeps, life.durable.problems >= 1) == (0, False, True)


def test_each_bad_file_gets_its_own_name(tmp_path: Path, clock: FakeClock) -> None:
    """Nothing that was set aside is overwritten; when it goes on and on, nothing is kept any more (S-1)."""
    for number in range(11):
        state_file(tmp_path).write_bytes(b"bad %d" % number)
        life = Life(tmp_path, clock)
        life.spend("tpd:a")
        life.save()
        life.end()
        assert life.durable.problems >= 1
    assert [(tmp_path / f"state.db.damaged-{number}").read_bytes() for number in range(1, 10)] == [
        b"bad %d" % number for number in range(9)
    ]
    assert state_file(tmp_path).read_bytes() == b"bad 10"


def test_a_log_of_changes_that_is_cut_off(tmp_path: Path, clock: FakeClock) -> None:
    """After a power cut the last changes may be missing; what is before them counts (S-1)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:a", 5)
    life.save()
    wal = tmp_path / "state.db-wal"
    size = wal.stat().st_size
    life.spend("tpd:a", 5)
    life.save()
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(state_file(tmp_path), copy)
    (copy / "state.db-wal").write_bytes(wal.read_bytes()[: size + 100])
    life.kill()
    after = Life(copy, clock)
    assert (after.spend("tpd:a"), after.told) == (6, [])
    after.end()


def full_disk(life: Life, pages: int) -> None:
    file = life.durable._file
    assert file is not None
    file.run(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())


def test_a_full_disk_is_told_once_a_minute_and_gets_well_by_itself(tmp_path: Path, clock: FakeClock) -> None:
    """Nothing is lost but what a crash meanwhile would lose (S-1)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:first")
    life.save()
    full_disk(life, 4)
    for number in range(3000):
        life.spend(f"tpd:{number}", 2)
    life.store.drop(["tpd:first"])
    for _ in range(90):
        clock.advance(1.0)
        life.save()
    assert [told.partition(": ")[2].partition(": ")[0] for told in life.told] == ["the disk is full"] * 2
    assert "fix the data directory (space, permissions)" in life.told[0]
    assert (life.durable.keeps, life.durable.problems) == (False, 90)
    full_disk(life, 10_000)
    clock.advance(1.0)
    life.spend("tpd:7", 2)
    life.save()
    assert (life.durable.keeps, life.told[2:]) == (True, [f"{state_file(tmp_path)}: it is writable again"])
    before = life.tables()
    life.kill()
    after = Life(tmp_path, clock)
    assert after.tables().keys() == before.keys()
    assert after.tables()["accounts"] == before["accounts"]
    assert (after.loaded, after.spend("tpd:7")) == (3000, 5)
    after.end()


def test_what_is_remembered_while_the_disk_is_full_is_bounded(tmp_path: Path, clock: FakeClock) -> None:
    """Keys that came and went are not remembered for ever; when there is room again everything is written (Y-2)."""
    life = Life(tmp_path, clock, max_entries=50)
    full_disk(life, 3)
    for number in range(400):
        life.spend(f"tpd:{number}:{'x' * 900}")
        if number % 20 == 0:
            clock.advance(1.0)
            life.save()
    assert life.store.kept()["accounts"].dirty is None
    full_disk(life, 10_000)
    clock.advance(1.0)
    life.save()
    before = life.tables()
    life.kill()
    after = Life(tmp_path, clock)
    assert after.tables()["accounts"].keys() == before["accounts"].keys()
    assert after.loaded == 50
    after.end()


def test_a_disk_that_is_full_is_left_alone_for_a_second_per_twenty_thousand_entries(
    tmp_path: Path, clock: FakeClock
) -> None:
    """Gathering them again and again would keep requests waiting (Q-1)."""
    life, tries = Life(tmp_path, clock), 0

    async def full(_write: Callable[[], object]) -> object:
        nonlocal tries
        tries += 1
        raise StateError("the disk is full")

    life.store.kept()["buckets"].dirty = dict.fromkeys(map(str, range(20_000)))
    for wait_s, expected in ((0.0, 1), (0.99998, 1), (0.00003, 2)):
        clock.advance(wait_s)
        asyncio.run(life.durable.save(full))
        assert tries == expected
    life.end()


def spoil(life: Life, folder: Path) -> None:
    file = life.durable._file
    assert file is not None
    connection = file._connection
    assert connection is not None
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with state_file(folder).open("r+b") as raw:
        raw.seek(PAGE)
        raw.write(os.urandom(4 * PAGE))
    connection.execute("PRAGMA shrink_memory")  # or it would go by what it remembers


def remove(life: Life, folder: Path) -> None:
    state_file(folder).unlink()


def save_over(life: Life, folder: Path) -> None:
    """A backup is put in its place."""
    backup = folder / "backup"
    saved(backup, FakeClock(), 3)
    state_file(backup).replace(state_file(folder))


@pytest.mark.parametrize("harm", [spoil, remove, save_over])
def test_a_file_that_is_harmed_while_in_use(
    tmp_path: Path, clock: FakeClock, harm: Callable[[Life, Path], None]
) -> None:
    """Damaged, removed or replaced: everything in memory is written again within a few seconds (S-1)."""
    life = Life(tmp_path, clock)
    for number in range(50):
        life.spend(f"tpd:{number}", 4)
    life.save()
    harm(life, tmp_path)
    for _ in range(4):
        clock.advance(1.0)
        life.spend("tpd:1", 4)
        life.save()
    assert life.told
    assert life.durable.keeps
    before = life.tables()
    life.kill()
    after = Life(tmp_path, clock)
    assert after.tables() == before
    assert (after.loaded, after.spend("tpd:2")) == (50, 5)
    after.end()


def test_a_file_that_is_removed_right_before_the_end(tmp_path: Path, clock: FakeClock) -> None:
    """The last save notices too (S-6)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:a", 4)
    life.save()
    state_file(tmp_path).unlink()
    life.end()
    after = Life(tmp_path, clock)
    assert after.spend("tpd:a") == 5
    after.end()
