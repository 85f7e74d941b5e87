"""The data directory, which holds what survives a restart, and the secret in it.

The last good bundle is stored by `policy.watch`. Without a usable directory the process runs normally, but nothing is
saved.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from breakloop.errors import SettingsError


class DataDir:
    """A directory that may be unusable: `path` is then None, and `warnings` has the reasons."""

    def __init__(self, path: Path) -> None:
        self.warnings: list[str] = []
        self.path: Path | None = path
        self.secret_is_temporary = False  # there was no place to store it
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            why = planted_link(path) if os.access(path, os.W_OK | os.X_OK) else "it is not writable"
            self.warnings += exposures(path)
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            self.path = None
            self.warnings.append(
                f"data_dir {path} cannot be used ({why}): the secret and the last valid bundle are lost at a restart"
            )

    def secret(self, given: str, file: str) -> bytes:
        """Return the key of fingerprints: from the settings, from a file, or generated once and stored here."""
        if given:
            return _key(given.encode())
        if file:
            return _key(_read_given(Path(file)))
        return _key(self.kept_secret())

    def kept_secret(self) -> bytes:
        """Return the secret that is generated once and stored here; without a usable directory, one for this run."""
        if self.path is not None:
            kept = self.path / "secret"
            try:
                write_once(kept, os.urandom(32).hex(), _filled)
                return kept.read_bytes().strip()
            except OSError as error:
                self.warnings.append(f"{kept} cannot be used ({error.strerror}): the secret is for this run only")
        self.secret_is_temporary = True
        return os.urandom(32).hex().encode()

    async def agreed_secret(self, agree: Callable[[str], Awaitable[str]]) -> str:
        """Return the secret shared by all instances and store a copy; `agree` is called with the local one."""
        kept = None if self.path is None else self.path / "secret"
        own = ""
        with suppress(OSError):
            own = "" if kept is None else kept.read_text().strip()
        agreed = await agree(own)
        if agreed and agreed != own and kept is not None:
            try:
                write_whole(kept, f"{agreed}\n".encode(), mode=0o600)
            except OSError as error:
                self.warnings.append(f"{kept} cannot be written ({error.strerror}): the secret is not stored")
        return agreed


def planted_link(path: Path) -> str:
    """Return why a data directory must not be used: a symbolic link in it is neither its owner's nor root's."""
    trusted = {0, path.stat().st_uid}
    for link in _links(path):
        if link.lstat().st_uid not in trusted:
            return f"{link.name} is a symbolic link that another user created"
    return ""


def exposures(path: Path) -> list[str]:
    """Return what makes the content of a data directory less safe than its owner may expect."""
    found = [
        f"{link} is a symbolic link: its content is only as safe as {os.readlink(link)}"  # noqa: PTH115 - as written
        for link in _links(path)
    ]
    # A volume is mounted for this process alone, and Kubernetes makes an emptyDir writable for everyone.
    if path.stat().st_mode & stat.S_IWOTH and not path.is_mount():
        found.append(
            f"data_dir {path} is writable for every user of this machine, who can replace the secret, the counters and "
            f"the orders of operators (chmod 700 {path})"
        )
    return found


def _links(path: Path) -> list[Path]:
    try:
        return sorted(file for file in path.iterdir() if file.is_symlink())
    except PermissionError:  # files in it can be used, but not listed
        return []


def write_whole(file: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write a temporary file, sync and rename it, so readers see the old file or the new one. Keeps permissions."""
    target = file.resolve()  # a symbolic link stays one
    if mode is None:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    beside = _written_beside(target, content, mode)
    try:
        beside.chmod(mode)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def write_once(file: Path, line: str, usable: Callable[[Path], bool]) -> None:
    """Write a file that only its owner can read, unless there is a usable one. Of processes that start together, the
    first to link the file wins."""
    if usable(file):
        return
    beside = _written_beside(file, f"{line}\n".encode(), 0o600)
    try:
        if file.exists():  # a damaged leftover, otherwise it would be usable
            beside.replace(file)
        else:
            with suppress(FileExistsError):  # another process was faster
                os.link(beside, file)
    finally:
        beside.unlink(missing_ok=True)


def _written_beside(file: Path, content: bytes, mode: int) -> Path:
    """Write and sync a temporary file in the same folder."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as made:
            made.write(content)
            made.flush()
            os.fsync(made.fileno())
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    return beside


def _key(secret: bytes) -> bytes:
    """Derive a key of 32 bytes from a secret of any length."""
    return blake2b(secret, digest_size=32, person=b"breakloop-key").digest()


def _read_given(file: Path) -> bytes:
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"secret_file {file}: {error.strerror}") from None
    if not secret:
        raise SettingsError(f"secret_file {file}: is empty")
    return secret


def _filled(file: Path) -> bool:
    try:
        return bool(file.read_bytes().strip())
    except FileNotFoundError:
        return False
