"""`make eval`: our detectors over the sessions of this repository; ours and simple ones of other people over recorded
sessions, if there are any beside this tree. Prints the tables of docs/reference/evaluation.md and writes that page, in
which the other part stays as it is. No text of a recording leaves this program."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from breakloop.replay.run import SessionOutcome
from scripts import eval_cases, eval_corpus
from scripts.eval_baselines import BASELINES
from scripts.eval_page import page
from scripts.eval_run import EVERY_CONDITION, OURS, Condition, measure, measure_left_out
from scripts.eval_transport import TRANSPORTS
from tests.corpus.run import judge_all

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT.parent / "shared" / "corpus"
PAGE = ROOT / "docs" / "reference" / "evaluation.md"


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
    parser.add_argument(
        "--transport", choices=TRANSPORTS, help="one way to send the recordings; needs --only or --mistakes"
    )
    parser.add_argument("--no-times", action="store_true", help="the same without their times")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument("--no-page", action="store_true", help="leave docs/reference/evaluation.md as it is")
    parser.add_argument("--own", action="store_true", help="only the sessions of this repository")
    parser.add_argument("--recorded", action="store_true", help="only the recordings")
    parser.add_argument(
        "--cases", type=Path, help="run the cases of a file, list those not judged as expected, and end"
    )
    parser.add_argument("--export", type=Path, help="write the sessions of this repository as request logs, and end")
    chosen = parser.parse_args(arguments)
    if (chosen.transport or chosen.no_times) and not (chosen.only or chosen.mistakes):
        parser.error("--transport and --no-times need --only or --mistakes; without them, every way is measured")
    if chosen.cases:
        wrong = list(eval_cases.mistakes(chosen.cases))
        print("\n".join(wrong or ["All cases are judged as expected."]))
        return 1 if wrong else 0
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
    if not (chosen.no_page or chosen.only or chosen.mistakes):
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
    if one:
        condition = Condition(one, chosen.transport or "named", not chosen.no_times)
        measured = measure(files, [condition], (), chosen.jobs)
    else:
        measured = measure(files, EVERY_CONDITION, BASELINES, chosen.jobs)
        measure_left_out(measured, chosen.jobs)
    if chosen.mistakes:
        print("\n".join(mistakes(next(iter(measured.ours.values())))))
        return ""
    text = page(measured)
    print(text)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
