"""Adds outcomes up (SPEC X-5): totals, precision and recall where sessions are labelled, what was saved, and where two
bundles differ. A session counts as flagged when a turn of it was blocked; printing is the command's work.

How counts, tokens, money and times are written in reports, on the terminal and in HTML alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from breakloop.replay.run import SessionOutcome
from breakloop.replay.sessions import Spent

LONG_TURNS = 15  # long sessions are more often loops, so they are also counted apart
BY = ("human", "outcome", "heuristic")  # who may have labelled a session


@dataclass(frozen=True, slots=True)
class DetectionScore:
    """How many of the labelled sessions were flagged."""

    found: int = 0  # of the loops
    loops: int = 0
    wrong: int = 0  # of those that do not loop
    healthy: int = 0

    @property
    def precision(self) -> float | None:
        """Which share of what was flagged does loop."""
        flagged = self.found + self.wrong
        return self.found / flagged if flagged else None

    @property
    def recall(self) -> float | None:
        return self.found / self.loops if self.loops else None

    @property
    def false_positive_rate(self) -> float | None:
        """Which share of the sessions that do not loop was flagged."""
        return self.wrong / self.healthy if self.healthy else None

    def as_json(self) -> dict[str, Any]:
        """Return counts and rates; a rate of nothing is null."""
        return {
            "loops": self.loops,
            "found": self.found,
            "healthy": self.healthy,
            "wrong": self.wrong,
            "precision": _rounded(self.precision),
            "recall": _rounded(self.recall),
            "false_positive_rate": _rounded(self.false_positive_rate),
        }


def score(outcomes: Iterable[SessionOutcome]) -> DetectionScore:
    """Count what was flagged among the labelled ones."""
    found = loops = wrong = healthy = 0
    for one in outcomes:
        flagged = one.first_block is not None
        if one.session.label.loop is True:
            loops += 1
            found += flagged
        elif one.session.label.loop is False:
            healthy += 1
            wrong += flagged
    return DetectionScore(found, loops, wrong, healthy)


def long_ones(outcomes: Iterable[SessionOutcome]) -> list[SessionOutcome]:
    """Return the sessions of at least `LONG_TURNS` turns."""
    return [one for one in outcomes if one.turns >= LONG_TURNS]


def labelled_by(outcomes: Iterable[SessionOutcome], *by: str) -> list[SessionOutcome]:
    """Return the loops that these labelled, and every session that does not loop, whoever says so."""
    return [one for one in outcomes if one.session.label.loop is False or one.session.label.by in by]


def grouped(
    outcomes: Iterable[SessionOutcome], key: Callable[[SessionOutcome], str]
) -> dict[str, list[SessionOutcome]]:
    """Return the outcomes by a name, sorted by it."""
    groups: dict[str, list[SessionOutcome]] = {}
    for one in outcomes:
        groups.setdefault(key(one), []).append(one)
    return dict(sorted(groups.items()))


def spent(outcomes: Iterable[SessionOutcome]) -> float | None:
    """Return which share of its turns a loop had spent when it was blocked: the median over those that were."""
    shares = [
        (one.first_block - 1) / one.turns
        for one in outcomes
        if one.first_block is not None and one.session.label.loop is not False
    ]
    return median(shares) if shares else None


def session_json(outcome: SessionOutcome, against: SessionOutcome | None = None) -> dict[str, Any]:
    line: dict[str, Any] = {"id": outcome.session.id, "loop": outcome.session.label.loop, "turns": outcome.turns}
    line |= _said(outcome)
    line |= {"evidence": outcome.evidence or None, "blocked_turns": outcome.blocks}
    line["saved_tokens_estimate"] = outcome.saved_tokens
    line |= _money([outcome])
    if outcome.denied:
        line["denied"] = outcome.denied
    if outcome.shadowed:
        line["shadowed_turns"] = outcome.shadowed
    if against is not None:
        line["against"] = _said(against)
    return line


def totals_json(outcomes: Sequence[SessionOutcome], against: Sequence[SessionOutcome] = ()) -> dict[str, Any]:
    totals = _totals(outcomes)
    if against:
        totals["against"] = _totals(against)
        pairs = list(zip(outcomes, against, strict=True))
        totals["differences"] = {name: len(found) for name, found in differences(pairs).items()}
    return {"totals": totals}


def differences(
    pairs: Iterable[tuple[SessionOutcome, SessionOutcome]],
) -> dict[str, list[tuple[SessionOutcome, SessionOutcome]]]:
    """Return where the first bundle says something else than the second: what it blocks only, earlier, later, not."""
    found: dict[str, list[tuple[SessionOutcome, SessionOutcome]]] = {
        "blocked_only": [],
        "earlier": [],
        "later": [],
        "not_blocked": [],
    }
    for pair in pairs:
        here, there = pair[0].first_block, pair[1].first_block
        if here == there:
            continue
        if there is None:
            found["blocked_only"].append(pair)
        elif here is None:
            found["not_blocked"].append(pair)
        else:
            found["earlier" if here < there else "later"].append(pair)
    return found


def _said(outcome: SessionOutcome) -> dict[str, Any]:
    return {"first_notice": outcome.first_notice, "first_block": outcome.first_block, "kind": outcome.kind}


def _totals(outcomes: Sequence[SessionOutcome]) -> dict[str, Any]:
    flagged = [one for one in outcomes if one.first_block is not None]
    noticed = [one for one in outcomes if one.first_notice is not None]
    totals: dict[str, Any] = {
        "sessions": len(outcomes),
        "turns": sum(one.turns for one in outcomes),
        "noticed": len(noticed),
        "blocked": len(flagged),
        "blocked_turns": sum(one.blocks for one in outcomes),
        "saved_tokens_estimate": sum(one.saved_tokens for one in outcomes),
        **_money(outcomes),
        "kinds": {kind: len(found) for kind, found in grouped(flagged, lambda one: one.kind or "").items()},
    }
    labelled = [one for one in outcomes if one.session.label.loop is not None]
    if labelled:
        totals["labelled"] = score(labelled).as_json()
        totals["labelled_by"] = {by: score(labelled_by(labelled, by)).as_json() for by in BY if _has(labelled, by)}
        totals["long"] = score(long_ones(labelled)).as_json()
        sources = grouped(labelled, lambda one: one.session.source)
        totals["sources"] = {name: score(found).as_json() for name, found in sources.items()}
        totals["spent_before_block"] = _rounded(spent(labelled))
    return totals


def saved_usd(outcomes: Iterable[SessionOutcome]) -> float | None:
    """Return what was saved in US dollars, as far as prices are known; None where none is."""
    amounts = [one.saved_usd for one in outcomes if one.saved_usd is not None]
    return sum(amounts) if amounts else None


def _money(outcomes: Iterable[SessionOutcome]) -> dict[str, float]:
    amount = saved_usd(outcomes)
    return {} if amount is None else {"saved_usd_estimate": round(amount, 6)}


def _has(outcomes: Iterable[SessionOutcome], by: str) -> bool:
    return any(one.session.label.by == by and one.session.label.loop for one in outcomes)


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


_DATES_FROM = 1e8  # smaller numbers of seconds are on a scale of the recording's own
_DATES_TO = 2.5e11


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def tokens(spent: Spent) -> str:
    """Return a number of tokens; an estimate says so, and is not more exact than it can be."""
    if not spent.estimated:
        return f"{spent.tokens:,}"
    return f"about {rounded(spent.tokens):,}"


def rounded(number: int) -> int:
    """Return two digits of a number, and zeros."""
    size = int("1".ljust(len(str(abs(number))) - 1, "0"))
    return round(number / size) * size


def money(amount: float | None) -> str:
    """Return US dollars, or nothing when the price is not known."""
    if amount is None:
        return ""
    return f"${amount:,.2f}" if amount >= 0.01 or not amount else f"${amount:.4f}"


def lasted(seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return ""
    whole = round(seconds)
    for size, unit, smaller, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {below}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def moment(at_s: float | None) -> str:
    """Return a date and time, if the recording has any."""
    if at_s is None or not _DATES_FROM < at_s < _DATES_TO:
        return ""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
