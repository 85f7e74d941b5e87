"""Tests of `admin.bundle_history`: what was in force before."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.admin import bundles
from breakloop.admin.bundles import BundleHistory, StoredBundle
from breakloop.store.data_dir import write_whole


def _digest(number: int) -> str:
    return f"{number:064x}"[::-1]


def test_bundles_are_kept_and_found_again(tmp_path: Path) -> None:
    kept = BundleHistory(tmp_path)
    assert kept.all() == []
    kept.keep(b"one", 1, _digest(1), at=10.0, by="ada")
    kept.keep(b"two", 2, _digest(2), at=20.0, by="")
    assert [(one.version, one.by, one.applied_at) for one in kept.all()] == [(2, "", 20.0), (1, "ada", 10.0)]
    assert kept.text(1) == b"one"
    assert kept.text(3) is None
    assert (tmp_path / "bundles" / f"1-{_digest(1)[:16]}").read_bytes() == b"one"
    assert (tmp_path / "bundles").stat().st_mode & 0o777 == 0o700


def test_the_last_one_of_a_version_is_meant_but_not_the_one_in_force(tmp_path: Path) -> None:
    kept = BundleHistory(tmp_path)
    kept.keep(b"old", 5, _digest(1), at=10.0, by="")
    kept.keep(b"new", 5, _digest(2), at=20.0, by="")
    assert kept.text(5) == b"new"
    assert kept.text(5, but=_digest(2)) == b"old"


def test_what_was_tampered_with_is_not_put_in_force(tmp_path: Path) -> None:
    kept = BundleHistory(tmp_path)
    kept.keep(b"one", 1, _digest(1), at=10.0, by="")
    (tmp_path / "bundles" / f"1-{_digest(1)[:16]}").write_bytes(b"other")
    assert kept.text(1) is None
    (tmp_path / "bundles" / "9-x.about.json").write_text("[]")
    (tmp_path / "bundles" / "8-x.about.json").write_text('{"version": 8}')
    assert [one.version for one in kept.all()] == [1]


def test_only_so_many_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "KEPT_MAX", 3)
    kept = BundleHistory(tmp_path)
    for number in range(1, 7):
        kept.keep(b"%d" % number, number, _digest(number), at=float(number), by="")
    assert [one.version for one in kept.all()] == [6, 5, 4]
    assert len(list((tmp_path / "bundles").iterdir())) == 6


def test_without_a_place_nothing_is_kept(tmp_path: Path) -> None:
    kept = BundleHistory(None)
    kept.keep(b"x", 1, _digest(1), at=1.0, by="")
    assert (kept.all(), kept.text(1)) == ([], None)
    (tmp_path / "bundles").write_text("a file is in the way")
    BundleHistory(tmp_path).keep(b"x", 1, _digest(1), at=1.0, by="")
    assert BundleHistory(tmp_path).all() == []
    assert StoredBundle(1, "d", 1.0, "", "s").version == 1


def test_a_file_is_written_whole_and_stays_as_readable_as_it_was(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]
