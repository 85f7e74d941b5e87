"""A bundle in a file or directory (SPEC B-3): its bytes, and whether they may have changed since. A signature lies
beside the file (`policy.yaml.sig`), or in the directory (`bundle.sig`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from breakloop.errors import BundleError, Problem
from breakloop.policy.fetched import Document, Fetched, Stamp
from breakloop.policy.positions import MAX_BYTES

POLL_S: Final = 0.5
SUFFIXES: Final = (".yaml", ".yml", ".json")
SIGNATURE_SUFFIX: Final = ".sig"
DIRECTORY_SIGNATURE: Final = "bundle.sig"
SIGNATURE_MAX_BYTES: Final = 16 * 1024


class FileSource:
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

    def fetch(self, known: Stamp | None) -> Fetched | None:
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


def read_path(path: Path, *, signed: bool = False, stamp: Stamp = ()) -> Fetched:
    """Read a file, or the files of a directory in the order of their names."""
    signature = read_signature(path) if signed else ""
    if not path.is_dir():
        return Fetched((_read(path),), stamp, signature)
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and not file.name.startswith("."))
    if not files:
        raise BundleError([Problem(str(path), 1, 1, "", "holds no policy file", "expected *.yaml, *.yml or *.json")])
    return Fetched(tuple(_read(file) for file in files), stamp, signature, directory=True)


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


def _read(path: Path) -> Document:
    try:
        with path.open("rb") as file:
            return Document(str(path), file.read(MAX_BYTES + 1))
    except OSError as error:
        return Document(str(path), b"", unread=Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}"))


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
