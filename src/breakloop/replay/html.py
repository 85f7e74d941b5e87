"""The HTML report of `scan` and `replay`: one self-contained file without scripts, with an SVG timeline per session.

The layout is the template `report.html`. Everything from a recording is escaped, and no text of a prompt is included
unless excerpts were requested. Marks differ in shape as well as in colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from breakloop.formatting import duration, plural
from breakloop.replay.report import moment, money, tokens
from breakloop.replay.sessions import total
from breakloop.replay.timeline import AGAIN, BLOCK, LAND, NOTICE, Cell, Timeline, shown

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


def page(heading: Heading, timelines: Iterable[Timeline]) -> str:
    """Return the page, the most expensive loops first."""
    lines = sorted(timelines, key=lambda line: (not line.blocked, -line.after.tokens, line.session.id))
    loops = [loop for line in lines for loop in line.loops if loop.end is not None]
    return _template().render(
        heading=heading,
        lines=lines,
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
