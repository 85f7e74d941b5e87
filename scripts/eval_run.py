"""Asks detectors about recorded sessions, in several processes: ours in every condition that the page of `make eval`
shows, and simple ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from breakloop.cli.test import OFFLINE_SECRET
from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.detect.steps.kinds import BY_NAME
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.replay.formats.recording import Recording
from breakloop.replay.report import grouped, score
from breakloop.replay.run import ReplaySetup, SessionOutcome, replay
from breakloop.replay.sessions import SessionSlice
from scripts.eval_baselines import Baseline, seen
from scripts.eval_facts import Facts, facts
from scripts.eval_transport import TRANSPORTS

T = TypeVar("T")

# Name -> the blocks of `defaults.loop_detection`; "" is the built-in block.
OURS = {
    "steps": "{similarity: steps}",
    "steps, relaxed": "{similarity: steps, sensitivity: relaxed}",
    "steps, strict": "{similarity: steps, sensitivity: strict}",
    "built-in": "",
    "tail": "{similarity: tail}",
}
SECRETS = (OFFLINE_SECRET, b"a second secret, 32 bytes or so..", b"a third one, of another install..")


@dataclass(frozen=True, slots=True)
class Condition:
    """A detector of ours, and how recordings are sent to it."""

    detector: str
    transport: str = "named"
    timed: bool = True  # with the recorded times, where there are any
    secret: int = 0  # of the installation, in `SECRETS`
    without: tuple[str, ...] = ()  # kinds that are turned off

    def block(self) -> str:
        """Return the block of `loop_detection`."""
        if not self.without:
            return OURS[self.detector]
        never = ", ".join(f"{kind}: [never, never, never]" for kind in self.without)
        return OURS[self.detector].replace("}", f", thresholds: {{{never}}}}}")

    def __str__(self) -> str:
        words = {"named": "", "derived": "no names", "mixed": "five over one key"}
        parts = [self.detector, words[self.transport], "" if self.timed else "no times"]
        return ", ".join([part for part in (*parts, f"secret {self.secret + 1}" if self.secret else "") if part])


STEPS = Condition("steps")
DERIVED = Condition("steps", "derived")
MIXED = Condition("steps", "mixed")
EVERY_CONDITION = (
    *[Condition(name, how) for name in ("steps", "steps, relaxed", "steps, strict") for how in TRANSPORTS],
    *[Condition("steps", how, timed=False) for how in ("named", "derived")],
    *[Condition("steps", secret=number) for number in (1, 2)],
    Condition("built-in"),
    Condition("tail"),
)


@dataclass(slots=True)
class Measured:
    """What every detector said about every session."""

    ours: dict[Condition, list[SessionOutcome]] = field(default_factory=dict)
    simple: dict[str, list[SessionOutcome]] = field(default_factory=dict)
    peaks: dict[str, list[float]] = field(default_factory=dict)  # the highest score of each session, in the same order
    facts: dict[tuple[str, str], Facts] = field(default_factory=dict)  # by source and id
    files: dict[str, set[Path]] = field(default_factory=dict)  # of each source
    left_out: dict[Condition, list[SessionOutcome]] = field(default_factory=dict)  # see `measure_left_out`

    def add(self, other: Measured) -> None:
        """Add what was measured with other files or conditions."""
        self.facts |= other.facts
        for source, files in other.files.items():
            self.files.setdefault(source, set()).update(files)
        for condition, outcomes in other.ours.items():
            self.ours.setdefault(condition, []).extend(outcomes)
        for name, outcomes in other.simple.items():
            self.simple.setdefault(name, []).extend(outcomes)
        for name, peaks in other.peaks.items():
            self.peaks.setdefault(name, []).extend(peaks)

    def of(self, one: SessionOutcome) -> Facts:
        """Return what is known of a session."""
        return self.facts[one.session.source, one.session.id]


def rig(block: str, secret: bytes = OFFLINE_SECRET) -> ReplaySetup:
    """Return a bundle with one block of loop detection, ready to judge."""
    clock = FakeClock()
    descriptors = Descriptors(ContextSettings(secret=secret), clock)
    text = f"bundle_version: 1\npolicies: []\ndefaults: {{loop_detection: {block}}}\n" if block else ""
    bundle = load_text(text.encode(), "eval.yaml").bundle if text else None
    return ReplaySetup(descriptors, compile_bundle(bundle, "", descriptors, secret, BuiltinLoopGuard()), clock.now())


def pieces(files: Sequence[Path]) -> Iterator[SessionSlice]:
    """Read all sessions."""
    for path in files:
        with path.open("rb") as file:
            yield from Recording(file, path.name).pieces()


def judged(file: Path, conditions: Sequence[Condition], source: str = "") -> Measured:
    """Ask our detectors about a file, or about one source in it. The conditions differ in what `rig` takes only."""
    first = conditions[0]
    read = (piece for piece in pieces([file]) if not source or piece.session.source == source)
    sent = TRANSPORTS[first.transport](read if first.timed else untimed(read))
    rigs = [rig(one.block(), SECRETS[one.secret]) for one in conditions]
    measured = Measured({one: [] for one in conditions})
    for outcomes in replay(sent, *rigs):
        for one, outcome in zip(conditions, outcomes, strict=True):
            measured.ours[one].append(outcome)
    return measured


def untimed(sessions: Iterable[SessionSlice]) -> Iterator[SessionSlice]:
    """Yield the sessions without their times."""
    for piece in sessions:
        yield piece._replace(turns=[replace(turn, at_s=None) for turn in piece.turns])


def described(file: Path, baselines: Sequence[Baseline]) -> Measured:
    """Ask simple detectors about a file, and note what is known without any."""
    measured = Measured()
    for piece in pieces([file]):
        requests = list(seen(piece.turns))
        measured.facts[piece.session.source, piece.session.id] = facts(requests)
        measured.files.setdefault(piece.session.source, set()).add(file)
        for one in baselines:
            scores = list(one.scores(requests))
            measured.peaks.setdefault(one.name, []).append(max(scores, default=0.0))
            measured.simple.setdefault(one.name, []).append(one.outcome(piece.session, piece.turns, scores))
    return measured


def measure(
    files: Sequence[Path], conditions: Sequence[Condition], baselines: Sequence[Baseline], jobs: int
) -> Measured:
    """Ask our detectors in these conditions, and these simple ones, about all sessions."""
    groups: dict[tuple[str, bool], list[Condition]] = {}
    for one in conditions:
        groups.setdefault((one.transport, one.timed), []).append(one)
    largest = sorted(files, key=lambda path: -path.stat().st_size)
    tasks = [(path, partial(judged, path, group)) for path in largest for group in groups.values()]
    tasks += [(path, partial(described, path, baselines)) for path in largest]
    everything = Measured({one: [] for one in conditions})
    for measured in _run(tasks, jobs):
        everything.add(measured)
    return everything


def measure_left_out(measured: Measured, jobs: int) -> None:
    """Ask `steps` about each source with those kinds alone that have proved useful on the other sources."""
    tasks = []
    for condition in (STEPS, DERIVED):
        for source, files in sorted(measured.files.items()):
            others = [one for one in measured.ours[condition] if one.session.source != source]
            without = replace(condition, without=tuple(sorted(BY_NAME.keys() - useful_kinds(others))))
            tasks += [(path, partial(judged, path, [without], source)) for path in sorted(files)]
    for found in _run(tasks, jobs):
        for condition, outcomes in found.ours.items():
            measured.left_out.setdefault(replace(condition, without=()), []).extend(outcomes)


def useful_kinds(them: Iterable[SessionOutcome]) -> frozenset[str]:
    """Return the kinds that stop more loops than healthy sessions."""
    stopped = grouped([one for one in them if one.first_block is not None], lambda one: one.kind or "")
    return frozenset(kind for kind, of_kind in stopped.items() if score(of_kind).found > score(of_kind).wrong)


def _run(tasks: Sequence[tuple[Path, Callable[[], Measured]]], jobs: int) -> Iterator[Measured]:
    """Run tasks in processes. Results come by file, so that the page does not depend on which process is first."""
    if jobs == 1:
        found = {number: task() for number, (_, task) in enumerate(tasks)}
    else:
        with ProcessPoolExecutor(jobs) as pool:
            running = {pool.submit(task): number for number, (_, task) in enumerate(tasks)}
            found = {running[future]: future.result() for future in _shown(as_completed(running), len(tasks))}
    yield from (found[number] for number in sorted(found, key=lambda number: (tasks[number][0].name, number)))


def _shown(futures: Iterable[T], total: int) -> Iterator[T]:
    for number, one in enumerate(futures, 1):
        if sys.stderr.isatty():
            print(f"\r{number} of {total} parts", end="\r" if number == total else "", file=sys.stderr)
        yield one
