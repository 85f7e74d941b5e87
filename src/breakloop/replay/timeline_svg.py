"""A session's timeline as an SVG picture: a row of turns, coloured by what the model called, loops framed, the first
notice and the first block marked by shape as well as colour, elapsed time below. Words come in tooltips and in the
title; colours are classes of `html_style`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from breakloop.replay.timeline import AGAIN, BLOCK, NOTICE, Cell, Loop, Timeline, shown
from breakloop.replay.words import counted, lasted, moment, tokens

COLOURS: Final = 8
CELLS_MAX: Final = 720  # of one picture
_AROUND: Final = 6  # turns before and behind a loop that are shown too
_COLUMNS: Final = 72
_STEP, _CELL, _HEIGHT = 13, 11, 20
_TOP, _ROW, _MARGIN = 16, 62, 8
NOTICE_SHAPE: Final = "M0 -5l5 5l-5 5l-5 -5z"  # a diamond
BLOCK_SHAPE: Final = "M-2.2 -5.3h4.4l3.1 3.1v4.4l-3.1 3.1h-4.4l-3.1 -3.1v-4.4z"  # an octagon
_LEVELS: Final = {AGAIN: "the same call as before", NOTICE: "noticed", BLOCK: "blocked"}


def colours(cells: Sequence[Cell]) -> dict[str, int]:
    """Return a colour for each of the calls that come most often; what comes once has none."""
    times = Counter(cell.identity for cell in cells if cell.identity)
    often = [identity for identity, count in times.most_common(COLOURS) if count > 1]
    return {identity: index for index, identity in enumerate(often)}


def visible(line: Timeline) -> list[Cell]:
    """Return the turns that are drawn: the loops, and some around them."""
    wanted: set[int] = set()
    for loop in line.loops:
        wanted |= set(range(max(1, loop.first - _AROUND), min(len(line.cells), loop.last + _AROUND) + 1))
    return [line.cells[number - 1] for number in sorted(wanted)][:CELLS_MAX]


def picture(line: Timeline, name: str) -> str:
    """Return the picture; `name` makes its ids unique in a page."""
    cells = visible(line)
    hues = colours(cells)
    rows = [cells[at : at + _COLUMNS] for at in range(0, len(cells), _COLUMNS)]
    width = 2 * _MARGIN + _STEP * min(_COLUMNS, max(len(cells), 24))
    height = _ROW * len(rows) + 4
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg class="timeline" role="img" aria-labelledby="{name}-t {name}-d" {size}>',
        f'<title id="{name}-t">Timeline of {escape(shown(line.session.id, 80))}</title>',
        f'<desc id="{name}-d">{escape(described(line))}</desc>',
    ]
    for index, row in enumerate(rows):
        parts += _row(line, row, _TOP + index * _ROW, hues)
    return "".join([*parts, "</svg>"])


def described(line: Timeline) -> str:
    """Return the picture in words."""
    said = [counted(len(line.cells), "turn")]
    for loop in line.loops:
        part = f"turns {loop.first} to {loop.last} repeat ({loop.kind})"
        part += f", noticed at turn {loop.notice}" if loop.notice is not None else ""
        part += f", blocked at turn {loop.block}" if loop.block is not None else ""
        said.append(part)
    return "; ".join(said) + "."


def _row(line: Timeline, row: Sequence[Cell], top: int, hues: dict[str, int]) -> Iterator[str]:
    places = {cell.number: _MARGIN + at * _STEP for at, cell in enumerate(row)}
    for loop in line.loops:
        inside = [places[number] for number in places if loop.first <= number <= loop.last]
        if inside:
            size = f'width="{inside[-1] - inside[0] + _CELL + 4}" height="{_HEIGHT + 8}"'
            yield f'<rect class="frame" x="{inside[0] - 2}" y="{top - 2}" {size} rx="3"/>'
    before = None
    for cell in row:
        yield from _cell(cell, places[cell.number], top, hues)
        if before is not None and cell.number != before + 1:
            yield f'<path class="gap" d="M{places[cell.number] - 2} {top - 4}v{_HEIGHT + 12}"/>'
        before = cell.number
    for loop in line.loops:
        yield from _marks(loop, places, top)
    yield from _axis(line, row, places, top)


def _cell(cell: Cell, left: int, top: int, hues: dict[str, int]) -> Iterator[str]:
    hue = hues.get(cell.identity)
    kind = "once" if hue is None else f"c{hue}"
    yield f"<g><title>{escape(_told(cell))}</title>"
    yield f'<rect class="cell {kind}" x="{left}" y="{top}" width="{_CELL}" height="{_HEIGHT}" rx="1.5"/>'
    if cell.level > AGAIN:
        level = "block" if cell.level == BLOCK else "notice"
        yield f'<rect class="{level}" x="{left}" y="{top + _HEIGHT + 1}" width="{_CELL}" height="3"/>'
    yield "</g>"


def _told(cell: Cell) -> str:
    parts = [f"turn {cell.number}: {cell.tool}" + (f" #{cell.identity[:6]}" if cell.identity else "")]
    parts += filter(None, (moment(cell.at_s), f"{tokens(cell.spent)} tokens", _LEVELS.get(cell.level, "")))
    if cell.kind:
        parts.append(f"{cell.kind}: {cell.evidence}")
    if cell.excerpt:
        parts.append(cell.excerpt)
    return " \N{MIDDLE DOT} ".join(parts)


def _marks(loop: Loop, places: dict[int, int], top: int) -> Iterator[str]:
    """A diamond over the first notice, an octagon over the first block."""
    for at, level, shape in ((loop.notice, "notice", NOTICE_SHAPE), (loop.block, "block", BLOCK_SHAPE)):
        if at in places:
            x, y = places[at] + _CELL / 2, top - 8
            title = f"<title>first {level}: turn {at}</title>"
            yield f'<path class="{level}" transform="translate({x} {y})" d="{shape}">{title}</path>'


def _axis(line: Timeline, row: Sequence[Cell], places: dict[int, int], top: int) -> Iterator[str]:
    """Numbers of turns at both ends of a row and, where times were recorded, how long after the first turn."""
    start = next((cell.at_s for cell in line.cells if cell.at_s is not None), None)
    for cell, anchor in ((row[0], "start"), (row[-1], "end")):
        if anchor == "end" and len(row) < 12:
            continue
        x = places[cell.number] + (0 if anchor == "start" else _CELL)
        passed = lasted(cell.at_s - start) if cell.at_s is not None and start is not None else ""
        label = f"turn {cell.number}" + (f" \N{MIDDLE DOT} {passed}" if passed else "")
        yield f'<text class="axis" x="{x}" y="{top + _HEIGHT + 20}" text-anchor="{anchor}">{label}</text>'
