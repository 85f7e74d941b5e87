"""What `breakloop scan` tells people: one line that sums up, a table of loops by cost, for each its evidence and its
turns in a row, and what to do next. Where nothing is found it says where transcripts are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click
from rich.table import Table
from rich.text import Text

from breakloop.cli.output import console, print_table
from breakloop.replay.places import USUAL
from breakloop.replay.scan import Files, Scanned, Summary, summary
from breakloop.replay.timeline import AGAIN, BLOCK, NEW, NOTICE, Loop, Timeline, shown
from breakloop.replay.words import counted, lasted, moment, money, tokens

_LISTED: Final = 20
_DRAWN: Final = 8
_TOLD: Final = 3  # loops of one session
_PROBLEMS: Final = 5
_ID_MAX: Final = 44
_MARKS: Final = {
    NEW: "\N{MIDDLE DOT}",
    AGAIN: "\N{LIGHT SHADE}",
    NOTICE: "\N{DARK SHADE}",
    BLOCK: "\N{FULL BLOCK}",
}
_PLAIN: Final = {NEW: ".", AGAIN: "o", NOTICE: "!", BLOCK: "#"}
_STYLES: Final = {NEW: "dim", AGAIN: "", NOTICE: "yellow", BLOCK: "bold red"}
_WORDS: Final = {NEW: "new", AGAIN: "same call again", NOTICE: "noticed", BLOCK: "would have been blocked"}


def tell(scanned: Sequence[Scanned], files: Files, places: Sequence[str], *, excerpts: bool = False) -> None:
    """Print the report."""
    found = summary(scanned)
    lines = [one.timeline for one in scanned if one.timeline is not None]
    lines.sort(key=lambda line: (not line.blocked, -line.after.tokens, line.session.id))
    if not scanned:
        click.echo(f"no sessions in {', '.join(places)}")
        nothing_here()
    else:
        click.echo(summed(found))
        if found.looping:
            _table(lines[: found.looping])
            _drawn(lines[: found.looping], excerpts=excerpts)
            _next(found)
        else:
            click.echo(f"looked at {', '.join(places)}: nothing would have been stopped")
    _passed_over(files)


def summed(found: Summary) -> str:
    """Return the line that says it all."""
    said = f"{counted(found.sessions, 'session')}, "
    if not found.looping:
        noticed = f"; {found.noticed} had a notice (--html draws them)" if found.noticed else ""
        return f"{said}no loops ({counted(found.turns, 'turn')}, {tokens(found.spent)} tokens){noticed}"
    said += f"{found.looping:,} with loops: "
    said += f"{found.loop_turns:,} of {counted(found.turns, 'turn')}, {tokens(found.after)} tokens"
    cost = f" ({money(found.after.money)})" if found.after.money is not None else ""
    return f"{said}{cost} after the point where breakloop would have stopped them"


def strip(line: Timeline, width: int, marks: dict[int, str] | None = None) -> Text:
    """Return a session's turns in a row, a mark each; in a long one a mark stands for several, at their worst."""
    marks = marks or _MARKS
    levels = [cell.level for cell in line.cells]
    size = max(1, -(-len(levels) // max(width, 1)))
    text = Text()
    for at in range(0, len(levels), size):
        level = max(levels[at : at + size])
        text.append(marks[level], style=_STYLES[level])
    return text


def nothing_here() -> None:
    """Say where transcripts are, and what can be read."""
    click.echo("\nTranscripts are usually here:")
    for whose, place in USUAL:
        click.echo(f"  {whose:<12} ~/{place}")
    click.echo("  SWE-agent    trajectories/**/*.traj")
    click.echo("\nAlso read: JSON Lines of conversations (`messages`) or of requests with their answers.")
    click.echo("For example: breakloop scan ~/.claude/projects, or breakloop scan logs/agent.jsonl")


def _table(lines: Sequence[Timeline]) -> None:
    priced = any(line.after.money is not None for line in lines)
    columns = ["session", "agent", "model", "kind", "turns", "from-to", "tokens", *(["cost"] if priced else [])]
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for column in table.columns[4:]:
        column.justify = "right"
    for line in lines[:_LISTED]:
        first, last = line.span
        row = [shown(line.session.id, _ID_MAX), shown(line.session.agent, 24), shown(line.model, 30), line.kinds]
        row += [f"{line.looping_turns:,}", f"{first}-{last}", tokens(line.after)]
        table.add_row(*row, *([money(line.after.money)] if priced else []))
    click.echo()
    print_table(table)
    if len(lines) > _LISTED:
        click.echo(f"and {len(lines) - _LISTED:,} more (--json and --html list them)")


def _drawn(lines: Sequence[Timeline], *, excerpts: bool) -> None:
    out = console()
    marks = _MARKS if _can_draw() else _PLAIN
    width = min(out.width, 100) - 4
    click.echo()
    click.echo("  ".join(f"{marks[level]} {words}" for level, words in _WORDS.items()))
    for line in lines[:_DRAWN]:
        out.print()
        out.print(Text(shown(line.session.id, 100), style="bold"), soft_wrap=True)
        out.print(Text("  ") + strip(line, width, marks), soft_wrap=True)
        for loop in line.stopped[:_TOLD]:
            out.print(Text(f"  {_said(loop)}"), soft_wrap=True)
            if excerpts and loop.excerpt:
                out.print(Text(f"    {loop.excerpt}", style="dim"), soft_wrap=True)
        if len(line.stopped) > _TOLD:
            out.print(Text(f"  and {len(line.stopped) - _TOLD} more"), soft_wrap=True)


def _said(loop: Loop) -> str:
    where = f"turns {loop.first}-{loop.last}"
    when = ", ".join(filter(None, (moment(loop.began_at), lasted(loop.seconds))))
    stopped = f"stopped at turn {loop.block}" if loop.block is not None else f"noticed at turn {loop.notice}"
    return f"{where}{f' ({when})' if when else ''}: {loop.evidence}; {stopped}"


def _can_draw() -> bool:
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "".join(_MARKS.values()).encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _next(found: Summary) -> None:
    click.echo()
    if found.noticed:
        click.echo(f"{counted(found.noticed, 'other session')} had a notice and no block (--html draws them)\n")
    click.echo("Stop the next one while it happens:")
    click.echo("  make serve            # or: breakloop serve")
    click.echo("  export ANTHROPIC_BASE_URL=http://127.0.0.1:8787")
    click.echo("  export OPENAI_BASE_URL=http://127.0.0.1:8787/v1")


def _passed_over(files: Files) -> None:
    if not files.problems:
        return
    lines = files.problems[:_PROBLEMS]
    click.echo(f"passed over, {counted(max(files.skipped, len(files.problems)), 'problem')}:", err=True)
    for line in lines:
        click.echo(f"  {line}", err=True)
    if len(files.problems) > len(lines):
        click.echo("  ... (--json lists them)", err=True)
