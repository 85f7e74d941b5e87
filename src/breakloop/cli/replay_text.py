"""What `breakloop replay` tells people: sessions that were flagged, totals, rates by source, differences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import click
from rich.table import Table

from breakloop.cli.output import print_table
from breakloop.cli.validate import counted
from breakloop.replay.cost import Spent
from breakloop.replay.report import Score, differences, grouped, saved_usd, score, spent
from breakloop.replay.run import Outcome
from breakloop.replay.words import money, tokens

BUILTIN = "the built-in protection"
_LISTED = 20  # sessions in a table
_ID_SHOWN = 60
_DIFFERENCES = {
    "blocked_only": "blocked here, not there",
    "not_blocked": "blocked there, not here",
    "earlier": "blocked earlier here",
    "later": "blocked later here",
}


def tell(outcomes: Sequence[Outcome], policy: str) -> None:
    """Print what a bundle said."""
    flagged = [one for one in outcomes if one.first_block is not None or one.first_notice is not None]
    flagged.sort(key=lambda one: (one.first_block is None, -one.saved_tokens))
    if flagged:
        table = Table("session", "turns", "notice", "block", "kind", "evidence", box=None, padding=(0, 2, 0, 0))
        for one in flagged[:_LISTED]:
            table.add_row(
                _id(one), str(one.turns), _turn(one.first_notice), _turn(one.first_block), one.kind, one.evidence
            )
        print_table(table)
        if len(flagged) > _LISTED:
            click.echo(f"and {len(flagged) - _LISTED} more (--json lists them)")
        click.echo()
    blocked = [one for one in outcomes if one.first_block is not None]
    turns = sum(one.turns for one in outcomes)
    said = f"{counted(len(outcomes), 'session')}, {counted(turns, 'turn')}, judged by {policy}:"
    click.echo(f"{said} {len(blocked)} blocked, {len(flagged) - len(blocked)} noticed only")
    kinds = grouped(blocked, lambda one: one.kind or "")
    if kinds:
        click.echo("kinds: " + ", ".join(f"{kind} {len(found)}" for kind, found in kinds.items()))
    saved = sum(one.saved_tokens for one in outcomes)
    if saved:
        usd = saved_usd(outcomes)
        cost = Spent(saved, estimated=any(one.saved_estimated for one in outcomes))
        how = "; where none were recorded, four bytes count as one" if cost.estimated else ""
        worth = f" ({money(usd)})" if usd is not None else ""
        click.echo(f"saved: {tokens(cost)} tokens{worth}{how}")
    for reason, count in sorted(_denied(outcomes).items()):
        click.echo(f"denied for {reason}: {counted(count, 'turn')}")
    shadowed = sum(one.shadowed for one in outcomes)
    if shadowed:
        click.echo(f"policies in shadow mode would have spoken up in {counted(shadowed, 'turn')}")
    _tell_score(outcomes)


def _denied(outcomes: Iterable[Outcome]) -> dict[str, int]:
    denied: dict[str, int] = {}
    for one in outcomes:
        for reason, count in one.denied.items():
            denied[reason] = denied.get(reason, 0) + count
    return denied


def _tell_score(outcomes: Sequence[Outcome]) -> None:
    labelled = [one for one in outcomes if one.session.label.loop is not None]
    if not labelled:
        return
    click.echo()
    table = Table("labelled", "loops", "found", "healthy", "wrongly", "precision", "recall", "false positives")
    table.box, table.padding = None, (0, 2, 0, 0)
    sources = grouped(labelled, lambda one: one.session.source or "(no source)")
    rows = {"all": labelled, **sources} if len(sources) > 1 else {"all": labelled}
    for name, found in rows.items():
        table.add_row(name, *_cells(score(found)))
    print_table(table)
    share = spent(labelled)
    if share is not None:
        click.echo(f"half of the loops found were blocked before {share:.0%} of their turns were spent")


def _cells(found: Score) -> Iterator[str]:
    yield from (str(found.loops), str(found.found), str(found.healthy), str(found.wrong))
    for rate in (found.precision, found.recall, found.false_positive_rate):
        yield "-" if rate is None else f"{rate:.3f}"


def tell_differences(here: Sequence[Outcome], there: Sequence[Outcome], against: str) -> None:
    """Print where another bundle said something else."""
    found = differences(zip(here, there, strict=True))
    if not any(found.values()):
        click.echo(f"\nno session is judged differently by {against}")
        return
    click.echo(f"\ncompared with {against}:")
    table = Table("", "session", "block here", "block there", "kind", box=None, padding=(0, 2, 0, 0))
    for name, pairs in found.items():
        for one, other in pairs[:_LISTED]:
            row = (_id(one), _turn(one.first_block), _turn(other.first_block), one.kind or other.kind)
            table.add_row(_DIFFERENCES[name], *row)
        if len(pairs) > _LISTED:
            table.add_row(_DIFFERENCES[name], f"and {len(pairs) - _LISTED} more")
    print_table(table)


def _id(outcome: Outcome) -> str:
    name = outcome.session.id
    return name if len(name) <= _ID_SHOWN else f"{name[: _ID_SHOWN - 3]}..."


def _turn(number: int | None) -> str:
    return "-" if number is None else str(number)
