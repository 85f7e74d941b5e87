"""`state.db`: parts in their order, tidied and cleared away in the same transaction as a save."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from breakloop.clock import FakeClock
from breakloop.errors import StateError
from breakloop.store.snapshot_file import FILE, EntryPacker, Segment, SegmentChange, StateFile
from breakloop.store.sqlite import SqliteTrouble
from tests.durable_state import Life, state_file

NOW = 100.0


def part(*keys: str, expires: float = 200.0) -> Segment:
    packer = EntryPacker()
    packer.add("accounts", keys, [(expires, 1)] * len(keys))
    return packer.close()[0]


def opened(folder: Path) -> tuple[StateFile, list[str], list[SqliteTrouble]]:
    troubles: list[SqliteTrouble] = []
    keys: list[str] = []
    file = StateFile(folder, troubles.append)
    file.load(lambda pack: keys.extend(pack.keys), lambda _latest, _ahead_s: None)
    return file, keys, troubles


def test_parts_come_back_in_order(tmp_path: Path) -> None:
    """The newest is last, after tidying too (S-1)."""
    file, _, _ = opened(tmp_path)
    for key in ("a", "b", "c", "d"):
        assert file.write(SegmentChange([part(key)], NOW, NOW))
    rows = file.rows.all
    assert [pack.keys for pack in file.read(rows[1:3])] == [["b"], ["c"]]
    assert file.write(SegmentChange([part("e")], NOW, NOW, old=rows[1:3], instead=[part("c")]))
    file.close()
    again, keys, troubles = opened(tmp_path)
    assert (keys, [row.id for row in again.rows.all], troubles) == (["a", "c", "d", "e"], [1, 3, 4, 5], [])
    again.close()


def test_the_time_of_a_save_comes_back(tmp_path: Path) -> None:
    """With how far the time of day was ahead of it (S-1)."""
    file, _, _ = opened(tmp_path)
    found: list[tuple[float, float]] = []
    for change in (SegmentChange([part("a")], NOW, NOW), SegmentChange([part("a")], NOW, NOW, ahead_s=7.5)):
        assert file.write(change)
        other = StateFile(tmp_path, print)
        other.load(lambda _pack: None, lambda latest, ahead_s: found.append((latest, ahead_s)))
        other.close()
        file, _, _ = opened(tmp_path)
    file.close()
    assert found == [(NOW, 0.0), (NOW, 7.5)]


def test_a_whole_save_replaces_everything(tmp_path: Path) -> None:
    """In one transaction (S-1)."""
    file, _, _ = opened(tmp_path)
    file.write(SegmentChange([part("a")], NOW, NOW))
    file.write(SegmentChange([part("b"), part("c")], NOW, NOW, whole=True))
    assert [pack.keys for pack in file.read(file.rows.all)] == [["b"], ["c"]]  # it knows no other rows
    file.close()
    assert opened(tmp_path)[1] == ["b", "c"]


def test_a_file_that_could_not_be_read_is_written_whole(tmp_path: Path) -> None:
    file = StateFile(tmp_path, print)
    assert file.write(SegmentChange([part("a")], NOW, NOW, whole=True))
    file.close()
    assert opened(tmp_path)[1] == ["a"]


def test_rows_without_a_replacement_stay(tmp_path: Path) -> None:
    """Those that were looked at for what is out of date, and are all valid (S-1)."""
    file, _, _ = opened(tmp_path)
    file.write(SegmentChange([part("a")], NOW, NOW))
    assert file.write(SegmentChange([part("b")], NOW, NOW, old=file.rows.all))
    assert file.write(SegmentChange([part("c")], NOW, NOW, instead=[]))
    file.close()
    assert opened(tmp_path)[1] == ["a", "b", "c"]


def test_what_has_expired_is_cleared_away_with_a_save(tmp_path: Path) -> None:
    """From the oldest on (S-1)."""
    file, _, _ = opened(tmp_path)
    for expires in (10.0, 20.0, 15.0, 200.0, 30.0):
        file.write(SegmentChange([part(str(expires), expires=expires)], 1.0, 1.0))
    file.write(SegmentChange([], NOW, NOW))
    assert [row.expires for row in file.rows.all] == [200.0, 30.0]
    file.close()
    assert opened(tmp_path)[1] == ["200.0", "30.0"]


def test_a_file_that_another_wrote_is_noticed(tmp_path: Path) -> None:
    """Its rows are not the ones that are remembered, so everything has to be written (S-1)."""
    file, _, _ = opened(tmp_path)
    file.write(SegmentChange([part("a")], NOW, NOW))
    rows = file.rows.all
    other, _, _ = opened(tmp_path)
    assert file.read(rows) == []
    assert not file.write(SegmentChange([part("b")], NOW, NOW))
    assert other.write(SegmentChange([part("c")], NOW, NOW))
    assert file.write(SegmentChange([part("b")], NOW, NOW, whole=True))
    file.close()
    other.close()
    assert opened(tmp_path)[1] == ["b"]


def test_a_closed_file_stays_closed(tmp_path: Path) -> None:
    """A thread that comes too late does not open it again (S-6)."""
    file, _, _ = opened(tmp_path)
    file.finish()
    with pytest.raises(StateError, match="closed"):
        file.write(SegmentChange([part("a")], NOW, NOW))
    assert not (tmp_path / f"{FILE}-wal").exists()


def test_others_cannot_read_it(tmp_path: Path) -> None:
    """What sessions did is nobody's business (Y-1)."""
    file, _, _ = opened(tmp_path)
    file.write(SegmentChange([part("a")], NOW, NOW))
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob(f"{FILE}*")} == {0}
    file.close()


def test_times_that_an_earlier_version_did_not_write(tmp_path: Path) -> None:
    """Each is 0 then (S-1)."""
    file, _, _ = opened(tmp_path)
    file.write(SegmentChange([part("a")], NOW, NOW, ahead_s=5.0))
    file.close()
    for left_out, times in (("", (NOW, 5.0)), ("ahead_s", (NOW, 0.0)), ("latest", (0.0, 0.0))):
        database = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        database.execute("DELETE FROM meta WHERE name = ?", (left_out,))
        database.close()
        found: list[tuple[float, float]] = []
        again = StateFile(tmp_path, lambda _trouble: None)
        again.load(lambda _pack: None, lambda latest, ahead_s: found.append((latest, ahead_s)))  # noqa: B023 - at once
        again.close()
        assert found == [times]


def test_it_says_whose_it_is(tmp_path: Path) -> None:
    """For whoever finds the file (S-1)."""
    opened(tmp_path)[0].close()
    database = sqlite3.connect(tmp_path / FILE)
    assert dict(database.execute("SELECT name, value FROM meta"))["program"] == "breakloop"
    assert database.execute("PRAGMA application_id").fetchone()[0] == int.from_bytes(b"BLST")
    database.close()


def test_it_stays_within_a_few_times_of_what_is_true(tmp_path: Path, clock: FakeClock) -> None:
    """However often everything changes, and nothing of it is lost on the way, with or without a save between (S-1)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:cold", 7)
    for second in range(40):
        for number in range(100):
            life.write(f"win:{number}", bytes([second]) * 10_000)
        life.store.drop([f"win:{second}"])
        clock.advance(1.0)
        life.save()
        file = life.durable._file
        assert file is not None
        assert sum(row.size for row in file.rows.all) < 17_000_000
    assert state_file(tmp_path).stat().st_size < 20_000_000
    before = life.tables()
    life.kill()
    after = Life(tmp_path, clock)
    assert after.tables() == before
    assert (len(before["windows"]), after.spend("tpd:cold")) == (99, 8)
    after.end()


@pytest.mark.slow
def test_many_small_saves_become_few_rows(tmp_path: Path, clock: FakeClock) -> None:
    """An hour of little traffic is not an hour's rows (S-1)."""
    life = Life(tmp_path, clock)
    for second in range(1300):
        life.spend(f"tpd:{second}")
        clock.advance(1.0)
        life.save()
    file = life.durable._file
    assert file is not None
    assert len(file.rows.all) < 700
    before = life.tables()
    life.kill()
    after = Life(tmp_path, clock)
    assert list(after.tables()["accounts"].items()) == list(before["accounts"].items())
    after.end()
