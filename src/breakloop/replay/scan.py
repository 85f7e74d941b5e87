"""Looks for loops in transcripts that people already have (SPEC X-6): every file found is read, its sessions are run
past a bundle as a gateway would have judged them, and what repeats is put on a timeline. Turns that a resumed session
copied are counted once. Finding files is `places`' work, telling of loops the commands'."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Final

from breakloop.replay.cost import Pricing, Spent, free, total
from breakloop.replay.places import Found
from breakloop.replay.readers.files import NotJsonError, Recording, RecordingError
from breakloop.replay.run import Outcome, Rig, replay
from breakloop.replay.sessions import Piece, Turn
from breakloop.replay.timeline import Tape, Tapes, Timeline

_KEY_BYTES: Final = 12
_PROBLEMS_MAX: Final = 100
_OPENINGS: Final = (b"{", b"[", b"\x1f\x8b", b"\xef\xbb\xbf")
_SNIFFED: Final = 64

Progress = Callable[[int], None]  # bytes read of all files


@dataclass(frozen=True, slots=True)
class Scanned:
    """One session: what was said about it, and its timeline if anything was."""

    outcome: Outcome
    file: str
    format: str
    model: str
    spent: Spent
    timeline: Timeline | None


@dataclass(slots=True)
class Files:
    """What became of the files."""

    read: int = 0
    others: int = 0  # no transcripts, and nobody said that they were
    skipped: int = 0  # lines and files that could not be read
    problems: list[str] = field(default_factory=list)  # the first of them: file, line and reason

    def trouble(self, name: str, why: Sequence[str], count: int | None = None) -> None:
        """Take note of what could not be read."""
        self.skipped += len(why) if count is None else count
        room = _PROBLEMS_MAX - len(self.problems)
        self.problems += [f"{name}: {one}" for one in why[:room]]


class Scan:
    """Reads files, one after the other."""

    def __init__(self, rig: Rig, pricing: Pricing = free, *, excerpts: bool = False) -> None:
        self._rig = rig
        self._pricing = pricing
        self._excerpts = excerpts
        self._known: set[bytes] = set()  # keys of turns that were counted
        self.files = Files()

    def sessions(self, found: Iterable[Found], progress: Progress | None = None) -> Iterator[Scanned]:
        """Return every session of these files, as soon as it is over."""
        done = 0
        for one in found:
            yield from self._transcript(one, done, progress)
            done += one.size
            if progress is not None:
                progress(done)

    def _transcript(self, found: Found, done: int, progress: Progress | None) -> Iterator[Scanned]:
        def advance(position: int) -> None:
            if progress is not None:
                progress(done + position)

        try:
            with _opened(found.files) as file:
                if not _may_be(file):
                    self._other(found, "is neither JSON Lines nor a JSON document")
                    return
                yield from self._recording(found, Recording(file, found.name, advance))
        except OSError as error:
            self.files.trouble(found.name, [f"cannot be read: {error.strerror or error}"])

    def _recording(self, found: Found, recording: Recording) -> Iterator[Scanned]:
        tapes = Tapes(self._pricing, excerpts=self._excerpts)
        try:
            for (outcome,) in replay(self._fresh(recording.pieces()), self._rig, watch=tapes.take):
                if outcome.turns:
                    yield _scanned(outcome, tapes.pop(outcome.session), found.name, recording.format)
        except NotJsonError as error:
            self.files.trouble(found.name, [str(error).removeprefix(f"{found.name}: ")])
            return
        except RecordingError as error:
            self._other(found, str(error).removeprefix(f"{found.name}: "))
            return
        self.files.read += 1
        self.files.trouble(found.name, recording.problems, recording.skipped)

    def _other(self, found: Found, why: str) -> None:
        """Take note of a file that is no transcript."""
        self.files.others += 1
        self.files.problems += [f"{found.name}: {why}"] if found.named else []

    def _fresh(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Leave out turns that were counted before, in this file or another."""
        for piece in pieces:
            turns = [turn for turn in piece.turns if self._is_first(turn)]
            if turns or piece.whole:
                yield piece if len(turns) == len(piece.turns) else piece._replace(turns=turns)

    def _is_first(self, turn: Turn) -> bool:
        if not turn.key:
            return True
        key = blake2b(turn.key.encode("utf-8", "replace"), digest_size=_KEY_BYTES).digest()
        if key in self._known:
            return False
        self._known.add(key)
        return True


def _scanned(outcome: Outcome, tape: Tape, file: str, kind: str) -> Scanned:
    return Scanned(outcome, file, kind, tape.model, tape.spent(), tape.timeline(outcome.session, file))


def _opened(files: Sequence[Path]) -> IO[bytes]:
    """Open a file; a folder of events as if they were one, a line each."""
    if len(files) == 1:
        return files[0].open("rb")
    return io.BufferedReader(io.BytesIO(b"\n".join([b" ".join(file.read_bytes().split(b"\n")) for file in files])))


def _may_be(file: IO[bytes]) -> bool:
    """Tell by the first bytes whether a file may be JSON, packed or not."""
    assert isinstance(file, io.BufferedReader)  # noqa: S101 - as it was opened
    return file.peek(_SNIFFED)[:_SNIFFED].lstrip().startswith(_OPENINGS)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a scan adds up to."""

    sessions: int
    turns: int
    looping: int  # sessions with a block
    noticed: int  # sessions with a notice and no block
    loops: int  # with a block
    loop_turns: int
    inside: Spent  # of the loops, from their beginning
    after: Spent  # of the loops, from where they would have been stopped
    spent: Spent


def summary(scanned: Iterable[Scanned]) -> Summary:
    """Add up."""
    listed = list(scanned)
    lines = [one.timeline for one in listed if one.timeline is not None]
    loops = [loop for line in lines for loop in line.loops if loop.block is not None]
    looping = sum(1 for line in lines if line.blocked)
    return Summary(
        len(listed),
        sum(one.outcome.turns for one in listed),
        looping,
        len(lines) - looping,
        len(loops),
        sum(loop.turns for loop in loops),
        total(loop.spent for loop in loops),
        total(loop.after for loop in loops),
        total(one.spent for one in listed),
    )
