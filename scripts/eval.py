"""`make eval`: our detectors over the sessions of this repository; ours and simple ones of other people over recorded
sessions, if there are any beside this tree. Prints the tables of docs/reference/evaluation.md and writes that page, in
which the other part stays as it is. No text of a recording leaves this program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from breakloop.cli.test import OFFLINE_SECRET
from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.replay.formats.recording import Recording
from breakloop.replay.run import ReplaySetup, SessionOutcome, replay
from breakloop.replay.sessions import SessionSlice
from scripts import eval_corpus
from scripts.eval_baselines import BASELINES, Baseline, seen
from scripts.eval_page import page
from scripts.eval_transport import TRANSPORTS
from tests.corpus.run import judge_all

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT.parent / "shared" / "corpus"
PAGE = ROOT / "docs" / "reference" / "evaluation.md"

# Name -> the blocks of `defaults.loop_detection`; "" is the built-in block.
OURS = {
    "steps": "{similarity: steps}",  # the first one is looked at by source and by kind
    "steps, relaxed": "{similarity: steps, sensitivity: relaxed}",
    "steps, strict": "{similarity: steps, sensitivity: strict}",
    "built-in": "",
    "tail": "{similarity: tail}",
}


@dataclass(slots=True)
class Measured:
    """What every detector said about every session."""

    ours: dict[str, list[SessionOutcome]]
    baselines: dict[str, list[SessionOutcome]]
    scores: dict[str, list[list[float]]]


def rig(block: str) -> ReplaySetup:
    """Return a bundle with one block of loop detection, ready to judge."""
    clock = FakeClock()
    descriptors = Descriptors(ContextSettings(secret=OFFLINE_SECRET), clock)
    text = f"bundle_version: 1\npolicies: []\ndefaults: {{loop_detection: {block}}}\n" if block else ""
    bundle = load_text(text.encode(), "eval.yaml").bundle if text else None
    return ReplaySetup(
        descriptors, compile_bundle(bundle, "", descriptors, OFFLINE_SECRET, BuiltinLoopGuard()), clock.now()
    )


def pieces(files: Sequence[Path]) -> Iterator[SessionSlice]:
    """Read all sessions."""
    for path in files:
        with path.open("rb") as file:
            yield from Recording(file, path.name).pieces()


def measure(sessions: Iterable[SessionSlice], names: Sequence[str], baselines: Sequence[Baseline]) -> Measured:
    """Ask these detectors of ours, and these simple ones, about every session. The simple ones need whole sessions."""
    measured = Measured(
        {name: [] for name in names}, {one.name: [] for one in baselines}, {one.name: [] for one in baselines}
    )
    rigs = {name: rig(OURS[name]) for name in names}
    for number, outcomes in enumerate(replay(_shown(sessions, baselines, measured), *rigs.values()), 1):
        for name, outcome in zip(rigs, outcomes, strict=True):
            measured.ours[name].append(outcome)
        if sys.stderr.isatty():
            print(f"\r{number} sessions", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return measured


def _shown(
    sessions: Iterable[SessionSlice], baselines: Sequence[Baseline], measured: Measured
) -> Iterator[SessionSlice]:
    """Yield the sessions, and ask the simple detectors about each."""
    for piece in sessions:
        requests = list(seen(piece.turns)) if baselines else []
        for one in baselines:
            scores = list(one.scores(requests))
            measured.scores[one.name].append(scores)
            measured.baselines[one.name].append(one.outcome(piece.session, piece.turns, scores))
        yield piece


def mistakes(outcomes: Sequence[SessionOutcome]) -> Iterator[str]:
    """Which sessions were judged wrongly, one a line, for a closer look at the recordings."""
    for one in outcomes:
        label = one.session.label
        if label.loop is False and one.first_block is not None:
            yield f"wrong   {one.session.id}  turn {one.first_block} of {one.turns}  {one.kind}: {one.evidence}"
    for one in outcomes:
        label = one.session.label
        if label.loop and one.first_block is None:
            yield f"missed  {one.session.id}  {one.turns} turns  {label.by}: {label.kind}"


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write; without recordings, say so. Returns 1 if a session of this repository is not judged as
    expected."""
    parser = argparse.ArgumentParser(prog="make eval ARGS=...")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder with *.jsonl.gz")
    parser.add_argument("--only", choices=OURS, help="one of our detectors on recordings; the page stays as it is")
    parser.add_argument("--mistakes", choices=OURS, help="list the recordings that a detector judges wrongly")
    parser.add_argument("--transport", choices=TRANSPORTS, default="named", help="how the recordings are sent")
    parser.add_argument("--no-page", action="store_true", help="leave docs/reference/evaluation.md as it is")
    parser.add_argument("--own", action="store_true", help="only the sessions of this repository")
    parser.add_argument("--recorded", action="store_true", help="only the recordings")
    parser.add_argument("--export", type=Path, help="write the sessions of this repository as request logs, and end")
    chosen = parser.parse_args(arguments)
    if chosen.export:
        print(f"{eval_corpus.export(chosen.export)} sessions in {chosen.export}")
        return 0
    recorded, own = parts_of(PAGE.read_text(encoding="utf-8") if PAGE.is_file() else "")
    if not chosen.own:
        recorded = evaluate_recordings(chosen) or recorded
    found: list[str] = []
    if not (chosen.recorded or chosen.only or chosen.mistakes):
        judged = judge_all()
        found, text = eval_corpus.mistakes(judged), eval_corpus.section(judged)
        print(text)
        print("\n".join(["Not as expected:", *found] if found else ["All sessions are judged as expected."]))
        own = own if found else text
    if not (chosen.no_page or chosen.only or chosen.mistakes or chosen.transport != "named"):
        PAGE.write_text(recorded + own, encoding="utf-8")
    return 1 if found else 0


def parts_of(text: str) -> tuple[str, str]:
    """Return the page in two parts: about recordings, and about the sessions of this repository."""
    recorded, heading, own = text.partition(eval_corpus.HEADING)
    return recorded, heading + own


def evaluate_recordings(chosen: argparse.Namespace) -> str:
    """Measure recordings and print what was asked for; return their part of the page, or "" if there is none."""
    files = sorted(chosen.corpus.glob("*.jsonl.gz")) if chosen.corpus.is_dir() else []
    if not files:
        print("no recorded sessions beside this tree: their part of the page stays as it is")
        return ""
    one = chosen.mistakes or chosen.only
    sessions = TRANSPORTS[chosen.transport](pieces(files))
    whole = chosen.transport != "mixed"
    measured = measure(sessions, [one] if one else list(OURS), BASELINES if whole and not one else ())
    if chosen.mistakes:
        print("\n".join(mistakes(measured.ours[chosen.mistakes])))
        return ""
    text = page(measured.ours, measured.baselines, measured.scores)
    print(text)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
