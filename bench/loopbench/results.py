"""Results of loopbench: one JSON file for each detector, and the table that shows all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.loopbench.detectors import Subject
from bench.loopbench.suite import Session

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Result:
    """What one detector did. A session that is not in `stopped_at` was not played."""

    detector: str
    version: str
    how: str  # library, or gateway
    pauses: str  # kept, or left out
    suite: str  # digest of the sessions
    stopped_at: Mapping[str, int | None]

    def save(self, folder: Path = RESULTS) -> Path:
        """Write the file of this detector."""
        folder.mkdir(exist_ok=True)
        name = "-".join("".join(one if one.isalnum() else " " for one in self.detector.lower()).split())
        path = folder / f"{name}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path


def saved(folder: Path = RESULTS) -> list[Result]:
    """Read all files."""
    return [Result(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]


def play(subject: Subject, sessions: Iterable[Session], *, keeps_pauses: bool) -> dict[str, int | None]:
    """Play sessions, one after the other. Without pauses, those that need them are left out."""
    played = [one for one in sessions if keeps_pauses or not one.pauses_matter]
    return {one.id: subject.stopped_at(one) for one in played}


@dataclass(frozen=True, slots=True)
class Score:
    """The figures of a result."""

    loops: int = 0
    stopped: int = 0
    in_time: int = 0  # at the stated turn, or before
    lag: float | None = None  # median of the turns after the stated turn; negative: before it
    saved: float | None = None  # share of the tokens of all loops
    healthy: int = 0
    wrong: int = 0
    not_played: int = 0


def score(result: Result, sessions: Sequence[Session]) -> Score:
    """Compare what a detector did with what the sessions state."""
    played = [(one, result.stopped_at[one.id]) for one in sessions if one.id in result.stopped_at]
    loops = [(one, turn) for one, turn in played if one.loop]
    healthy = [turn for one, turn in played if not one.loop]
    lags = [turn - (one.stop_by or 0) for one, turn in loops if turn is not None]
    tokens = [[turn.tokens() for turn in one.turns] for one, _ in loops]
    not_sent = sum(sum(of[turn - 1 :]) for of, (_, turn) in zip(tokens, loops, strict=True) if turn is not None)
    total = sum(map(sum, tokens))
    return Score(
        loops=len(loops),
        stopped=len(lags),
        in_time=sum(lag <= 0 for lag in lags),
        lag=median(lags) if lags else None,
        saved=not_sent / total if total else None,
        healthy=len(healthy),
        wrong=sum(turn is not None for turn in healthy),
        not_played=len(sessions) - len(played),
    )


HEADS = (
    "detector",
    "how",
    "pauses",
    "healthy sessions stopped",
    "loops stopped",
    "by the stated turn",
    "turns after it (median)",
    "tokens saved",
)


def table(results: Iterable[Result], sessions: Sequence[Session], digest: str) -> str:
    """Return a Markdown table; the detector that stops most loops is the first. Results of another suite are marked."""
    rows = []
    for result in results:
        found = score(result, sessions)
        lag = "-" if found.lag is None else f"{found.lag:+g}"
        share = "-" if found.saved is None else f"{found.saved:.0%}"
        name = f"{result.detector} {result.version}".strip()
        name += f" (suite `{result.suite}`)" if result.suite != digest else ""
        cells = [name, result.how, result.pauses, f"{found.wrong} of {found.healthy}"]
        cells += [f"{found.stopped} of {found.loops}", str(found.in_time), lag, share]
        rows.append((-found.stopped, found.wrong, cells))
    rows.sort()
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    return "\n".join([*lines, *[f"| {' | '.join(cells)} |" for _, _, cells in rows]]) + "\n"
