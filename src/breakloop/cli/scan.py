"""`breakloop scan`: loops in the transcripts that people already have, and what they cost (SPEC X-6). Reading and
running are `replay`'s; this file finds out where to look and writes the report. Text for people is `scan_text`'s."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from breakloop.cli.html_file import write_html
from breakloop.cli.main import PROBLEM, UNREACHABLE
from breakloop.cli.offline import Offline, load_policy
from breakloop.cli.output import config_option, end, fail_problems, json_option, settings_of
from breakloop.cli.price_options import price_options, pricing_of, tell_unpriced, unpriced_json
from breakloop.cli.replay_text import BUILTIN
from breakloop.cli.scan_text import nothing_here, tell
from breakloop.clock import FakeClock, SystemClock
from breakloop.errors import BundleError
from breakloop.policy.load import load_text
from breakloop.replay.html_report import Heading
from breakloop.replay.places import Found, find, usual
from breakloop.replay.run import Rig
from breakloop.replay.scan import Scan, Scanned
from breakloop.replay.scan_json import scan_totals_json, scanned_json
from breakloop.settings import Settings

# Both detectors of the built-in protection (SPEC B-6); `steps` first, because its evidence says more.
_BUNDLE: Final = (
    b"bundle_version: 1\npolicies: []\ndefaults: {loop_detection: [{similarity: steps}, {similarity: tail}]}\n"
)


@click.command(
    name="scan",
    epilog="Exit code 0: looked, whether or not loops were found; 1: --fail-on, or a file named is no transcript; "
    "2: a path is not there or cannot be read.",
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--html", metavar="FILE", default="", help="Also write a report with a picture of each loop.")
@click.option("--excerpts", is_flag=True, help="Show the beginning of what was called or said in each loop.")
@price_options
@click.option("--policy", metavar="PATH", default="", help="Bundle to judge by; else the built-in protection.")
@click.option("--fail-on", type=click.Choice(["notice", "block"]), help="Exit 1 when a session gets that far.")
@config_option
@json_option
def command(paths: tuple[str, ...], **options: Any) -> None:
    """Look for loops in transcripts that you already have, and tell what they cost.

    PATHs are files or directories, searched to the bottom; without one, the places where Claude Code, Codex and
    OpenHands keep theirs. Read are transcripts of Claude Code, Codex, OpenHands and SWE-agent, conversations and
    request logs of OpenAI's and Anthropic's form, and whatever `replay` reads; the content tells which it is. Nothing
    is sent anywhere, and no words of a prompt are shown without --excerpts.

    Tokens are those that were recorded; where none were, four bytes count as one and the figure says "about". Money
    is by the list of prices that `breakloop prices` shows.

    With --json, one line a session (as `replay --json`, with its loops), then one line of totals.
    """
    as_json = options["as_json"]
    settings = settings_of(options["config"], as_json=as_json).settings
    pricing = pricing_of(options, settings)
    found, places = _found(paths, as_json=as_json)
    scan = Scan(_rig(options, settings), pricing, excerpts=options["excerpts"])
    scan.files.skipped += len(found.trouble)
    scan.files.problems += found.trouble
    scanned: list[Scanned] = []
    with _progress(sum(one.size for one in found.files), quiet=as_json and sys.stdout.isatty()) as advance:
        for one in scan.sessions(found.files, advance):
            scanned.append(one)
            if as_json:
                click.echo(json.dumps(scanned_json(one), ensure_ascii=False))
    if as_json:
        totals = scan_totals_json(scanned, scan.files)
        totals["totals"] |= unpriced_json(pricing)
        click.echo(json.dumps(totals, ensure_ascii=False))
    else:
        tell(scanned, scan.files, places, excerpts=options["excerpts"])
        tell_unpriced(pricing)
    if options["html"]:
        turns = sum(one.outcome.turns for one in scanned)
        judged_by = options["policy"] or BUILTIN
        heading = Heading("Loops in transcripts", len(scanned), turns, judged_by, scan.files.problems)
        write_html(options["html"], heading, [one.timeline for one in scanned if one.timeline is not None])
    if _failed(scanned, options["fail_on"]) or _is_none(found.files, scan):
        end(PROBLEM)


class _Found:
    """Files to read, and what could not be looked at."""

    def __init__(self) -> None:
        self.files: list[Found] = []
        self.trouble: list[str] = []


def _found(paths: Sequence[str], *, as_json: bool) -> tuple[_Found, list[str]]:
    """Return what is under these paths, else in the usual places, and the names of the places."""
    known = usual(Path.home()) if not paths else []
    if not paths and not known:
        _unreachable("there are no transcripts in the usual places; give a PATH", as_json=as_json, teach=True)
    listed = [Path(name) for name in paths] or [place for _, place in known]
    found = _Found()
    for path in listed:
        try:
            files, trouble = find(path)
        except OSError as error:
            _unreachable(f"{path}: cannot be read: {error.strerror or error}", as_json=as_json)
        found.files += files
        found.trouble += [f"{one.name}: cannot be read: {one.why}" for one in trouble]
    return found, [f"{path} ({whose})" for whose, path in known] or list(paths)


def _unreachable(message: str, *, as_json: bool, teach: bool = False) -> NoReturn:
    if as_json:
        click.echo(json.dumps({"ok": False, "error": message}, ensure_ascii=False))
    else:
        click.echo(message, err=True)
        if teach:
            nothing_here()
    end(UNREACHABLE)


def _rig(options: dict[str, Any], settings: Settings) -> Rig:
    start = float(int(SystemClock().now()))
    try:
        policy = options["policy"]
        loaded = load_policy(policy, start) if policy else load_text(_BUNDLE, "scan.yaml", now=start)
    except BundleError as error:
        fail_problems(error.problems, as_json=options["as_json"])
    offline = Offline(loaded, settings, FakeClock(start))
    bundle = offline.engine.bundle
    assert bundle is not None  # noqa: S101 - an offline engine has one
    return Rig(offline.descriptors, bundle, start)


def _failed(scanned: Sequence[Scanned], fail_on: str | None) -> bool:
    if fail_on is None:
        return False
    lines = [one.timeline for one in scanned if one.timeline is not None]
    return bool(lines) if fail_on == "notice" else any(line.blocked for line in lines)


def _is_none(files: Sequence[Found], scan: Scan) -> bool:
    """Tell whether a file that somebody named was no transcript."""
    return any(one.named for one in files) and not scan.files.read


@contextmanager
def _progress(size: int, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal, by the bytes of all files; nothing where nobody looks."""
    if quiet or not size or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("scanning"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=size)
        yield lambda done: bar.update(task, completed=done)
