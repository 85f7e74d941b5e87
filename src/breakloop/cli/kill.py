"""`breakloop kill`: hold an agent, now and everywhere (SPEC G-1, X-3)."""

from __future__ import annotations

import click

from breakloop.cli.admin_client import AdminClient, part
from breakloop.cli.admin_options import EPILOG, SPAN, admin_options, project_option
from breakloop.cli.admin_text import clean, until
from breakloop.cli.output import print_json
from breakloop.clock import SystemClock

NOT_SHARED = "note: other instances could not be told yet; they are as soon as they can be reached"


@click.command(name="kill", epilog=EPILOG)
@click.argument("agent")
@click.option("--reason", metavar="TEXT", default="stopped from the command line", show_default=True, help="Why.")
@click.option("--for", "for_s", type=SPAN, metavar="SPAN", help="How long, like 30m or 1h; else until it is released.")
@project_option
@admin_options
def command(client: AdminClient, *, agent: str, reason: str, for_s: float | None, project: str, as_json: bool) -> None:
    """Hold an AGENT: everything it sends is denied, whoever calls, on every instance."""
    expires_at = None if for_s is None else SystemClock().now() + for_s
    body = {"reason": reason, "expires_at": expires_at}
    done = client.post(f"/agents/{part(agent)}/kill", body, {"project": project})
    if as_json:
        print_json({"ok": True, **done})
        return
    hold = done["hold"]
    click.echo(f"{clean(hold['agent'])} in project {clean(hold['project'])} is held {until(hold['until'])}")
    if not done["seen"]:
        meant = done["did_you_mean"]
        click.echo("note: no agent of this name was ever seen" + (f"; did you mean {clean(meant)}?" if meant else ""))
    if not done["shared"]:
        click.echo(NOT_SHARED)
