"""The interface of bundle sources (`BundleOrigin`), and the source that reads a file or a directory.

A source only returns bytes. `policy.watch` verifies them, validates them and puts them in force; other sources are
in `policy.remote_sources`. The signature of a file is stored beside it (`policy.yaml.sig`), that of a directory
inside it (`bundle.sig`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from breakloop.errors import BundleError, Problem
from breakloop.policy.documents import MAX_BYTES

Stamp = tuple[object, ...]  # a value that changes whenever the bundle does


@dataclass(frozen=True, slots=True)
class BundleDocument:
    """One text of a bundle. `name` is used in messages; `kind` is "json" or "yaml" if known, or else empty."""

    name: str
    data: bytes
    kind: str = ""
    unread: Problem | None = None  # why there is no data


@dataclass(frozen=True, slots=True)
class BundleBytes:
    """What a source holds now: one document, or those of a directory in order, and the detached signature."""

    documents: tuple[BundleDocument, ...]
    stamp: Stamp = ()
    signature: str = ""
    directory: bool = False
    forced: bool = False  # it was stored with a request to accept a lower version


class BundleOrigin(Protocol):
    """Where a bundle comes from. Used by one thread at a time, but never by that of the event loop."""

    @property
    def name(self) -> str:
        """The name for display. It contains no credentials."""
        ...

    @property
    def key(self) -> str:
        """The identity of the source, used in the name of its last good copy."""
        ...

    @property
    def whole(self) -> bool:
        """Whether it never returns a partly written bundle, so that a problem can be reported at once."""
        ...

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        """Return what it holds, or None if it still has this stamp. Raises `BundleError` or `OSError`."""
        ...

    def wait_s(self, failures: int) -> float:
        """Return how long to wait before the next check, after this number of consecutive failures."""
        ...


POLL_S: Final = 0.5
SUFFIXES: Final = (".yaml", ".yml", ".json")
SIGNATURE_SUFFIX: Final = ".sig"
DIRECTORY_SIGNATURE: Final = "bundle.sig"
SIGNATURE_MAX_BYTES: Final = 16 * 1024


class FileOrigin:
    """A path that is checked twice a second. Links are followed, because Kubernetes updates a ConfigMap by replacing a
    link.
    """

    __slots__ = ("_path", "_signed")

    whole = False  # a file may be read while it is being saved

    def __init__(self, path: Path, *, signed: bool = False) -> None:
        self._path = path
        self._signed = signed

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def key(self) -> str:
        return str(self._path.absolute())

    def wait_s(self, failures: int) -> float:  # noqa: ARG002 - the protocol's
        """Return half a second, regardless of failures: a check costs only a few system calls."""
        return POLL_S

    def fetch(self, known: Stamp | None) -> BundleBytes | None:
        """Read the bundle, unless it is unchanged."""
        stamp = _stamp(self._path)
        if self._signed:
            stamp = (stamp, _file_stamp(signature_path(self._path)))
        if stamp == known:
            return None
        if self._path.is_fifo():  # reading it could block forever
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
    """Return the path of a bundle's signature."""
    return path / DIRECTORY_SIGNATURE if path.is_dir() else path.with_name(path.name + SIGNATURE_SUFFIX)


def read_signature(path: Path) -> str:
    """Return the signature of a bundle, or an empty string if there is none. Raises `OSError` if it cannot be read."""
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
    """Return the stamp of a path without reading its content."""
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
