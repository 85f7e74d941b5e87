"""One process at a time keeps its state in a directory."""

from __future__ import annotations

import os
from pathlib import Path

from breakloop.store.snapshot import SnapshotLock


def test_only_one_has_it(tmp_path: Path) -> None:
    """The second is told why; after the first has let go it is free (S-1)."""
    first, second = SnapshotLock(tmp_path / "lock"), SnapshotLock(tmp_path / "lock")
    assert first.take() == ""
    assert second.take() == "another process uses this data directory"
    second.release()
    assert second.take() != ""
    first.release()
    assert second.take() == ""
    second.release()
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_a_lock_that_is_not_free_leaves_no_file_open(tmp_path: Path) -> None:
    """A process that is second tries again and again (S-1)."""

    def next_descriptor() -> int:
        found = os.dup(0)
        os.close(found)
        return found

    first, second = SnapshotLock(tmp_path / "lock"), SnapshotLock(tmp_path / "lock")
    first.take()
    before = next_descriptor()
    assert second.take() != ""
    assert next_descriptor() == before
    first.release()
    first.release()
    assert next_descriptor() < before
    assert os.fstat(1)  # nothing else was closed


def test_where_it_cannot_be_made(tmp_path: Path) -> None:
    """Without a lock nothing is written (S-1)."""
    assert SnapshotLock(tmp_path / "nowhere" / "lock").take() == "No such file or directory"
    (tmp_path / "lock").mkdir()
    assert SnapshotLock(tmp_path / "lock").take() == "Is a directory"
