"""Find transcripts, run their sessions through a bundle, and record the loops on timelines.

Turns that a resumed session copied are counted once. Symbolic links are followed, and nothing is visited twice.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from breakloop.replay.across import Across, AcrossFinding, across_json
from breakloop.replay.formats.recording import NotJsonError, Recording, RecordingError
from breakloop.replay.report import moment, session_json, totals_json
from breakloop.replay.run import ReplaySetup, SessionOutcome, replay
from breakloop.replay.sessions import Pricing, RecordedTurn, SessionSlice, Spent, free, total
from breakloop.replay.timeline import TimelineLoop, TimelineRecorder

_NAMES: Final = re.compile(r".*\.(?:jsonl|ndjson|json|traj)(?:\.gz)?", re.IGNORECASE | re.DOTALL).fullmatch
_EVENT: Final = re.compile(r"(?:event-)?(\d+)(?:-[\w-]+)?\.json").fullmatch
_EVENTS: Final = "events"
_SKIPPED: Final = frozenset((".git", "node_modules", "__pycache__", ".venv", "event_cache"))
_DEPTH_MAX: Final = 64
# Where programs store transcripts, relative to the home directory.
USUAL: Final = (
    ("Claude Code", ".claude/projects"),
    ("Claude Code", ".config/claude/projects"),
    ("Codex", ".codex/sessions"),
    ("Codex", ".codex/archived_sessions"),
    ("OpenHands", ".openhands/sessions"),
    ("OpenHands", ".openhands/conversations"),
)


class ScanFinding(NamedTuple):
    """One transcript: a file, or the files of a directory in order."""

    name: str
    files: Sequence[Path]
    size: int
    changed_at: float
    named: bool = False  # this file was named explicitly


def usual(home: Path) -> list[tuple[str, Path]]:
    """Return the default locations that exist, with the names of their programs."""
    places = [(whose, home / place) for whose, place in USUAL]
    return [(whose, place) for whose, place in places if place.is_dir()]


def find(path: Path) -> tuple[list[ScanFinding], list[str]]:
    """Return everything below a path, the oldest first, and what cannot be read there.

    Raises `OSError` if the path itself cannot be read.
    """
    state = path.stat()
    if not path.is_dir():
        return [ScanFinding(str(path), (path,), state.st_size, state.st_mtime, named=True)], []
    with os.scandir(path):
        pass  # an unreadable directory is an error here; below it, it is reported as a problem
    walk = _Walk()
    found = sorted(walk.folder(path, 0), key=lambda one: (one.changed_at, one.name))
    return found, walk.trouble


class _Walk:
    def __init__(self) -> None:
        self.trouble: list[str] = []
        self._visited: set[tuple[int, int]] = set()

    def folder(self, path: Path, depth: int) -> Iterator[ScanFinding]:
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
                        yield ScanFinding(str(entry), (entry,), state.st_size, state.st_mtime)
            except OSError as error:
                self._cannot_read(entry, error)

    def _entries(self, path: Path) -> list[Path]:
        try:
            return sorted(path.iterdir())
        except OSError as error:
            self._cannot_read(path, error)
            return []

    def _cannot_read(self, path: Path, error: OSError) -> None:
        self.trouble.append(f"{path}: cannot be read: {error.strerror or error}")

    def _is_first(self, state: os.stat_result) -> bool:
        here = (state.st_dev, state.st_ino)
        if here in self._visited:
            return False
        self._visited.add(here)
        return True

    def _together(self, path: Path, files: list[Path]) -> Iterator[ScanFinding]:
        try:
            states = [file.stat() for file in files]
        except OSError as error:
            self._cannot_read(path, error)
            return
        yield ScanFinding(str(path), files, sum(one.st_size for one in states), max(one.st_mtime for one in states))


_KEY_BYTES: Final = 12
_PROBLEMS_MAX: Final = 100
_OPENINGS: Final = (b"{", b"[", b"\x1f\x8b", b"\xef\xbb\xbf")
_SNIFFED: Final = 64

Progress = Callable[[int], None]  # bytes read over all files


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The outcome of one session, and where it was recorded."""

    outcome: SessionOutcome
    file: str
    format: str


@dataclass(slots=True)
class TranscriptFiles:
    """Counts of the files."""

    read: int = 0
    others: int = 0  # not transcripts, and not named explicitly
    skipped: int = 0  # lines and files that could not be read
    problems: list[str] = field(default_factory=list)  # the first of them: file, line and reason

    def trouble(self, name: str, why: Sequence[str], count: int | None = None) -> None:
        self.skipped += len(why) if count is None else count
        room = _PROBLEMS_MAX - len(self.problems)
        self.problems += [f"{name}: {one}" for one in why[:room]]


class Scan:
    """Reads files one after the other."""

    def __init__(self, rig: ReplaySetup, pricing: Pricing = free, *, excerpts: bool = False) -> None:
        self.across = Across(rig.bundle, rig.descriptors, pricing)
        recorder = partial(TimelineRecorder, pricing, excerpts=excerpts)
        self._rig = replace(rig, recorder=recorder, across=self.across)
        self._known: set[bytes] = set()  # keys of turns that were counted
        self.files = TranscriptFiles()

    def sessions(self, found: Iterable[ScanFinding], progress: Progress = lambda _done: None) -> Iterator[ScanResult]:
        """Yield every session of these files as soon as it is complete."""
        done = 0
        for one in found:
            yield from self._transcript(one, done, progress)
            done += one.size
            progress(done)

    def _transcript(self, found: ScanFinding, done: int, progress: Progress) -> Iterator[ScanResult]:
        try:
            with _opened(found.files) as file:
                if not _may_be(file):
                    self._other(found, "is neither JSON Lines nor a JSON document")
                    return
                yield from self._recording(
                    found, Recording(file, found.name, lambda position: progress(done + position))
                )
        except OSError as error:
            self.files.trouble(found.name, [f"cannot be read: {error.strerror or error}"])

    def _recording(self, found: ScanFinding, recording: Recording) -> Iterator[ScanResult]:
        try:
            for (outcome,) in replay(self._fresh(recording.pieces()), self._rig, file=found.name):
                if outcome.turns:
                    yield ScanResult(outcome, found.name, recording.format)
        except NotJsonError as error:
            self.files.trouble(found.name, [str(error).removeprefix(f"{found.name}: ")])
            return
        except RecordingError as error:
            self._other(found, str(error).removeprefix(f"{found.name}: "))
            return
        self.files.read += 1
        self.files.trouble(found.name, recording.problems, recording.skipped)

    def _other(self, found: ScanFinding, why: str) -> None:
        """Count a file that is not a transcript."""
        self.files.others += 1
        self.files.problems += [f"{found.name}: {why}"] if found.named else []

    def _fresh(self, pieces: Iterable[SessionSlice]) -> Iterator[SessionSlice]:
        """Skip turns that were counted before, in this file or in another one."""
        for piece in pieces:
            turns = [turn for turn in piece.turns if self._is_first(turn)]
            if turns or piece.whole:
                yield piece if len(turns) == len(piece.turns) else piece._replace(turns=turns)

    def _is_first(self, turn: RecordedTurn) -> bool:
        if not turn.key:
            return True
        key = blake2b(turn.key.encode("utf-8", "replace"), digest_size=_KEY_BYTES).digest()
        if key in self._known:
            return False
        self._known.add(key)
        return True


def _opened(files: Sequence[Path]) -> IO[bytes]:
    """Open a file; a directory of events is read as one file with one event per line."""
    if len(files) == 1:
        return files[0].open("rb")
    return io.BufferedReader(io.BytesIO(b"\n".join([b" ".join(file.read_bytes().split(b"\n")) for file in files])))


def _may_be(file: IO[bytes]) -> bool:
    """Return whether the first bytes can be JSON, compressed or not."""
    assert isinstance(file, io.BufferedReader)  # noqa: S101 - as it was opened
    return file.peek(_SNIFFED)[:_SNIFFED].lstrip().startswith(_OPENINGS)


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals of a scan."""

    sessions: int
    turns: int
    looping: int  # sessions with a loop that would have been ended
    noticed: int  # sessions with a notice alone
    loops: int  # that would have been ended
    loop_turns: int
    inside: Spent  # of the loops, from their start
    after: Spent  # of the loops, from the point where they would have been ended
    spent: Spent
    landed: int = 0  # of the loops


def summary(scanned: Iterable[ScanResult]) -> Summary:
    listed = [one.outcome for one in scanned]
    lines = [one.timeline for one in listed if one.timeline is not None]
    loops = [loop for line in lines for loop in line.loops if loop.end is not None]
    looping = sum(1 for line in lines if line.blocked)
    return Summary(
        len(listed),
        sum(one.turns for one in listed),
        looping,
        len(lines) - looping,
        len(loops),
        sum(loop.turns for loop in loops),
        total(loop.spent for loop in loops),
        total(loop.after for loop in loops),
        total(one.spent for one in listed),
        sum(loop.land is not None for loop in loops),
    )


def scanned_json(scanned: ScanResult) -> dict[str, Any]:
    outcome = scanned.outcome
    loops = outcome.timeline.loops if outcome.timeline is not None else ()
    return session_json(outcome) | {
        "file": scanned.file,
        "format": scanned.format,
        "agent": outcome.session.agent or None,
        "model": outcome.model or None,
        **_spent("", outcome.spent),
        "loops": [_loop(loop) for loop in loops],
    }


def scan_totals_json(
    scanned: Sequence[ScanResult], files: TranscriptFiles, across: Sequence[AcrossFinding] = ()
) -> dict[str, Any]:
    found = summary(scanned)
    totals: dict[str, Any] = totals_json([one.outcome for one in scanned])["totals"]
    totals |= {
        "looping": found.looping,
        "loops": found.loops,
        "loop_turns": found.loop_turns,
        **_spent("", found.spent),
        **_spent("loop_", found.inside),
        **_spent("after_block_", found.after),
        **({"across_sessions": across_json(across)} if across else {}),
        "files": files.read,
        "other_files": files.others,
        "skipped": files.skipped,
        "problems": files.problems,
    }
    return {"totals": totals}


def _loop(loop: TimelineLoop) -> dict[str, Any]:
    return {
        "kind": loop.kind,
        "evidence": loop.evidence,
        "from": loop.first,
        "to": loop.last,
        "first_notice": loop.notice,
        **({} if loop.land is None else {"first_land": loop.land}),
        "first_block": loop.block,
        "began": moment(loop.began_at) or None,
        "seconds": None if loop.seconds is None else round(loop.seconds, 3),
        **_spent("", loop.spent),
        **_spent("after_block_", loop.after),
        **({"excerpt": loop.excerpt} if loop.excerpt else {}),
    }


def _spent(prefix: str, spent: Spent) -> dict[str, Any]:
    """Return tokens, whether they are estimated, and the cost if a price is known."""
    said: dict[str, Any] = {f"{prefix}tokens": spent.tokens, f"{prefix}tokens_estimated": spent.estimated}
    if spent.money is not None:
        said[f"{prefix}cost_usd"] = round(spent.money, 6)
    return said
