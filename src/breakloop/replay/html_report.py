"""The HTML report of `scan` and `replay`: one file without scripts and without anything from elsewhere. No words of a
prompt stand in it unless excerpts were asked for (SPEC Y-1), and whatever comes from a recording is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from breakloop.replay.cost import total
from breakloop.replay.html_style import STYLE
from breakloop.replay.timeline import Loop, Timeline, shown
from breakloop.replay.timeline_svg import BLOCK_SHAPE, NOTICE_SHAPE, colours, picture, visible
from breakloop.replay.words import counted, lasted, moment, money, tokens

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
    """What stands above the loops."""

    title: str
    sessions: int
    turns: int
    judged_by: str
    notes: Sequence[str] = ()


def page(heading: Heading, timelines: Iterable[Timeline]) -> str:
    """Return the whole page, the costliest loops first."""
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
        yield f"<tr>{''.join(_row(line, number, priced=priced))}</tr>\n"
    yield "</tbody>\n</table>\n</div>\n"
    if len(lines) > _ROWS_MAX:
        yield f'<p class="soft">and {len(lines) - _ROWS_MAX:,} more</p>\n'


def _row(line: Timeline, number: int, *, priced: bool) -> Iterator[str]:
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


def _loop(loop: Loop) -> Iterator[str]:
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
    """Evidence with names of tools between backticks set as code."""
    parts = escape(evidence).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def _key(line: Timeline) -> Iterator[str]:
    """What the colours and signs mean."""
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
