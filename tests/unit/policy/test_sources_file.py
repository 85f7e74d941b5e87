"""Bundles in files and directories: what is read, when it is read again, and where signatures lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breakloop.errors import BundleError
from breakloop.policy.load import read_path, read_signature, signature_path
from breakloop.policy.sources import POLL_S, FileOrigin


def test_a_file_is_read_when_it_changed(tmp_path: Path) -> None:
    """The same stamp is nothing new; a change is, and so is an absence (B-3)."""
    file = tmp_path / "a.yaml"
    file.write_bytes(b"one")
    source = FileOrigin(file)
    fetched = source.fetch(None)
    assert fetched is not None
    assert [(one.name, one.data) for one in fetched.documents] == [(str(file), b"one")]
    assert not fetched.directory
    assert source.fetch(fetched.stamp) is None
    os.utime(file, (1, 1))
    assert source.fetch(fetched.stamp) is not None
    file.unlink()
    gone = source.fetch(fetched.stamp)
    assert gone is not None
    assert gone.documents[0].unread is not None
    assert "No such file" in gone.documents[0].unread.message
    assert source.fetch(gone.stamp) is None


def test_files_of_a_directory_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Policy files only, none that is hidden (B-3)."""
    for name in ("b.yml", "a.json", ".c.yaml", "d.txt", "bundle.sig", "e.yaml"):
        (tmp_path / name).write_text(name)
    fetched = read_path(tmp_path)
    assert fetched.directory
    assert [Path(one.name).name for one in fetched.documents] == ["a.json", "b.yml", "e.yaml"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BundleError, match="contains no policy file"):
        read_path(empty)


def test_signatures_lie_beside_files_and_in_directories(tmp_path: Path) -> None:
    """Where they are looked for; none is an empty text (B-4)."""
    file = tmp_path / "a.yaml"
    assert signature_path(file) == tmp_path / "a.yaml.sig"
    assert signature_path(tmp_path) == tmp_path / "bundle.sig"
    assert read_signature(file) == ""
    (tmp_path / "a.yaml.sig").write_bytes(b"ed25519:abc\xff\n")
    assert read_signature(file) == "ed25519:abc\ufffd\n"


def test_a_new_signature_is_a_change(tmp_path: Path) -> None:
    """A bundle may be signed after it was written; without a key nobody looks (B-4)."""
    file = tmp_path / "a.yaml"
    file.write_text("x")
    source, other = FileOrigin(file, signed=True), FileOrigin(file)
    before, unsigned = source.fetch(None), other.fetch(None)
    assert before is not None
    assert unsigned is not None
    (tmp_path / "a.yaml.sig").write_text("s")
    after = source.fetch(before.stamp)
    assert after is not None
    assert (before.signature, after.signature) == ("", "s")
    assert other.fetch(unsigned.stamp) is None


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    """It would wait for a writer, for ever (B-3)."""
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(BundleError, match="is a pipe"):
        FileOrigin(tmp_path / "a.yaml").fetch(None)


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People see the path that they gave; its last good copy goes by the whole one (B-3)."""
    monkeypatch.chdir(tmp_path)
    source = FileOrigin(Path("a.yaml"))
    assert (source.name, source.key) == ("a.yaml", str(tmp_path / "a.yaml"))
    assert (source.wait_s(0), source.wait_s(9), source.whole) == (POLL_S, POLL_S, False)
