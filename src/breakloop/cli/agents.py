"""`breakloop agents`: who was seen, what it cost, and who is held (SPEC G-1, X-3)."""

from __future__ import annotations

from typing import Any

import click

from breakloop.cli.admin_client import AdminClient, part
from breakloop.cli.admin_options import EPILOG, admin_options, project_option
from breakloop.cli.admin_text import ago, clean, dollars, moment, show_table, until
from breakloop.cli.output import print_json
from breakloop.clock import SystemClock

_HEADS = ("agent", "last seen", "requests", "denied", "loops", "today", "in all", "saved", "held")
_NUMBERS = ("requests", "denied", "loops", "today", "in all", "saved")


@click.command(name="agents", epilog=EPILOG)
@click.argument("name", required=False, default="")
@click.option("--find", metavar="TEXT", default="", help="Only agents with this in their name.")
@click.option("--most", type=click.IntRange(1, 500), default=50, show_default=True, help="How many at most.")
@project_option
@admin_options
def command(client: AdminClient, *, name: str, find: str, most: int, project: str, as_json: bool) -> None:
    """List agents, the last seen first, or show one by its NAME."""
    if name:
        agent = client.get(f"/agents/{part(name)}", {"project": project})
        if as_json:
            print_json({"ok": True, **agent})
        else:
            _show(agent)
        return
    found = client.get("/agents", {"project": project, "find": find, "most": most})["agents"]
    if as_json:
        print_json({"ok": True, "agents": found})
    elif not found:
        click.echo("no agents were seen" + (" that have this in their name" if find else " yet"))
    else:
        now = SystemClock().now()
        show_table(_HEADS, [_row(agent, now) for agent in found], _NUMBERS)


def _row(agent: dict[str, Any], now: float) -> list[str]:
    return [
        clean(agent["agent"], 40),
        ago(agent["last_at"], now),
        f"{agent['requests']:,}",
        f"{agent['denied']:,}",
        f"{agent['loops']:,}",
        dollars(agent["today_microusd"]),
        dollars(agent["cost_microusd"]),
        dollars(agent["saved_microusd"]),
        "held" if agent["holds"] else "kill switch" if agent["stopped_by"] else "",
    ]


def _show(agent: dict[str, Any]) -> None:
    click.echo(f"{clean(agent['agent'])} in project {clean(agent['project'])}")
    rows = {
        "first seen": moment(agent["first_at"]) or "never",
        "last seen": moment(agent["last_at"]) or "never",
        "model": clean(agent["model"]),
        "callers": f"{agent['callers']:,}",
        "requests": f"{agent['requests']:,}, {agent['denied']:,} of them denied",
        "loops": f"{agent['loops']:,}",
        "tokens": f"{agent['input_tokens']:,} in, {agent['output_tokens']:,} out",
        "spent": f"{dollars(agent['cost_microusd'])}, {dollars(agent['today_microusd'])} of it today",
        "saved": dollars(agent["saved_microusd"]),
    }
    for name, value in rows.items():
        click.echo(f"  {name:<10} {value}")
    for name, value in sorted(agent["settings"].items()):
        click.echo(f"  set        {clean(name)}: {clean(value)}")
    if agent["stopped_by"]:
        click.echo(f"  stopped    by {clean(agent['stopped_by'])}: all its requests are denied")
    for hold in agent["holds"]:
        by = f" by {clean(hold['by'])}" if hold["by"] else ""
        click.echo(f"  held       {until(hold['until'])}{by}: {clean(hold['reason'], 200)}")
