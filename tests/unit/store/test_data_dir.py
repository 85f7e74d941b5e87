"""The data directory and the secret in it."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from breakloop.errors import SettingsError
from breakloop.store.data_dir import DataDir, write_whole


def test_secret_is_made_once_and_kept_private(tmp_path: Path) -> None:
    """The same key after a restart, readable by its owner only, in a directory of his own."""
    path = tmp_path / "a" / "b"
    first = DataDir(path)
    key = first.secret("", "")
    assert len(key) == 32
    assert DataDir(path).secret("", "") == key
    assert (path / "secret").stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.iterdir()] == ["secret"]
    assert not first.secret_is_temporary
    assert DataDir(tmp_path / "other").secret("", "") != key


def test_given_secret_wins(tmp_path: Path) -> None:
    """A fleet shares one by setting or file, of any length, with or without a line end."""
    data = DataDir(tmp_path)
    (tmp_path / "file").write_text("s" * 100 + "\n")
    assert data.secret("s" * 100, "") == data.secret("", str(tmp_path / "file"))
    assert data.secret("s" * 100 + "x", "") != data.secret("s" * 100, "")
    assert not (tmp_path / "secret").exists()


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (" \n", "is empty")])
def test_named_file_must_hold_one(tmp_path: Path, content: str | None, said: str) -> None:
    """A secret somebody asked for is not replaced by another."""
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=said):
        DataDir(tmp_path).secret("", str(file))


def test_empty_leftover_is_replaced(tmp_path: Path) -> None:
    """A file that a crash left empty is no secret."""
    (tmp_path / "secret").write_text("")
    key = DataDir(tmp_path).secret("", "")
    assert DataDir(tmp_path).secret("", "") == key
    assert len((tmp_path / "secret").read_text()) == 65


def test_unusable_directory_is_a_warning(tmp_path: Path) -> None:
    """A read-only or missing home costs what is kept, not the start."""
    (tmp_path / "file").write_text("")
    data = DataDir(tmp_path / "file" / "below")
    assert data.path is None
    assert "cannot be used (Not a directory)" in data.warnings[0]
    assert len(data.secret("", "")) == 32
    assert len(data.kept_secret()) == 64  # as long as one that is stored
    assert data.secret_is_temporary


def test_unusable_secret_is_a_warning(tmp_path: Path) -> None:
    """Whatever stands where the secret should be is said."""
    (tmp_path / "secret").mkdir()
    data = DataDir(tmp_path)
    assert len(data.secret("", "")) == 32
    assert "the secret is for this run only" in data.warnings[0]


def test_the_secret_itself_can_be_handed_on(tmp_path: Path) -> None:
    """Whoever is given it has the same key, without the directory (S-5)."""
    data = DataDir(tmp_path / "a")
    kept = data.kept_secret().decode()
    assert DataDir(tmp_path / "b").secret(kept, "") == data.secret("", "")


def test_a_file_is_complete_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is on the disk by then, so that a power cut leaves the old one or the new one."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.pread(file, 100, 0)))
    opened = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, mode=0o777: opened(path, flags & ~os.O_WRONLY | os.O_RDWR, mode)
    )
    write_whole(tmp_path / "file", b"content")
    assert synced == [b"content"]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    (tmp_path / "file").chmod(0o705)
    write_whole(tmp_path / "file", b"more")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o705


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """The temporary file goes, also when it cannot take the place of the other."""
    (tmp_path / "file" / "below").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "file", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_listed_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files in it have known names."""

    def closed(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    data = DataDir(tmp_path)
    assert (data.path, data.warnings) == (tmp_path, [])


@pytest.mark.parametrize(("own", "agreed"), [("", "theirs"), ("mine", "theirs"), ("mine", "mine"), ("mine", "")])
def test_the_secret_that_instances_agree_on_is_stored(tmp_path: Path, own: str, agreed: str) -> None:
    """So that they have it without Redis, too; when there is none yet, or no answer, the own one stays (S-5)."""
    file = tmp_path / "secret"
    if own:
        file.write_text(f"{own}\n")
        file.chmod(0o640)
    asked: list[str] = []

    async def agree(mine: str) -> str:
        asked.append(mine)
        return agreed

    data = DataDir(tmp_path)
    assert asyncio.run(data.agreed_secret(agree)) == agreed
    assert asked == [own]
    assert file.read_text() == f"{agreed or own}\n"
    assert file.stat().st_mode & 0o777 == (0o640 if agreed in {"", own} else 0o600)
    assert data.warnings == []


def test_an_agreed_secret_that_cannot_be_stored_is_used_nevertheless(tmp_path: Path) -> None:
    async def agree(_mine: str) -> str:
        return "theirs"

    (tmp_path / "secret" / "below").mkdir(parents=True)
    data = DataDir(tmp_path)
    assert asyncio.run(data.agreed_secret(agree)) == "theirs"
    assert data.warnings == [f"{tmp_path / 'secret'} cannot be written (Is a directory): the secret is not stored"]
    (tmp_path / "file").write_text("")
    assert asyncio.run(DataDir(tmp_path / "file" / "below").agreed_secret(agree)) == "theirs"


def test_a_directory_that_others_can_change_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used, because nothing else may be at hand; but its owner is told. A volume of its own is nobody else's."""
    path = tmp_path / "data"
    assert DataDir(path).warnings == []
    path.chmod(0o770)
    assert DataDir(path).warnings == []
    path.chmod(0o777)
    assert "is writable for every user of this machine" in DataDir(path).warnings[0]
    assert DataDir(path).path == path
    monkeypatch.setattr(Path, "is_mount", lambda _: True)
    assert DataDir(path).warnings == []


def test_symbolic_links_are_named_and_those_of_others_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may keep a file on another disk; nobody else may choose where the secret is written."""
    path, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    path.mkdir(mode=0o700)
    (path / "secret").symlink_to(elsewhere)
    own = DataDir(path)
    assert (own.path, own.warnings) == (
        path,
        [f"{path}/secret is a symbolic link: its content is only as safe as {elsewhere}"],
    )
    theirs = SimpleNamespace(st_uid=path.stat().st_uid + 1, st_mode=stat.S_IFLNK)
    monkeypatch.setattr(Path, "lstat", lambda _: theirs)
    planted = DataDir(path)
    planted.secret("", "")
    assert planted.path is None
    assert planted.secret_is_temporary
    assert any("secret is a symbolic link that another user created" in one for one in planted.warnings)
    assert not elsewhere.exists()
