"""`breakloop replay`: run recorded traffic through a bundle and print what it would have denied."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from breakloop.app.build import price_list
from breakloop.cli.main import PROBLEM
from breakloop.cli.output import (
    STDIN,
    STDIN_NAME,
    Command,
    config_option,
    end,
    fail,
    json_option,
    print_table,
    settings_of,
)
from breakloop.cli.test import OfflineService, load_policy
from breakloop.clock import FakeClock, SystemClock
from breakloop.config.settings import Settings
from breakloop.formatting import plural
from breakloop.policy.load import LoadedBundle
from breakloop.replay import report
from breakloop.replay.across import Across, AcrossFinding, across_json
from breakloop.replay.formats.recording import Recording, RecordingError
from breakloop.replay.report import Heading, page
from breakloop.replay.run import ReplaySetup, SessionOutcome, replay
from breakloop.replay.sessions import ByModel, ModelPricing, Pricing, Spent
from breakloop.replay.timeline import TimelineRecorder, shown

BUILTIN = "the built-in protection"
_LISTED = 20  # sessions in a table
_ID_SHOWN = 60
_DIFFERENCES = {
    "blocked_only": "blocked by --policy only",
    "not_blocked": "blocked by --against only",
    "earlier": "blocked earlier by --policy",
    "later": "blocked later by --policy",
}


def tell(outcomes: Sequence[SessionOutcome], policy: str) -> None:
    flagged = [one for one in outcomes if one.first_end is not None or one.first_notice is not None]
    flagged.sort(key=lambda one: (one.first_end is None, -one.saved_tokens))
    landed = [one for one in outcomes if one.first_land is not None]
    paused = [one for one in outcomes if one.first_pause is not None and one.first_land is None]
    if flagged:
        columns = {"notice": True, "land": bool(landed), "pause": bool(paused), "block": True}
        names = [name for name, used in columns.items() if used]
        table = Table("session", "turns", *names, "kind", "evidence", box=None, padding=(0, 2, 0, 0))
        for one in flagged[:_LISTED]:
            at = [_turn(getattr(one, f"first_{name}")) for name in names]
            table.add_row(_id(one), str(one.turns), *at, one.kind, one.evidence)
        print_table(table)
        if len(flagged) > _LISTED:
            click.echo(f"and {len(flagged) - _LISTED} more (--json lists them)")
        click.echo()
    ended = [one for one in outcomes if one.first_end is not None]
    turns = sum(one.turns for one in outcomes)
    said = f"{plural(len(outcomes), 'session')}, {plural(turns, 'turn')}, evaluated with {policy}:"
    first = "".join(f"{len(found)} {done}, " for done, found in (("landed", landed), ("paused", paused)) if found)
    blocked = len(ended) - len(landed) - len(paused)
    click.echo(f"{said} {first}{blocked} blocked, {len(flagged) - len(ended)} noticed only")
    kinds = report.grouped(ended, lambda one: one.kind or "")
    if kinds:
        click.echo("kinds: " + ", ".join(f"{kind} {len(found)}" for kind, found in kinds.items()))
    saved = sum(one.saved_tokens for one in outcomes)
    if saved:
        usd = report.saved_usd(outcomes)
        cost = Spent(saved, estimated=any(one.saved_estimated for one in outcomes))
        how = "; where no tokens were recorded, four bytes count as one token" if cost.estimated else ""
        worth = f" ({report.money(usd)})" if usd is not None else ""
        click.echo(f"saved: {report.tokens(cost)} tokens{worth}{how}")
    denied = sum((Counter(one.denied) for one in outcomes), Counter[str]())
    for reason, count in sorted(denied.items()):
        click.echo(f"denied for {reason}: {plural(count, 'turn')}")
    shadowed = sum(one.shadowed for one in outcomes)
    if shadowed:
        click.echo(f"policies in shadow mode would have acted in {plural(shadowed, 'turn')}")
    _tell_score(outcomes)


def tell_across(found: Sequence[AcrossFinding]) -> None:
    """Print what several sessions show together."""
    if not found:
        return
    click.echo("\nacross sessions:")
    for one in found[:_LISTED]:
        click.echo(f"  {one.kind}: {one.evidence}")
        if one.first_block:
            saved = one.saved
            worth = f" ({report.money(saved.money)})" if saved.money is not None else ""
            stopped = f"{plural(len(one.denied), 'session')} would not have been started"
            where = f"from {shown(one.first_block, _ID_SHOWN)} on"
            click.echo(f"    {stopped}, {where}: {report.tokens(saved)} tokens{worth}")
        else:
            click.echo(f"    reported at {shown(one.first_notice, _ID_SHOWN)}")
    if len(found) > _LISTED:
        click.echo(f"  and {len(found) - _LISTED} more (--json and --html list them)")


def _tell_score(outcomes: Sequence[SessionOutcome]) -> None:
    labelled = [one for one in outcomes if one.session.label.loop is not None]
    if not labelled:
        return
    click.echo()
    table = Table("labelled", "loops", "found", "healthy", "wrongly", "precision", "recall", "false positives")
    table.box, table.padding = None, (0, 2, 0, 0)
    sources = report.grouped(labelled, lambda one: one.session.source or "(no source)")
    rows = {"all": labelled, **sources} if len(sources) > 1 else {"all": labelled}
    for name, found in rows.items():
        table.add_row(name, *_cells(report.score(found)))
    print_table(table)
    share = report.spent(labelled)
    if share is not None:
        click.echo(f"half of the loops found were blocked before {share:.0%} of their turns were spent")


def _cells(found: report.DetectionScore) -> Iterator[str]:
    yield from (str(found.loops), str(found.found), str(found.healthy), str(found.wrong))
    for rate in (found.precision, found.recall, found.false_positive_rate):
        yield "-" if rate is None else f"{rate:.3f}"


def tell_differences(here: Sequence[SessionOutcome], there: Sequence[SessionOutcome], against: str) -> None:
    found = report.differences(zip(here, there, strict=True))
    if not any(found.values()):
        click.echo(f"\nno session has a different result with {against}")
        return
    click.echo(f"\ncompared with {against}:")
    table = Table("", "session", "block (--policy)", "block (--against)", "kind", box=None, padding=(0, 2, 0, 0))
    for name, pairs in found.items():
        for one, other in pairs[:_LISTED]:
            row = (_id(one), _turn(one.first_end), _turn(other.first_end), one.kind or other.kind)
            table.add_row(_DIFFERENCES[name], *row)
        if len(pairs) > _LISTED:
            table.add_row(_DIFFERENCES[name], f"and {len(pairs) - _LISTED} more")
    print_table(table)


def _id(outcome: SessionOutcome) -> str:
    name = outcome.session.id
    return name if len(name) <= _ID_SHOWN else f"{name[: _ID_SHOWN - 3]}..."


def _turn(number: int | None) -> str:
    return "-" if number is None else str(number)


def write_html(
    name: str, heading: Heading, outcomes: Iterable[SessionOutcome], across: Sequence[AcrossFinding] = ()
) -> None:
    """Write the report; exit with 1 if the file cannot be written."""
    timelines = [one.timeline for one in outcomes if one.timeline is not None]
    try:
        Path(name).write_text(page(heading, timelines, across), encoding="utf-8", errors="replace")
    except OSError as error:
        fail(f"{name}: cannot be written: {error.strerror or error}", as_json=False)
    click.echo(f"report: {name}", err=True)


_DOLLARS: Final = click.FloatRange(min=0)
_UNPRICED_SHOWN: Final = 5
_NAME_MAX: Final = 60


def price_options(command: Command) -> Command:
    cached = "US dollars for a million cached input tokens.  [a tenth of --price-in]"
    command = click.option("--price-cached", type=_DOLLARS, metavar="USD", help=cached)(command)
    answered = "US dollars for a million output tokens."
    command = click.option("--price-out", type=_DOLLARS, metavar="USD", help=answered)(command)
    asked = "US dollars for a million input tokens of every model; by default the list that `prices` shows."
    return click.option("--price-in", type=_DOLLARS, metavar="USD", help=asked)(command)


def pricing_of(options: Mapping[str, Any], settings: Settings) -> Pricing:
    asked, answered, cached = options["price_in"], options["price_out"], options["price_cached"]
    if asked is not None or answered is not None:
        return ModelPricing(asked or 0.0, answered or 0.0, cached)
    if cached is not None:
        raise click.UsageError("--price-cached needs --price-in")
    return ByModel(price_list(settings, SystemClock()).prices)


def unpriced_json(pricing: Pricing) -> dict[str, list[str]]:
    """Return the models without a price, so that a total is not mistaken for complete."""
    names = sorted(pricing.unpriced) if isinstance(pricing, ByModel) else []
    return {"unpriced_models": names} if names else {}


def tell_unpriced(pricing: Pricing) -> None:
    names = unpriced_json(pricing).get("unpriced_models", [])
    if not names:
        return
    more = f" and {len(names) - _UNPRICED_SHOWN} more" if len(names) > _UNPRICED_SHOWN else ""
    said = ", ".join(shown(name, _NAME_MAX) for name in names[:_UNPRICED_SHOWN]) + more
    click.echo(f"no price is known for {said}: it is not included (set prices.models, or --price-in)", err=True)


@click.command(
    name="replay",
    epilog="Exit code 0: replayed, whether or not loops were found; 1: a file or bundle has problems, or --fail-on.",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--policy", metavar="PATH", default="", help="Bundle (file or directory).  [the built-in protection]")
@click.option("--against", metavar="PATH", default="", help="Another bundle: show where the two differ.")
@click.option("--fail-on", type=click.Choice(["notice", "block"]), help="Exit with 1 if a session gets one.")
@click.option("--html", metavar="FILE", default="", help="Also write a report with a picture of each loop.")
@price_options
@config_option
@json_option
def command(files: tuple[str, ...], *, policy: str, against: str, html: str, as_json: bool, **options: Any) -> None:
    """Run recorded traffic through a bundle and report what it would have denied or landed.

    FILEs contain JSON Lines, gzipped or not (- is standard input): sessions in breakloop's own format, OpenAI or
    Anthropic request logs, LiteLLM logs, or OpenTelemetry GenAI spans. The clock is simulated and follows the
    recorded times. No network is used. If sessions are labelled, precision and recall are reported. Savings are the
    recorded tokens of the denied requests and their responses; where no tokens were recorded, four bytes count as
    one token and the figure says "about". Prices are those that `breakloop prices` shows.

    With --json, one line per session (id, loop, turns, first_notice, first_block, kind), then one line of totals.
    """
    settings = settings_of(options["config"]).settings
    pricing = pricing_of(options, settings)
    start = float(int(SystemClock().now()))
    paths = [policy, against] if against else [policy]
    rigs = [replace(setup(load_policy(path, start), settings, start), pricing=pricing) for path in paths]
    sessions = Across(rigs[0].bundle, rigs[0].descriptors, pricing)
    rigs[0] = replace(rigs[0], across=sessions)
    if html:
        rigs[0] = replace(rigs[0], recorder=partial(TimelineRecorder, pricing))
    outcomes: list[tuple[SessionOutcome, ...]] = []
    try:
        for found in _outcomes(files, rigs, quiet=as_json and sys.stdout.isatty()):
            outcomes.append(found)
            if as_json:
                click.echo(json.dumps(report.session_json(*found), ensure_ascii=False))
    except RecordingError as error:
        if not as_json:
            fail(str(error))
        click.echo(json.dumps({"ok": False, "error": str(error)}, ensure_ascii=False))  # on one line, like the others
        end(PROBLEM)
    here = [found[0] for found in outcomes]
    there = [found[1] for found in outcomes] if against else []
    across = sessions.findings()
    if as_json:
        totals = report.totals_json(here, there)
        totals["totals"] |= {"across_sessions": across_json(across)} if across else {}
        totals["totals"] |= unpriced_json(pricing)
        click.echo(json.dumps(totals, ensure_ascii=False))
    else:
        tell(here, policy or BUILTIN)
        tell_across(across)
        if against:
            tell_differences(here, there, against)
        tell_unpriced(pricing)
    if html:
        heading = Heading("Loops in recordings", len(here), sum(one.turns for one in here), policy or BUILTIN)
        write_html(html, heading, here, across)
    if failed(here, options["fail_on"], across):
        end(PROBLEM)


def setup(loaded: LoadedBundle | None, settings: Settings, start: float) -> ReplaySetup:
    """Return a bundle ready to judge recordings, with the prices in the settings."""
    offline = OfflineService(loaded, settings, FakeClock(start))
    return ReplaySetup(offline.descriptors, offline.bundle, start, prices=offline.prices)


def failed(outcomes: Iterable[SessionOutcome], fail_on: str | None, across: Sequence[AcrossFinding] = ()) -> bool:
    blocked = any(one.first_end is not None for one in outcomes) or any(one.first_block for one in across)
    if fail_on == "notice":
        return blocked or bool(across) or any(one.first_notice is not None for one in outcomes)
    return fail_on == "block" and blocked


def _outcomes(
    files: Sequence[str], rigs: Sequence[ReplaySetup], *, quiet: bool
) -> Iterator[tuple[SessionOutcome, ...]]:
    sizes = [Path(name).stat().st_size if Path(name).is_file() else 0 for name in files]
    with progress("replaying", 0 if STDIN in files else sum(sizes), quiet=quiet) as show:
        for name, before in zip(files, accumulate(sizes, initial=0), strict=False):

            def advance(position: int, before: int = before) -> None:
                show(before + position)

            with _opened(name) as file:
                recording = Recording(file, STDIN_NAME if name == STDIN else name, advance)
                yield from replay(recording.pieces(), *rigs, file=name)
            if recording.skipped:
                problems = "; ".join(recording.problems)
                click.echo(f"{name}: {plural(recording.skipped, 'record')} skipped: {problems}", err=True)


def _opened(name: str) -> AbstractContextManager[IO[bytes]]:
    if name == STDIN:
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise RecordingError(f"{name}: cannot be read: {error.strerror}") from None


@contextmanager
def progress(doing: str, size: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, by bytes over all files."""
    if quiet or not size or not sys.stderr.isatty():
        yield lambda _done: None
        return
    columns = (TextColumn(doing), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=size)
        yield lambda done: bar.update(task, completed=done)
