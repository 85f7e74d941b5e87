"""Totals of a replay: precision and recall of labelled sessions, savings, and differences between two bundles. A
session is flagged if one of its turns was blocked, paused or landed.

`page` is the HTML report of `scan` and `replay`: one self-contained file without scripts, with an SVG timeline per
session. Its layout is the template `report.html`. Everything from a recording is escaped, and no text of a prompt is
included unless excerpts were requested. Marks differ in shape as well as in colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from breakloop.formatting import duration, plural, timestamp
from breakloop.formatting import money as dollars
from breakloop.replay.across import AcrossFinding
from breakloop.replay.run import SessionOutcome
from breakloop.replay.sessions import Spent, total
from breakloop.replay.timeline import AGAIN, BLOCK, LAND, NOTICE, Cell, Timeline, shown

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
    others = {"first_land": outcome.first_land, "first_pause": outcome.first_pause}
    lands = {name: turn for name, turn in others.items() if turn is not None}
    return {"first_notice": outcome.first_notice, **lands, "first_block": outcome.first_block, "kind": outcome.kind}


def _totals(outcomes: Sequence[SessionOutcome]) -> dict[str, Any]:
    flagged = [one for one in outcomes if one.first_end is not None]
    noticed = [one for one in outcomes if one.first_notice is not None]
    landed = sum(one.first_land is not None for one in outcomes)
    paused = sum(one.first_pause is not None for one in outcomes)
    totals: dict[str, Any] = {
        "sessions": len(outcomes),
        "turns": sum(one.turns for one in outcomes),
        "noticed": len(noticed),
        "blocked": sum(one.first_block is not None for one in outcomes),
        **({"landed": landed} if landed else {}),
        **({"paused": paused} if paused else {}),
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


COLOURS: Final = 8
CELLS_MAX: Final = 720  # of one picture
PICTURES_MAX: Final = 60
_ROWS_MAX: Final = 500
_KEYS: Final = 5
_LOOPS_MAX: Final = 5  # loops of one session
_NAME_MAX: Final = 56
_AROUND: Final = 6  # turns before and after a loop that are drawn, too
_COLUMNS: Final = 72
_STEP, _CELL, _HEIGHT = 13, 11, 20
_TOP, _ROW, _MARGIN = 16, 62, 8
SIGNS: Final = {
    "notice": "M0 -5l5 5l-5 5l-5 -5z",  # a diamond
    "land": "M-5 -4h10l-5 9z",  # a triangle that points down
    "block": "M-2.2 -5.3h4.4l3.1 3.1v4.4l-3.1 3.1h-4.4l-3.1 -3.1v-4.4z",  # an octagon
}
_LEVELS: Final = {AGAIN: "the same call as before", NOTICE: "noticed", LAND: "landed", BLOCK: "blocked"}
_CSS: Final = {NOTICE: "notice", LAND: "land", BLOCK: "block"}


@dataclass(frozen=True, slots=True)
class Heading:
    title: str
    sessions: int
    turns: int
    judged_by: str
    notes: Sequence[str] = ()


class Shape(NamedTuple):
    """A part of a picture: `frame`, `cell`, `gap`, `mark` or `text`."""

    kind: str
    x: float
    y: float
    width: int = 0
    height: int = 0
    css: str = ""
    level: str = ""
    text: str = ""


class Picture(NamedTuple):
    width: int
    height: int
    shapes: Sequence[Shape]


def page(heading: Heading, timelines: Iterable[Timeline], across: Sequence[AcrossFinding] = ()) -> str:
    """Return the page, the most expensive loops first. `across` is what sessions show together."""
    lines = sorted(timelines, key=lambda line: (not line.blocked, -line.after.tokens, line.session.id))
    loops = [loop for line in lines for loop in line.loops if loop.end is not None]
    return _template().render(
        heading=heading,
        lines=lines,
        across=across,
        looping=sum(line.blocked for line in lines),
        loop_turns=sum(loop.turns for loop in loops),
        after=total(loop.after for loop in loops),
        priced=any(line.after.money is not None for line in lines),
        signs=SIGNS,
        rows_max=_ROWS_MAX,
        pictures_max=PICTURES_MAX,
        loops_max=_LOOPS_MAX,
        name_max=_NAME_MAX,
    )


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters = (shown, tokens, money, moment, duration, plural, picture, described, key)
    environment.filters.update({function.__name__: function for function in filters})
    return environment.get_template("report.html")


def key(line: Timeline) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, identity, colour and count of the most frequent calls."""
    cells = visible(line)
    times = Counter(cell.identity for cell in cells)
    names = {cell.identity: cell.tool for cell in cells}
    for identity, hue in list(colours(cells).items())[:_KEYS]:
        yield names[identity], identity, hue, times[identity]


def colours(cells: Sequence[Cell]) -> dict[str, int]:
    """Return a colour for each of the most frequent calls."""
    times = Counter(cell.identity for cell in cells if cell.identity)
    often = [identity for identity, count in times.most_common(COLOURS) if count > 1]
    return {identity: index for index, identity in enumerate(often)}


def visible(line: Timeline) -> list[Cell]:
    """Return the turns to draw: the loops and some turns around them."""
    wanted: set[int] = set()
    for loop in line.loops:
        wanted |= set(range(max(1, loop.first - _AROUND), min(len(line.cells), loop.last + _AROUND) + 1))
    return [line.cells[number - 1] for number in sorted(wanted)][:CELLS_MAX]


def described(line: Timeline) -> str:
    """Return the picture in words, for screen readers."""
    said = [plural(len(line.cells), "turn")]
    for loop in line.loops:
        part = f"turns {loop.first} to {loop.last} repeat ({loop.kind})"
        part += f", noticed at turn {loop.notice}" if loop.notice is not None else ""
        part += f", landed at turn {loop.land}" if loop.land is not None else ""
        part += f", blocked at turn {loop.block}" if loop.block is not None else ""
        said.append(part)
    return "; ".join(said) + "."


def picture(line: Timeline) -> Picture:
    cells = visible(line)
    hues = colours(cells)
    rows = [cells[at : at + _COLUMNS] for at in range(0, len(cells), _COLUMNS)]
    shapes = [shape for index, row in enumerate(rows) for shape in _row(line, row, _TOP + index * _ROW, hues)]
    return Picture(2 * _MARGIN + _STEP * min(_COLUMNS, max(len(cells), 24)), _ROW * len(rows) + 4, shapes)


def _row(line: Timeline, row: Sequence[Cell], top: int, hues: Mapping[str, int]) -> Iterator[Shape]:
    lefts = {cell.number: _MARGIN + at * _STEP for at, cell in enumerate(row)}
    for loop in line.loops:
        inside = [left for number, left in lefts.items() if loop.first <= number <= loop.last]
        if inside:
            yield Shape("frame", inside[0] - 2, top - 2, inside[-1] - inside[0] + _CELL + 4, _HEIGHT + 8)
    previous = None
    for cell in row:
        hue = hues.get(cell.identity)
        level = _CSS.get(cell.level, "")
        css = "once" if hue is None else f"c{hue}"
        yield Shape("cell", lefts[cell.number], top, _CELL, _HEIGHT, css, level, _tooltip(cell))
        if previous is not None and cell.number != previous + 1:
            yield Shape("gap", lefts[cell.number] - 2, top - 4, height=_HEIGHT + 12)
        previous = cell.number
    for loop in line.loops:
        for at, css in ((loop.notice, "notice"), (loop.land, "land"), (loop.block, "block")):
            if at in lefts:
                yield Shape("mark", lefts[at] + _CELL / 2, top - 8, css=css, text=f"first {css}: turn {at}")
    yield from _axis(line, row, lefts, top)


def _tooltip(cell: Cell) -> str:
    parts = [f"turn {cell.number}: {cell.tool}" + (f" #{cell.identity[:6]}" if cell.identity else "")]
    parts += filter(None, (moment(cell.at_s), f"{tokens(cell.spent)} tokens", _LEVELS.get(cell.level, "")))
    if cell.kind:
        parts.append(f"{cell.kind}: {cell.evidence}")
    if cell.excerpt:
        parts.append(cell.excerpt)
    return " \N{MIDDLE DOT} ".join(parts)


def _axis(line: Timeline, row: Sequence[Cell], lefts: Mapping[int, int], top: int) -> Iterator[Shape]:
    """Label both ends of a row with turn numbers and, if recorded, the time since the first turn."""
    start = next((cell.at_s for cell in line.cells if cell.at_s is not None), None)
    for cell, anchor in ((row[0], "start"), (row[-1], "end")):
        if anchor == "end" and len(row) < 12:
            continue
        x = lefts[cell.number] + (0 if anchor == "start" else _CELL)
        passed = duration(cell.at_s - start) if cell.at_s is not None and start is not None else ""
        label = f"turn {cell.number}" + (f" \N{MIDDLE DOT} {passed}" if passed else "")
        yield Shape("text", x, top + _HEIGHT + 20, css=anchor, text=label)
