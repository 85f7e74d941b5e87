"""`breakloop scan`: find loops in existing transcripts and estimate what they cost."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from rich.table import Table
from rich.text import Text

from breakloop.cli import replay
from breakloop.cli.main import PROBLEM, UNREACHABLE
from breakloop.cli.output import config_option, console, end, json_option, print_table, settings_of
from breakloop.cli.test import load_policy
from breakloop.clock import SystemClock
from breakloop.config.settings import Settings
from breakloop.formatting import duration, plural
from breakloop.policy.load import load_text
from breakloop.replay.across import AcrossFinding
from breakloop.replay.report import Heading, moment, money, tokens
from breakloop.replay.run import ReplaySetup
from breakloop.replay.scan import (
    USUAL,
    Scan,
    ScanFinding,
    ScanResult,
    Summary,
    TranscriptFiles,
    find,
    scan_totals_json,
    scanned_json,
    summary,
    usual,
)
from breakloop.replay.timeline import AGAIN, BLOCK, LAND, NEW, NOTICE, Timeline, TimelineLoop, shown

_LISTED: Final = 20
_DRAWN: Final = 8
_TOLD: Final = 3  # loops of one session
_PROBLEMS: Final = 5
_ADVICE: Final = """Stop the next one while it happens:
  make serve            # or: breakloop serve
  export ANTHROPIC_BASE_URL=http://127.0.0.1:8787
  export OPENAI_BASE_URL=http://127.0.0.1:8787/v1"""
_ID_MAX: Final = 44
_MARKS: Final = {
    NEW: "\N{MIDDLE DOT}", AGAIN: "\N{LIGHT SHADE}", NOTICE: "\N{DARK SHADE}", LAND: "\N{LOWER HALF BLOCK}",
    BLOCK: "\N{FULL BLOCK}",
}  # fmt: skip
_PLAIN: Final = {NEW: ".", AGAIN: "o", NOTICE: "!", LAND: "_", BLOCK: "#"}
_STYLES: Final = {NEW: "dim", AGAIN: "", NOTICE: "yellow", LAND: "bold", BLOCK: "bold red"}
_WORDS: Final = {
    NEW: "new", AGAIN: "same call again", NOTICE: "noticed", LAND: "would have been landed",
    BLOCK: "would have been blocked",
}  # fmt: skip


def tell(
    scanned: Sequence[ScanResult],
    files: TranscriptFiles,
    places: Sequence[str],
    *,
    across: Sequence[AcrossFinding] = (),
    excerpts: bool = False,
) -> None:
    found = summary(scanned)
    lines = [one.outcome.timeline for one in scanned if one.outcome.timeline is not None]
    lines.sort(key=lambda line: (not line.blocked, -line.after.tokens, line.session.id))
    if not scanned:
        click.echo(f"no sessions in {', '.join(places)}")
        nothing_here()
    else:
        click.echo(summed(found))
        if found.looping:
            _table(lines[: found.looping])
            _drawn(lines[: found.looping], excerpts=excerpts)
        replay.tell_across(across)
        if found.looping or any(one.first_block for one in across):
            _next(found)
        else:
            click.echo(f"scanned {', '.join(places)}: nothing would have been stopped")
    _passed_over(files)


def summed(found: Summary) -> str:
    said = f"{plural(found.sessions, 'session')}, "
    if not found.looping:
        noticed = f"; {found.noticed} had a notice (--html shows them)" if found.noticed else ""
        return f"{said}no loops ({plural(found.turns, 'turn')}, {tokens(found.spent)} tokens){noticed}"
    said += f"{found.looping:,} with loops{f', of which {found.landed:,} landed' if found.landed else ''}: "
    said += f"{found.loop_turns:,} of {plural(found.turns, 'turn')}, {tokens(found.after)} tokens"
    cost = f" ({money(found.after.money)})" if found.after.money is not None else ""
    return f"{said}{cost} after the point where breakloop would have stopped them"


def strip(line: Timeline, width: int, marks: dict[int, str] | None = None) -> Text:
    """Return the turns of a session as one mark each. In a long session a mark stands for several turns, at their
    worst.
    """
    marks = marks or _MARKS
    levels = [cell.level for cell in line.cells]
    size = max(1, -(-len(levels) // max(width, 1)))
    text = Text()
    for at in range(0, len(levels), size):
        level = max(levels[at : at + size])
        text.append(marks[level], style=_STYLES[level])
    return text


def nothing_here() -> None:
    """Print the usual locations of transcripts and the formats that can be read."""
    click.echo("\nTranscripts are usually here:")
    for whose, place in USUAL:
        click.echo(f"  {whose:<12} ~/{place}")
    click.echo("  SWE-agent    trajectories/**/*.traj")
    click.echo("\nAlso supported: JSON Lines of conversations (`messages`) or of requests with their responses.")
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
    used = {cell.level for line in lines for cell in line.cells} | {NEW, AGAIN, NOTICE, BLOCK}
    click.echo("  ".join(f"{marks[level]} {words}" for level, words in _WORDS.items() if level in used))
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


def _said(loop: TimelineLoop) -> str:
    where = f"turns {loop.first}-{loop.last}"
    when = ", ".join(filter(None, (moment(loop.began_at), duration(loop.seconds) if loop.seconds is not None else "")))
    if loop.land is not None:
        stopped = f"landed at turn {loop.land}"
    else:
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
        click.echo(f"{plural(found.noticed, 'other session')} had a notice and no block (--html shows them)\n")
    click.echo(_ADVICE)


def _passed_over(files: TranscriptFiles) -> None:
    if not files.problems:
        return
    lines = files.problems[:_PROBLEMS]
    click.echo(f"skipped, {plural(max(files.skipped, len(files.problems)), 'problem')}:", err=True)
    for line in lines:
        click.echo(f"  {line}", err=True)
    if len(files.problems) > len(lines):
        click.echo("  ... (--json lists them)", err=True)


# Both detectors of the built-in protection; `steps` first, because its evidence is more specific.
_BUNDLE: Final = (
    b"bundle_version: 1\npolicies: []\ndefaults: {loop_detection: [{similarity: steps}, {similarity: tail}]}\n"
)


@click.command(
    name="scan",
    epilog="Exit code 0: scan completed, with or without loops; 1: --fail-on, or a given file is not a transcript; "
    "2: a path does not exist or cannot be read.",
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--html", metavar="FILE", default="", help="Also write a report with a picture of each loop.")
@click.option("--excerpts", is_flag=True, help="Show the beginning of the calls or texts of each loop.")
@replay.price_options
@click.option("--policy", metavar="PATH", default="", help="Bundle (file or directory).  [the built-in protection]")
@click.option("--fail-on", type=click.Choice(["notice", "block"]), help="Exit with 1 if a session gets one.")
@config_option
@json_option
def command(paths: tuple[str, ...], **options: Any) -> None:
    """Find loops in existing transcripts and report what they cost.

    PATHs are files or directories, searched recursively; by default the directories where Claude Code, Codex and
    OpenHands store transcripts. Supported are transcripts of Claude Code, Codex, OpenHands and SWE-agent,
    conversations and request logs in the formats of OpenAI and Anthropic, and all formats of `replay`; the format is
    detected from the content. Nothing is sent anywhere, and no text of a prompt is shown without --excerpts.

    Token counts are the recorded ones; where none were recorded, four bytes count as one token and the figure says
    "about". Prices are those that `breakloop prices` shows.

    With --json, one line per session (as with `replay --json`, with its loops), then one line of totals.
    """
    as_json = options["as_json"]
    settings = settings_of(options["config"]).settings
    pricing = replay.pricing_of(options, settings)
    files, trouble, places = _found(paths, as_json=as_json)
    scan = Scan(_rig(options, settings), pricing, excerpts=options["excerpts"])
    scan.files.skipped += len(trouble)
    scan.files.problems += trouble
    scanned: list[ScanResult] = []
    with replay.progress("scanning", sum(one.size for one in files), quiet=as_json and sys.stdout.isatty()) as advance:
        for one in scan.sessions(files, advance):
            scanned.append(one)
            if as_json:
                click.echo(json.dumps(scanned_json(one), ensure_ascii=False))
    across = scan.across.findings()
    if as_json:
        totals = scan_totals_json(scanned, scan.files, across)
        totals["totals"] |= replay.unpriced_json(pricing)
        click.echo(json.dumps(totals, ensure_ascii=False))
    else:
        tell(scanned, scan.files, places, across=across, excerpts=options["excerpts"])
        replay.tell_unpriced(pricing)
    outcomes = [one.outcome for one in scanned]
    if options["html"]:
        turns = sum(one.turns for one in outcomes)
        judged_by = options["policy"] or replay.BUILTIN
        heading = Heading("Loops in transcripts", len(scanned), turns, judged_by, scan.files.problems)
        replay.write_html(options["html"], heading, outcomes, across)
    none_is_one = any(one.named for one in files) and not scan.files.read  # of the files that were named explicitly
    if replay.failed(outcomes, options["fail_on"], across) or none_is_one:
        end(PROBLEM)


def _found(paths: Sequence[str], *, as_json: bool) -> tuple[list[ScanFinding], list[str], list[str]]:
    """Return the files below the given paths, or in the default locations, what cannot be read there, and the names of
    the locations.
    """
    known = usual(Path.home()) if not paths else []
    if not paths and not known:
        _unreachable("there are no transcripts in the usual places; give a PATH", as_json=as_json, teach=True)
    listed = [Path(name) for name in paths] or [place for _, place in known]
    files: list[ScanFinding] = []
    trouble: list[str] = []
    for path in listed:
        try:
            found, unread = find(path)
        except OSError as error:
            _unreachable(f"{path}: cannot be read: {error.strerror or error}", as_json=as_json)
        files += found
        trouble += unread
    return files, trouble, [f"{path} ({whose})" for whose, path in known] or list(paths)


def _unreachable(message: str, *, as_json: bool, teach: bool = False) -> NoReturn:
    if as_json:
        click.echo(json.dumps({"ok": False, "error": message}, ensure_ascii=False))
    else:
        click.echo(message, err=True)
        if teach:
            nothing_here()
    end(UNREACHABLE)


def _rig(options: dict[str, Any], settings: Settings) -> ReplaySetup:
    start = float(int(SystemClock().now()))
    policy = options["policy"]
    loaded = load_policy(policy, start) if policy else load_text(_BUNDLE, "scan.yaml", now=start)
    return replace(replay.setup(loaded, settings, start), prices=None)  # budgets are not counted
