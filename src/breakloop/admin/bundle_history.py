"""Bundles that were in force before (SPEC X-1): kept in the data directory, the newest hundred, so that one of them can
be put in force again. What is in force now, and putting something in its place, is `bundles`' business."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

KEPT_MAX: Final = 100
_FOLDER: Final = "bundles"
_ABOUT: Final = ".about.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """One bundle: who put it in force and when. `sha256` is that of its text."""

    version: int
    digest: str
    applied_at: float
    by: str
    sha256: str


class BundleHistory:
    """The folder; without a data directory, nothing is kept."""

    __slots__ = ("_folder",)

    def __init__(self, data_dir: Path | None) -> None:
        self._folder = None if data_dir is None else data_dir / _FOLDER

    def keep(self, text: bytes, version: int, digest: str, *, at: float, by: str) -> None:
        """Keep a bundle. Where that is not possible it is not kept: the bundle itself matters more."""
        if self._folder is None:
            return
        about = Kept(version, digest, at, by, sha256(text).hexdigest())
        place = self._folder / _stem(version, digest)
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(place, text, mode=0o600)
            write_whole(place.with_name(place.name + _ABOUT), json.dumps(asdict(about)).encode(), mode=0o600)
            for old in self.all()[KEPT_MAX:]:
                gone = self._folder / _stem(old.version, old.digest)
                gone.with_name(gone.name + _ABOUT).unlink(missing_ok=True)
                gone.unlink(missing_ok=True)

    def all(self) -> list[Kept]:
        """Return what is kept, the last applied first."""
        if self._folder is None:
            return []
        found = [one for file in self._folder.glob(f"*{_ABOUT}") if (one := _read(file)) is not None]
        return sorted(found, key=lambda one: (one.applied_at, one.version), reverse=True)

    def text(self, version: int, but: str = "") -> bytes | None:
        """Return the text of the last one with this version (`but` the one of this digest), if it is what was kept."""
        for one in self.all():
            if one.version == version and one.digest != but and self._folder is not None:
                with suppress(OSError):
                    text = (self._folder / _stem(one.version, one.digest)).read_bytes()
                    if sha256(text).hexdigest() == one.sha256:
                        return text
        return None


def write_whole(file: Path, content: bytes, *, mode: int | None = None) -> None:
    """Write beside it, flush, rename: whoever reads sees the old file or the new one. Keeps who may read it."""
    target = file.resolve()  # a link stays one
    if mode is None:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    beside = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as made:
            made.write(content)
            made.flush()
            os.fsync(made.fileno())
        beside.chmod(mode)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _stem(version: int, digest: str) -> str:
    return f"{version}-{digest[:16]}"


def _read(file: Path) -> Kept | None:
    try:
        said = json.loads(file.read_bytes())
        return Kept(int(said["version"]), said["digest"], float(said["applied_at"]), said["by"], said["sha256"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
