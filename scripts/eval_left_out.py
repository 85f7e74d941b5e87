"""Leave one source out: what is chosen with recordings is chosen on all sources but one, and measured on that one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from breakloop.replay.report import DetectionScore, score
from breakloop.replay.run import SessionOutcome
from scripts.eval_baselines import flagged
from scripts.eval_run import Condition, Measured

WRONG_WEIGHT = 20  # how much of recall one false-positive rate is worth; a limit would choose by the last session

Outcomes = Sequence[SessionOutcome]
Peak = tuple[SessionOutcome, float]  # a session, and the highest score that a simple detector gave it
Figures = tuple[float | None, float | None, float | None, float | None]  # recall, left out, false positives, left out
Row = tuple[str, str, float | None, float | None, float | None, float | None]
T = TypeVar("T")


def left_out_rows(measured: Measured) -> Iterator[Row]:
    """Yield detector, what is chosen, recall on all sources and with the source left out, false positives likewise."""
    for transport in ("named", "derived"):
        levels = [
            Condition(name, transport)
            for name in ("steps", "steps, relaxed", "steps, strict")
            if Condition(name, transport) in measured.ours
        ]
        if len(levels) == 3:
            aligned = [sorted(measured.ours[one], key=_identity) for one in levels]
            yield _row(str(levels[0]), "sensitivity", list(zip(*aligned, strict=True)), _pick_level, _at_level)
        if levels and levels[0] in measured.left_out:
            yield (
                str(levels[0]),
                "kinds",
                *_figures(score(measured.ours[levels[0]]), score(measured.left_out[levels[0]])),
            )
    for name, them in measured.simple.items():
        peaks = list(zip(them, measured.peaks[name], strict=True))
        yield _row(name, "limit", peaks, _pick_limit, reflagged)


def _row(
    name: str,
    what: str,
    sessions: Sequence[T],
    choose: Callable[[Sequence[T]], object],
    apply: Callable[..., Iterable[SessionOutcome]],
) -> Row:
    everywhere = score(apply(sessions, choose(sessions)))
    held: list[SessionOutcome] = []
    for source in {_source(one) for one in sessions}:
        chosen = choose([one for one in sessions if _source(one) != source])
        held += apply([one for one in sessions if _source(one) == source], chosen)
    return name, what, *_figures(everywhere, score(held))


def _figures(everywhere: DetectionScore, apart: DetectionScore) -> Figures:
    rates = everywhere.false_positive_rate, apart.false_positive_rate
    return everywhere.recall, apart.recall, *rates


def _source(one: object) -> str:
    while isinstance(one, tuple):
        one = one[0]
    assert isinstance(one, SessionOutcome)  # noqa: S101 - all sequences here have sessions, or tuples that begin with one
    return one.session.source


def _identity(one: SessionOutcome) -> tuple[str, str]:
    return one.session.source, one.session.id


# -- the sensitivity


def _pick_level(sessions: Sequence[tuple[SessionOutcome, ...]]) -> int:
    scores = [score(them) for them in zip(*sessions, strict=True)]
    return max(range(len(scores)), key=lambda level: _merit(scores[level]))


def _merit(found: DetectionScore) -> float:
    return (found.recall or 0.0) - WRONG_WEIGHT * (found.false_positive_rate or 0.0)


def _at_level(sessions: Sequence[tuple[SessionOutcome, ...]], level: int) -> list[SessionOutcome]:
    return [outcomes[level] for outcomes in sessions]


# -- the limit of a simple detector


def best_limit(sessions: Sequence[Peak], most: float) -> float:
    """Return the limit with the best recall among those with at most such a false-positive rate."""
    rates = _rates_by_limit(sessions)
    return max((recall, limit) for limit, recall, wrong in rates if wrong <= most)[1]


def _pick_limit(sessions: Sequence[Peak]) -> float:
    return max((recall - WRONG_WEIGHT * wrong, limit) for limit, recall, wrong in _rates_by_limit(sessions))[1]


def _rates_by_limit(sessions: Sequence[Peak]) -> Iterator[tuple[float, float, float]]:
    """Yield every limit with its recall and its false-positive rate."""
    loops = sorted(peak for one, peak in sessions if one.session.label.loop is True)
    healthy = sorted(peak for one, peak in sessions if one.session.label.loop is False)
    for limit in {*loops, float("inf")}:
        found, wrong = (len(peaks) - bisect_left(peaks, limit) for peaks in (loops, healthy))
        yield limit, found / max(len(loops), 1), wrong / max(len(healthy), 1)


def reflagged(sessions: Iterable[Peak], limit: float) -> list[SessionOutcome]:
    """Return the outcomes with another limit."""
    return [flagged(one.session, one.turns, [peak], limit) for one, peak in sessions]
