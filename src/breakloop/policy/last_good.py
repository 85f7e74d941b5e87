"""The last good bundle on disk (SPEC B-3), so that a restart without its source still enforces. One file a source;
written whole or not at all, checked when it is read. When to write and to use it is `policy.source`'s decision."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from breakloop.errors import BundleError, Problem
from breakloop.policy.load import LoadedBundle, load_text

_FORMAT = 1


class LastGood:
    """The copy of one source's bundle below a data directory."""

    __slots__ = ("_source", "path")

    def __init__(self, data_dir: Path, source: Path) -> None:
        self._source = str(source.absolute())
        name = sha256(self._source.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        self.path = data_dir / "last-good" / f"{name}.json"

    def write(self, loaded: LoadedBundle) -> str:
        """Keep a bundle; returns why that was not possible, or an empty text."""
        bundle = loaded.bundle.model_dump(mode="json", by_alias=True, exclude_unset=True)
        text = _canonical(bundle)
        try:
            if load_text(text.encode(), "last-good.json").bundle != loaded.bundle:
                return "it does not read back the same"
        except BundleError as error:
            return f"it does not read back: {error.problems[0].message}"
        copy = {
            "format": _FORMAT,
            "source": self._source,
            "version": loaded.bundle.bundle_version,
            "digest": loaded.digest,
            "checksum": sha256(text.encode()).hexdigest(),
            "bundle": bundle,
        }
        try:
            _write_whole(self.path, json.dumps(copy, indent=1).encode())
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def read(self) -> LoadedBundle | None:
        """Return the copy, or None without one; a damaged one raises `BundleError`."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._damaged(error.strerror or str(error)) from None
        try:
            copy = json.loads(raw)
            text = _canonical(copy["bundle"])
            intact = copy["format"] == _FORMAT and copy["checksum"] == sha256(text.encode()).hexdigest()
            intact = intact and isinstance(copy["digest"], str) and copy["source"] == self._source
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._damaged("it is not what was written") from None
        if not intact:
            raise self._damaged("its checksum does not fit")
        return replace(load_text(text.encode(), str(self.path)), digest=copy["digest"])

    def _damaged(self, why: str) -> BundleError:
        hint = "it is ignored, and written again with the next valid bundle"
        return BundleError([Problem(str(self.path), 1, 1, "", f"the last good copy cannot be used: {why}", hint)])


def _canonical(bundle: object) -> str:
    return json.dumps(bundle, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _write_whole(path: Path, content: bytes) -> None:
    """Write beside it, flush, rename: whoever reads sees the old file or the new one, after a power cut too."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
