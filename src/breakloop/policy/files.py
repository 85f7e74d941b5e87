"""What a bundle's source is (SPEC B-3): something that hands over bytes, one file each: `source_file`, `source_http`,
`source_redis`. What is done with them (verify, validate, put in force, keep, tell) is `policy.source`'s.

A bundle in a file or directory (SPEC B-3): its bytes, and whether they may have changed since. A signature lies
beside the file (`policy.yaml.sig`), or in the directory (`bundle.sig`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from breakloop.errors import BundleError, Problem
from breakloop.policy.documents import MAX_BYTES

Stamp = tuple[object, ...]  # what changes when the bundle does


@dataclass(frozen=True, slots=True)
class BundleDocument:
    """One text of a bundle. `name` stands in messages; `kind` is "json" or "yaml" where that is known, else empty."""

    name: str
    data: bytes
    kind: str = ""
    unread: Problem | None = None  # why there is no data


@dataclass(frozen=True, slots=True)
class BundleBytes:
    """What a source holds now: one document, or those of a directory in their order, and its detached signature."""

    documents: tuple[BundleDocument, ...]
    stamp: Stamp = ()
    signature: str = ""
    directory: bool = False
    forced: bool = False  # whoever put it there asked for a lower version


class BundleOrigin(Protocol):
    """Where a bundle comes from. Used by one thread at a time, never by the event loop's."""

    @property
    def name(self) -> str:
        """What people know it by; nothing of a credential is in it."""
        ...

    @property
    def key(self) -> str:
        """What tells it from other sources, in the name of its last good copy."""
        ...

    @property
    def whole(self) -> bool:
        """Tell whether it never hands over something half-written, so that a mistake can be told at once."""
        ...

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        """Return what it holds, or None if that is still what has this stamp; raises `BundleError` or `OSError`."""
        ...

    def wait_s(self, failures: int) -> float:
        """Return how long to wait before looking again, after so many failures in a row to look."""
        ...


POLL_S: Final = 0.5
SUFFIXES: Final = (".yaml", ".yml", ".json")
SIGNATURE_SUFFIX: Final = ".sig"
DIRECTORY_SIGNATURE: Final = "bundle.sig"
SIGNATURE_MAX_BYTES: Final = 16 * 1024


class FileOrigin:
    """One path, looked at twice a second; links are followed, because Kubernetes changes a ConfigMap by a link."""

    __slots__ = ("_path", "_signed")

    whole = False  # a save may be half done

    def __init__(self, path: Path, *, signed: bool = False) -> None:
        self._path = path
        self._signed = signed

    @property
    def name(self) -> str:
        """The path as it was given."""
        return str(self._path)

    @property
    def key(self) -> str:
        """The path from the root."""
        return str(self._path.absolute())

    def wait_s(self, failures: int) -> float:  # noqa: ARG002 - the protocol's
        """Twice a second, whatever happens: it costs a few system calls."""
        return POLL_S

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        """Read it, unless nothing of it changed."""
        stamp = _stamp(self._path)
        if self._signed:
            stamp = (stamp, _file_stamp(signature_path(self._path)))
        if stamp == known:
            return None
        if self._path.is_fifo():  # reading it would wait for a writer, for ever
            problem = Problem(self.name, 1, 1, "", "is a pipe", "a bundle that is watched is a file or a directory")
            raise BundleError([problem])
        return read_path(self._path, signed=self._signed, stamp=stamp)


def read_path(path: Path, *, signed: bool = False, stamp: Stamp = ()) -> BundleBytes:
    """Read a file, or the files of a directory in the order of their names."""
    signature = read_signature(path) if signed else ""
    if not path.is_dir():
        return BundleBytes((_read(path),), stamp, signature)
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and not file.name.startswith("."))
    if not files:
        raise BundleError([Problem(str(path), 1, 1, "", "holds no policy file", "expected *.yaml, *.yml or *.json")])
    return BundleBytes(tuple(_read(file) for file in files), stamp, signature, directory=True)


def signature_path(path: Path) -> Path:
    """Return where the signature of a bundle lies."""
    return path / DIRECTORY_SIGNATURE if path.is_dir() else path.with_name(path.name + SIGNATURE_SUFFIX)


def read_signature(path: Path) -> str:
    """Return the signature of a bundle, or an empty text; one that cannot be read raises `OSError`."""
    try:
        with signature_path(path).open("rb") as file:
            return file.read(SIGNATURE_MAX_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return ""


def _read(path: Path) -> BundleDocument:
    try:
        with path.open("rb") as file:
            return BundleDocument(str(path), file.read(MAX_BYTES + 1))
    except OSError as error:
        return BundleDocument(str(path), b"", unread=Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}"))


def _stamp(path: Path) -> Stamp:
    """What can be seen of a path without reading it."""
    try:
        if not path.is_dir():
            return _file_stamp(path)
        names = sorted(entry.name for entry in os.scandir(path) if not entry.name.startswith("."))
    except OSError as error:
        return ("", error.errno)
    return tuple((name, _file_stamp(path / name)) for name in names)


def _file_stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError as error:
        return ("", error.errno)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
