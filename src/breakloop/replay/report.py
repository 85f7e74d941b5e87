"""Totals of a replay: precision and recall of labelled sessions, savings, and differences between two bundles.

A session is flagged if one of its turns was blocked or landed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from breakloop.formatting import money as dollars
from breakloop.formatting import timestamp
from breakloop.replay.run import SessionOutcome
from breakloop.replay.sessions import Spent

LONG_TURNS = 15  # long sessions are more often loops, so they are also reported separately
BY = ("human", "outcome", "heuristic")  # sources of labels


@dataclass(frozen=True, slots=True)
class DetectionScore:
    """Counts of labelled sessions that were flagged."""

    found: int = 0  # of the loops
    loops: int = 0
    wrong: int = 0  # of the sessions without a loop
    healthy: int = 0

    @property
    def precision(self) -> float | None:
        """Return the share of flagged sessions that are loops."""
        flagged = self.found + self.wrong
        return self.found / flagged if flagged else None

    @property
    def recall(self) -> float | None:
        return self.found / self.loops if self.loops else None

    @property
    def false_positive_rate(self) -> float | None:
        """Return the share of sessions without a loop that were flagged."""
        return self.wrong / self.healthy if self.healthy else None

    def as_json(self) -> dict[str, Any]:
        """Return counts and rates; a rate without sessions is null."""
        counts = {"loops": self.loops, "found": self.found, "healthy": self.healthy, "wrong": self.wrong}
        rates = {"precision": self.precision, "recall": self.recall, "false_positive_rate": self.false_positive_rate}
        return {**counts, **{name: _rounded(rate) for name, rate in rates.items()}}


def score(outcomes: Iterable[SessionOutcome]) -> DetectionScore:
    """Count the flagged sessions among the labelled ones."""
    found = loops = wrong = healthy = 0
    for one in outcomes:
        flagged = one.first_end is not None
        if one.session.label.loop is True:
            loops += 1
            found += flagged
        elif one.session.label.loop is False:
            healthy += 1
            wrong += flagged
    return DetectionScore(found, loops, wrong, healthy)


def long_ones(outcomes: Iterable[SessionOutcome]) -> list[SessionOutcome]:
    return [one for one in outcomes if one.turns >= LONG_TURNS]


def labelled_by(outcomes: Iterable[SessionOutcome], *by: str) -> list[SessionOutcome]:
    """Return the loops with labels of this source, and all sessions labelled as no loop."""
    return [one for one in outcomes if one.session.label.loop is False or one.session.label.by in by]


def grouped(
    outcomes: Iterable[SessionOutcome], key: Callable[[SessionOutcome], str]
) -> dict[str, list[SessionOutcome]]:
    groups: dict[str, list[SessionOutcome]] = {}
    for one in outcomes:
        groups.setdefault(key(one), []).append(one)
    return dict(sorted(groups.items()))


def spent(outcomes: Iterable[SessionOutcome]) -> float | None:
    """Return the median share of turns that a loop had used when it was blocked or landed."""
    shares = [
        (one.first_end - 1) / one.turns
        for one in outcomes
        if one.first_end is not None and one.session.label.loop is not False
    ]
    return median(shares) if shares else None


def session_json(outcome: SessionOutcome, against: SessionOutcome | None = None) -> dict[str, Any]:
    line: dict[str, Any] = {"id": outcome.session.id, "loop": outcome.session.label.loop, "turns": outcome.turns}
    line |= _said(outcome)
    line |= {"evidence": outcome.evidence or None, "blocked_turns": outcome.blocks}
    if outcome.lands:
        line["landed_turns"] = outcome.lands
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


Pair = tuple[SessionOutcome, SessionOutcome]  # the same session, judged by two bundles


def differences(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """Return how the first bundle differs from the second: blocked only by it, earlier, later, or not at all."""
    found: dict[str, list[Pair]] = {name: [] for name in ("blocked_only", "earlier", "later", "not_blocked")}
    for pair in pairs:
        here, there = (one.first_end for one in pair)
        if there is None and here is not None:
            found["blocked_only"].append(pair)
        elif here is None and there is not None:
            found["not_blocked"].append(pair)
        elif here is not None and there is not None and here != there:
            found["earlier" if here < there else "later"].append(pair)
    return found


def _said(outcome: SessionOutcome) -> dict[str, Any]:
    lands = {} if outcome.first_land is None else {"first_land": outcome.first_land}
    return {"first_notice": outcome.first_notice, **lands, "first_block": outcome.first_block, "kind": outcome.kind}


def _totals(outcomes: Sequence[SessionOutcome]) -> dict[str, Any]:
    flagged = [one for one in outcomes if one.first_end is not None]
    noticed = [one for one in outcomes if one.first_notice is not None]
    landed = sum(one.first_land is not None for one in outcomes)
    totals: dict[str, Any] = {
        "sessions": len(outcomes),
        "turns": sum(one.turns for one in outcomes),
        "noticed": len(noticed),
        "blocked": sum(one.first_block is not None for one in outcomes),
        **({"landed": landed} if landed else {}),
        "blocked_turns": sum(one.blocks for one in outcomes),
        "saved_tokens_estimate": sum(one.saved_tokens for one in outcomes),
        **_money(outcomes),
        "kinds": {kind: len(found) for kind, found in grouped(flagged, lambda one: one.kind or "").items()},
    }
    labelled = [one for one in outcomes if one.session.label.loop is not None]
    if labelled:
        totals["labelled"] = score(labelled).as_json()
        known = {one.session.label.by for one in labelled if one.session.label.loop}
        totals["labelled_by"] = {by: score(labelled_by(labelled, by)).as_json() for by in BY if by in known}
        totals["long"] = score(long_ones(labelled)).as_json()
        sources = grouped(labelled, lambda one: one.session.source)
        totals["sources"] = {name: score(found).as_json() for name, found in sources.items()}
        totals["spent_before_block"] = _rounded(spent(labelled))
    return totals


def saved_usd(outcomes: Iterable[SessionOutcome]) -> float | None:
    """Return the savings in US dollars as far as prices are known; None if none is."""
    amounts = [one.saved_usd for one in outcomes if one.saved_usd is not None]
    return sum(amounts) if amounts else None


def _money(outcomes: Iterable[SessionOutcome]) -> dict[str, float]:
    amount = saved_usd(outcomes)
    return {} if amount is None else {"saved_usd_estimate": round(amount, 6)}


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


_DATES_FROM = 1e8  # smaller numbers are relative to the recording
_DATES_TO = 2.5e11


def tokens(spent: Spent) -> str:
    """Format a number of tokens; estimates are marked and rounded."""
    if not spent.estimated:
        return f"{spent.tokens:,}"
    return f"about {rounded(spent.tokens):,}"


def rounded(number: int) -> int:
    size = int("1".ljust(len(str(abs(number))) - 1, "0"))
    return round(number / size) * size


def money(amount: float | None) -> str:
    """Return US dollars; "" if the price is unknown."""
    return "" if amount is None else dollars(amount)


def moment(at_s: float | None) -> str:
    """Return a date and time, if the recording has any."""
    return "" if at_s is None or not _DATES_FROM < at_s < _DATES_TO else timestamp(at_s)
