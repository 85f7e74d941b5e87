"""`breakloop switch`: kill switches at run time (SPEC K-3, X-3). Those of the bundle are the bundle's."""

from __future__ import annotations

import click

from breakloop.cli.admin_client import AdminClient, part
from breakloop.cli.admin_options import EPILOG, SPAN, admin_options
from breakloop.cli.admin_text import clean, moment, show_table
from breakloop.cli.kill import NOT_SHARED
from breakloop.cli.output import print_json
from breakloop.clock import SystemClock


@click.command(name="set", short_help="Stop whoever has a value in a descriptor.", epilog=EPILOG)
@click.argument("descriptor")
@click.argument("value")
@click.option("--route", metavar="PATH", default="", help="Only this path, or all that begin so: /v1/*")
@click.option("--reason", metavar="TEXT", default="", help="Why.")
@click.option("--for", "for_s", type=SPAN, metavar="SPAN", help="How long, like 30m or 1h; else until it is lifted.")
@admin_options
def set_switch(
    client: AdminClient, *, descriptor: str, value: str, for_s: float | None, as_json: bool, **more: str
) -> None:
    """Deny everything that has this VALUE in this DESCRIPTOR, on every instance: `switch set agent:id scraper`."""
    expires_at = None if for_s is None else SystemClock().now() + for_s
    body = {"scope_key": descriptor, "scope_value": value, "expires_at": expires_at, **more}
    done = client.post("/kill-switches", body)
    if as_json:
        print_json({"ok": True, **done})
        return
    ends = f"until {moment(expires_at)}" if expires_at else "until it is lifted"
    click.echo(f"{clean(done['id'])} is set, {ends}: breakloop switch lift {clean(done['id'])}")
    if not done["shared"]:
        click.echo(NOT_SHARED)


@click.command(name="list", epilog=EPILOG)
@admin_options
def list_switches(client: AdminClient, *, as_json: bool) -> None:
    """List the kill switches that were set at run time."""
    found = client.get("/kill-switches")["kill_switches"]
    if as_json:
        print_json({"ok": True, "kill_switches": found})
    elif not found:
        click.echo("no kill switches are set at run time (the bundle may have its own)")
    else:
        rows = [
            [
                clean(one["id"]),
                f"{clean(one['scope_key'])}={clean(one['scope_value'])}",
                clean(one["route"]) or "all",
                moment(one["since"]),
                moment(one["expires_at"]) or "lifted",
                clean(one["by"]),
                clean(one["reason"], 200),
            ]
            for one in found
        ]
        show_table(("id", "stops", "paths", "since", "until", "by", "reason"), rows)


@click.command(name="lift", epilog=EPILOG)
@click.argument("switch")
@admin_options
def lift(client: AdminClient, *, switch: str, as_json: bool) -> None:
    """Lift a SWITCH by its id."""
    done = client.delete(f"/kill-switches/{part(switch)}")
    if as_json:
        print_json({"ok": True, **done})
        return
    click.echo(f"{clean(switch)} is lifted")
    if not done["shared"]:
        click.echo(NOT_SHARED)


@click.group(name="switch", commands=[set_switch, list_switches, lift])
def command() -> None:
    """Set, list and lift kill switches at run time."""
