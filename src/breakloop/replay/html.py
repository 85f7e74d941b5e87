"""The HTML report of `scan` and `replay`: one self-contained file without scripts, with an SVG timeline per session.

Everything from a recording is escaped, and no text of a prompt is included unless excerpts were requested. Marks
differ in shape as well as in colour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from breakloop.replay.report import counted, lasted, moment, money, tokens
from breakloop.replay.sessions import total
from breakloop.replay.timeline import AGAIN, BLOCK, NOTICE, Cell, Timeline, TimelineLoop, shown

STYLE: Final = """
:root{color-scheme:light dark;--paper:#fbfbf9;--card:#fff;--ink:#1c1f23;--soft:#5b636d;--line:#dfe2e6;--frame:#fdeceb;
--frame-line:#e3a29c;--notice:#935800;--block:#c4271a;--link:#0b57a4;--once:#d5d9de;
--c0:#2f6db3;--c1:#d1801f;--c2:#2f8f6b;--c3:#a3479c;--c4:#7a6a2c;--c5:#4b9fb8;--c6:#c25673;--c7:#5d5fb5}
@media (prefers-color-scheme:dark){:root{--paper:#15181c;--card:#1d2126;--ink:#e8eaed;--soft:#a4adb8;--line:#343a42;
--frame:#3a2321;--frame-line:#8c4a44;--notice:#f0ad4e;--block:#ff7b6e;--link:#8ec1ff;--once:#454c55;
--c0:#6ea8ea;--c1:#efa552;--c2:#5cc49b;--c3:#d68ad0;--c4:#c3b169;--c5:#7fcbe0;--c6:#ee8ba6;--c7:#9a9cf0}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:1.6rem;margin:0 0 4px}h2{font-size:1.25rem;margin:40px 0 12px}h3{font-size:1.05rem;margin:0}
p{margin:8px 0}a{color:var(--link)}.soft{color:var(--soft)}
code{font:.92em ui-monospace,"SF Mono",Menlo,Consolas,monospace;overflow-wrap:anywhere}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 16px;overflow-x:auto}
.cards,.key{margin:24px 0 0;padding:0;list-style:none}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px}
.cards li,article{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.cards b{display:block;font-size:1.55rem;line-height:1.25}.cards .bad b{color:var(--block)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.93rem}caption{text-align:left;color:var(--soft);padding-bottom:6px}
th,td{text-align:left;padding:7px 12px 7px 0;border-bottom:1px solid var(--line);vertical-align:top}
td:first-child{overflow-wrap:anywhere;min-width:12rem}
th{font-weight:600;white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
article{margin:0 0 16px}article header{display:flex;flex-wrap:wrap;gap:8px 12px;align-items:baseline}
.tag{border:1px solid currentColor;border-radius:99px;padding:0 9px;font-size:.82rem;white-space:nowrap}
.tag.block{color:var(--block)}.tag.notice{color:var(--notice)}
.evidence{font-size:1.02rem}
.timeline{display:block;max-width:100%;height:auto;margin:12px 0 0}
.timeline .frame{fill:var(--frame);stroke:var(--frame-line)}
.timeline .notice{fill:var(--notice)}.timeline .block{fill:var(--block)}
.timeline .gap{stroke:var(--soft);stroke-dasharray:2 3;fill:none}
.timeline .axis{fill:var(--soft);font:10.5px system-ui,sans-serif}
.once{fill:var(--once);background:var(--once)}
.c0{fill:var(--c0);background:var(--c0)}.c1{fill:var(--c1);background:var(--c1)}.c2{fill:var(--c2);background:var(--c2)}
.c3{fill:var(--c3);background:var(--c3)}.c4{fill:var(--c4);background:var(--c4)}.c5{fill:var(--c5);background:var(--c5)}
.c6{fill:var(--c6);background:var(--c6)}.c7{fill:var(--c7);background:var(--c7)}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;margin-top:8px;font-size:.85rem;color:var(--soft)}
.swatch{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
.timeline.sign{display:inline-block;width:12px;height:12px;margin:0 6px 0 0;vertical-align:-1px}
.facts{display:flex;flex-wrap:wrap;gap:2px 20px;margin:8px 0 0;font-size:.9rem;color:var(--soft)}
blockquote{margin:10px 0 0;padding:6px 12px;border-left:3px solid var(--line);color:var(--soft)}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--card);padding:8px}
@media print{article{break-inside:avoid}}
"""


COLOURS: Final = 8
CELLS_MAX: Final = 720  # of one picture
_AROUND: Final = 6  # turns before and after a loop that are drawn, too
_COLUMNS: Final = 72
_STEP, _CELL, _HEIGHT = 13, 11, 20
_TOP, _ROW, _MARGIN = 16, 62, 8
NOTICE_SHAPE: Final = "M0 -5l5 5l-5 5l-5 -5z"  # a diamond
BLOCK_SHAPE: Final = "M-2.2 -5.3h4.4l3.1 3.1v4.4l-3.1 3.1h-4.4l-3.1 -3.1v-4.4z"  # an octagon
_LEVELS: Final = {AGAIN: "the same call as before", NOTICE: "noticed", BLOCK: "blocked"}


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


def picture(line: Timeline, name: str) -> str:
    """Return the picture as SVG; `name` makes its ids unique within a page."""
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
        parts += _timeline_row(line, row, _TOP + index * _ROW, hues)
    return "".join([*parts, "</svg>"])


def described(line: Timeline) -> str:
    said = [counted(len(line.cells), "turn")]
    for loop in line.loops:
        part = f"turns {loop.first} to {loop.last} repeat ({loop.kind})"
        part += f", noticed at turn {loop.notice}" if loop.notice is not None else ""
        part += f", blocked at turn {loop.block}" if loop.block is not None else ""
        said.append(part)
    return "; ".join(said) + "."


def _timeline_row(line: Timeline, row: Sequence[Cell], top: int, hues: dict[str, int]) -> Iterator[str]:
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


def _marks(loop: TimelineLoop, places: dict[int, int], top: int) -> Iterator[str]:
    """A diamond marks the first notice, an octagon the first block."""
    for at, level, shape in ((loop.notice, "notice", NOTICE_SHAPE), (loop.block, "block", BLOCK_SHAPE)):
        if at in places:
            x, y = places[at] + _CELL / 2, top - 8
            title = f"<title>first {level}: turn {at}</title>"
            yield f'<path class="{level}" transform="translate({x} {y})" d="{shape}">{title}</path>'


def _axis(line: Timeline, row: Sequence[Cell], places: dict[int, int], top: int) -> Iterator[str]:
    """Label both ends of a row with turn numbers and, if recorded, the time since the first turn."""
    start = next((cell.at_s for cell in line.cells if cell.at_s is not None), None)
    for cell, anchor in ((row[0], "start"), (row[-1], "end")):
        if anchor == "end" and len(row) < 12:
            continue
        x = places[cell.number] + (0 if anchor == "start" else _CELL)
        passed = lasted(cell.at_s - start) if cell.at_s is not None and start is not None else ""
        label = f"turn {cell.number}" + (f" \N{MIDDLE DOT} {passed}" if passed else "")
        yield f'<text class="axis" x="{x}" y="{top + _HEIGHT + 20}" text-anchor="{anchor}">{label}</text>'


PICTURES_MAX: Final = 60
_ROWS_MAX: Final = 500
_KEYS: Final = 5
_TOLD: Final = 5  # loops of one session
_NAME_MAX: Final = 56
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_NEXT: Final = """<h2 id="next">What to do next</h2>
<p>Put breakloop between your agents and their models, and loops like these are stopped while they happen:</p>
<pre><code>make serve
export ANTHROPIC_BASE_URL=http://127.0.0.1:8787
export OPENAI_BASE_URL=http://127.0.0.1:8787/v1</code></pre>"""


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of the report."""

    title: str
    sessions: int
    turns: int
    judged_by: str
    notes: Sequence[str] = ()


def page(heading: Heading, timelines: Iterable[Timeline]) -> str:
    """Return the page, the most expensive loops first."""
    lines = sorted(timelines, key=lambda line: (not line.blocked, -line.after.tokens, line.session.id))
    return "".join(_page(heading, lines))


def _page(heading: Heading, lines: Sequence[Timeline]) -> Iterator[str]:
    title = escape(heading.title)
    yield f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n<style>{STYLE}</style>\n</head>\n<body>\n'
    yield f'<a class="skip" href="#loops">Skip to the loops</a>\n<main>\n<h1>{title}</h1>\n'
    yield f'<p class="soft">Judged by {escape(heading.judged_by)}.</p>\n'
    yield from _cards(heading, lines)
    if lines:
        yield from _table(lines)
        yield '<h2 id="details">Timelines</h2>\n'
        for number, line in enumerate(lines[:PICTURES_MAX], 1):
            yield from _article(line, number)
        if len(lines) > PICTURES_MAX:
            yield f'<p class="soft">The {len(lines) - PICTURES_MAX:,} that cost least are not drawn.</p>\n'
        yield f"{_NEXT}\n"
    else:
        yield '<h2 id="loops">No loops</h2>\n<p>Nothing in these sessions repeats itself without progress.</p>\n'
    if heading.notes:
        yield '<h2 id="notes">Passed over</h2>\n<ul>\n'
        yield from (f"<li>{escape(note)}</li>\n" for note in heading.notes)
        yield "</ul>\n"
    yield "</main>\n</body>\n</html>\n"


def _cards(heading: Heading, lines: Sequence[Timeline]) -> Iterator[str]:
    loops = [loop for line in lines for loop in line.loops if loop.block is not None]
    looping = sum(1 for line in lines if line.blocked)
    after = total(loop.after for loop in loops)
    cards = [
        (f"{heading.sessions:,}", f"sessions with {counted(heading.turns, 'turn')}", False),
        (f"{looping:,}", "of them loop" if looping != 1 else "of them loops", looping > 0),
        (f"{sum(loop.turns for loop in loops):,}", "turns in loops", False),
        (tokens(after), "tokens after the point where they would have been stopped", looping > 0),
    ]
    if after.money is not None:
        cards.append((money(after.money), "spent on them", looping > 0))
    yield '<ul class="cards">\n'
    for figure, words, bad in cards:
        yield f"<li{' class=bad' if bad else ''}><b>{escape(figure)}</b>{escape(words)}</li>\n"
    yield "</ul>\n"


def _table(lines: Sequence[Timeline]) -> Iterator[str]:
    priced = any(line.after.money is not None for line in lines)
    yield '<h2 id="loops">Loops, the costliest first</h2>\n<div class="scroll">\n<table>\n'
    yield "<caption>Tokens are those from the first block to the end of a loop.</caption>\n<thead><tr>"
    yield '<th scope="col">session</th><th scope="col">agent</th><th scope="col">model</th><th scope="col">kind</th>'
    yield '<th scope="col" class="n">turns</th><th scope="col" class="n">from-to</th><th scope="col">stopped at</th>'
    yield '<th scope="col" class="n">tokens</th>' + ('<th scope="col" class="n">cost</th>' if priced else "")
    yield "</tr></thead>\n<tbody>\n"
    for number, line in enumerate(lines[:_ROWS_MAX], 1):
        yield f"<tr>{''.join(_session_row(line, number, priced=priced))}</tr>\n"
    yield "</tbody>\n</table>\n</div>\n"
    if len(lines) > _ROWS_MAX:
        yield f'<p class="soft">and {len(lines) - _ROWS_MAX:,} more</p>\n'


def _session_row(line: Timeline, number: int, *, priced: bool) -> Iterator[str]:
    name = escape(shown(line.session.id, _NAME_MAX))
    yield f'<td><a href="#s{number}">{name}</a></td>' if number <= PICTURES_MAX else f"<td>{name}</td>"
    for said in (line.session.agent, line.model, line.kinds):
        yield f"<td>{escape(shown(said, 40))}</td>"
    blocks = [loop.block for loop in line.loops if loop.block is not None]
    first, last = line.span
    yield f'<td class="n">{line.looping_turns}</td><td class="n">{first}-{last}</td>'
    yield f"<td>turn {blocks[0]}</td>" if blocks else "<td>noticed only</td>"
    yield f'<td class="n">{escape(tokens(line.after)) if blocks else "-"}</td>'
    if priced:
        yield f'<td class="n">{money(line.after.money)}</td>'


def _article(line: Timeline, number: int) -> Iterator[str]:
    level = "block" if line.blocked else "notice"
    yield f'<article id="s{number}" aria-labelledby="s{number}-h">\n<header><h3 id="s{number}-h">'
    yield f"<code>{escape(shown(line.session.id, _NAME_MAX))}</code></h3>"
    about = " \N{MIDDLE DOT} ".join(filter(None, (shown(line.session.agent, 60), shown(line.model, 60))))
    yield f'<span class="soft">{escape(about)}</span>'
    for kind in dict.fromkeys(loop.kind for loop in line.loops):
        yield f'<span class="tag {level}">{escape(kind)}</span>'
    yield "</header>\n"
    if line.file:
        yield f'<p class="soft"><code>{escape(shown(line.file, 200))}</code></p>\n'
    for loop in line.stopped[:_TOLD]:
        yield from _loop(loop)
    if len(line.stopped) > _TOLD:
        yield f'<p class="soft">and {len(line.stopped) - _TOLD} more loops in it</p>\n'
    yield f'<div class="scroll">{picture(line, f"p{number}")}</div>\n'
    yield from _key(line)
    yield "</article>\n"


def _loop(loop: TimelineLoop) -> Iterator[str]:
    what = "would have been stopped" if loop.block is not None else "was noticed, not stopped"
    at = loop.block if loop.block is not None else loop.notice
    yield f'<p class="evidence"><b>Turns {loop.first}-{loop.last}:</b> {_marked(loop.evidence)}; '
    yield f"{what} at turn {at}.</p>\n"
    facts = [
        f"began {moment(loop.began_at)}" if moment(loop.began_at) else "",
        f"went on for {lasted(loop.seconds)}" if loop.seconds else "",
        f"{tokens(loop.spent)} tokens in the loop",
        f"{tokens(loop.after)} after the block" if loop.block is not None else "",
        money(loop.after.money),
    ]
    yield f'<p class="facts">{"".join(f"<span>{escape(one)}</span>" for one in facts if one)}</p>\n'
    if loop.excerpt:
        yield f"<blockquote><code>{escape(loop.excerpt)}</code></blockquote>\n"


def _marked(evidence: str) -> str:
    """Render names in backticks as code."""
    parts = escape(evidence).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def _key(line: Timeline) -> Iterator[str]:
    cells = visible(line)
    times = Counter(cell.identity for cell in cells)
    names = {cell.identity: cell.tool for cell in cells}
    yield '<ul class="key">'
    for identity, hue in list(colours(cells).items())[:_KEYS]:
        said = f"{escape(names[identity])} <code>#{identity[:6]}</code>, {times[identity]} times"
        yield f'<li><span class="swatch c{hue}"></span>{said}</li>'
    yield '<li><span class="swatch once"></span>other calls</li>'
    for level, shape, words in (("notice", NOTICE_SHAPE, "first notice"), ("block", BLOCK_SHAPE, "first block")):
        sign = f'<path class="{level}" d="{shape}"/>'
        yield f'<li><svg class="timeline sign" viewBox="-6 -6 12 12" aria-hidden="true">{sign}</svg>{words}</li>'
    yield "</ul>\n"
