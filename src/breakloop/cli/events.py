"""`breakloop events`: what happened, and with `--follow` what happens (SPEC G-2, X-3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Event as Pause
from typing import Any, Final

import click

from breakloop.cli.admin_client import AdminClient, AdminError
from breakloop.cli.admin_options import EPILOG, SPAN, admin_options, project_option
from breakloop.cli.admin_text import clean, moment, show_table, words
from breakloop.cli.main import UNREACHABLE
from breakloop.cli.output import print_json
from breakloop.clock import SystemClock

_MOST: Final = 50
_BEFORE: Final = 10  # shown before what is followed
_TRIES: Final = 10  # to reach again what was lost
_PAUSE_S: Final = 1.0


@click.command(name="events", epilog=EPILOG)
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("--name", "names", metavar="EVENT", multiple=True, help="Only events of this name. Repeatable.")
@click.option("--agent", metavar="NAME", default="", help="Only those of an agent.")
@click.option("--incident", metavar="ID", default="", help="Only those of an incident.")
@click.option("--since", "since_s", type=SPAN, metavar="SPAN", help="Only those of the last 30m, 1h, 7d.")
@click.option(
    "--most", type=click.IntRange(0, 500), metavar="N", help=f"How many at most.  [{_MOST}; {_BEFORE} with -f]"
)
@project_option
@admin_options
def command(
    client: AdminClient, *, follow: bool, names: Sequence[str], since_s: float | None, most: int | None, as_json: bool,
    **query: str,
) -> None:  # fmt: skip
    """Show the newest events, oldest first."""
    asked: dict[str, Any] = {"name": list(names), **query}
    if most is None:
        most = _BEFORE if follow else _MOST
    since = {} if since_s is None else {"since": SystemClock().now() - since_s}
    found = client.get("/events", {**asked, **since, "most": most})["events"][::-1] if most else []
    if follow:
        _follow(client, asked, found, as_json=as_json)
    elif as_json:
        print_json({"ok": True, "events": found})
    elif not found:
        click.echo("no events" + (" that match" if any(asked.values()) or since else " yet"))
    else:
        show_table(("time", "event", "agent", "what"), [_row(event) for event in found])


def _follow(client: AdminClient, asked: dict[str, Any], found: list[dict[str, Any]], *, as_json: bool) -> None:
    for event in found:
        _print(event, as_json=as_json)
    last_id = str(found[-1]["id"]) if found else ""
    tries = 0
    try:
        while True:
            lost = AdminError(f"{client.url}: ended the stream", UNREACHABLE)
            try:
                for sent in client.follow("/events", {**asked, "follow": "true"}, last_id):
                    last_id, tries = sent.id, 0
                    _print(sent.data, as_json=as_json)
            except AdminError as error:
                lost = error
            tries += 1
            if lost.code != UNREACHABLE or tries > _TRIES:
                raise lost
            Pause().wait(_PAUSE_S)
    except KeyboardInterrupt:
        return


def _print(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(event, ensure_ascii=True))
    else:
        time, name, agent, what = _row(event)
        click.echo(f"{time}  {name:<18}  {agent:<20}  {what}".rstrip())


def _row(event: dict[str, Any]) -> list[str]:
    return [moment(event["at"]), clean(event["name"]), clean(event["agent"], 40), words(event["data"])]
