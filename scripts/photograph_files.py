"""Part of `scripts.photograph`: files of lines, and digests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path


def digest(data: bytes) -> str:
    """Return the SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file, one line each; half a surrogate pair is written as an escape."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(f"{line}\n" for line in lines)


def lines_of(title: str, groups: Iterable[Iterable[str]]) -> Iterator[str]:
    """A title, and the lines below it."""
    yield title
    for group in groups:
        yield from group
