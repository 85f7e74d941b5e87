"""Finds what may be transcripts under a path: files by their names, and folders of events, one a file, that are one
transcript together. Links are followed, and nothing is visited twice. What is in a file is the readers' business."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_NAMES: Final = re.compile(r".*\.(?:jsonl|ndjson|json|traj)(?:\.gz)?", re.IGNORECASE | re.DOTALL).fullmatch
_EVENT: Final = re.compile(r"(?:event-)?(\d+)(?:-[\w-]+)?\.json").fullmatch
_EVENTS: Final = "events"
_SKIPPED: Final = frozenset((".git", "node_modules", "__pycache__", ".venv", "event_cache"))
_DEPTH_MAX: Final = 64
# Where programs keep their transcripts, below the home directory.
USUAL: Final = (
    ("Claude Code", ".claude/projects"),
    ("Claude Code", ".config/claude/projects"),
    ("Codex", ".codex/sessions"),
    ("Codex", ".codex/archived_sessions"),
    ("OpenHands", ".openhands/sessions"),
    ("OpenHands", ".openhands/conversations"),
)


class Found(NamedTuple):
    """One transcript: a file, or the files of a folder in their order."""

    name: str
    files: Sequence[Path]
    size: int
    changed_at: float
    named: bool = False  # somebody asked for this very file


class Trouble(NamedTuple):
    """Something that could not be looked at."""

    name: str
    why: str


def usual(home: Path) -> list[tuple[str, Path]]:
    """Return the usual places that there are, with whose they are."""
    places = [(whose, home / place) for whose, place in USUAL]
    return [(whose, place) for whose, place in places if place.is_dir()]


def find(path: Path) -> tuple[list[Found], list[Trouble]]:
    """Return everything under a path, the oldest first; `OSError` when the path itself cannot be read."""
    state = path.stat()
    if not path.is_dir():
        return [Found(str(path), (path,), state.st_size, state.st_mtime, named=True)], []
    with os.scandir(path):
        pass  # a folder that may not be read is an error here, and one inside it is trouble
    walk = _Walk()
    found = sorted(walk.folder(path, 0), key=lambda one: (one.changed_at, one.name))
    return found, walk.trouble


class _Walk:
    def __init__(self) -> None:
        self.trouble: list[Trouble] = []
        self._visited: set[tuple[int, int]] = set()

    def folder(self, path: Path, depth: int) -> Iterator[Found]:
        """Look through a folder and those below it."""
        entries = self._entries(path)
        if path.name == _EVENTS:
            events = sorted((int(match[1]), entry) for entry in entries if (match := _EVENT(entry.name)) is not None)
            if events:
                yield from self._together(path, [entry for _, entry in events])
                return
        for entry in entries:
            try:
                if entry.is_dir():
                    if entry.name not in _SKIPPED and depth < _DEPTH_MAX and self._is_first(entry.stat()):
                        yield from self.folder(entry, depth + 1)
                elif entry.is_file() and _NAMES(entry.name):
                    state = entry.stat()
                    if state.st_size and self._is_first(state):
                        yield Found(str(entry), (entry,), state.st_size, state.st_mtime)
            except OSError as error:
                self.trouble.append(Trouble(str(entry), error.strerror or str(error)))

    def _entries(self, path: Path) -> list[Path]:
        try:
            return sorted(path.iterdir())
        except OSError as error:
            self.trouble.append(Trouble(str(path), error.strerror or str(error)))
            return []

    def _is_first(self, state: os.stat_result) -> bool:
        here = (state.st_dev, state.st_ino)
        if here in self._visited:
            return False
        self._visited.add(here)
        return True

    def _together(self, path: Path, files: list[Path]) -> Iterator[Found]:
        try:
            states = [file.stat() for file in files]
        except OSError as error:
            self.trouble.append(Trouble(str(path), error.strerror or str(error)))
            return
        yield Found(str(path), files, sum(one.st_size for one in states), max(one.st_mtime for one in states))
