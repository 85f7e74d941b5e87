"""`breakloop status`: how a running instance is, on one screen (SPEC X-3)."""

from __future__ import annotations

from typing import Any

import click

from breakloop.cli.admin_client import AdminClient
from breakloop.cli.admin_options import EPILOG, admin_options
from breakloop.cli.admin_text import clean, count, dollars, moment, span
from breakloop.cli.main import PROBLEM
from breakloop.cli.output import end, print_json


@click.command(name="status", epilog=EPILOG.replace("it was refused", "it was refused, or something is wrong there"))
@admin_options
def command(client: AdminClient, *, as_json: bool) -> None:
    """Show how a running instance is: its bundle, its state, and what it stopped and saved in the last 24 hours."""
    status, bundle = client.get("/status"), client.get("/bundle")
    totals, held = client.get("/totals")["totals"], client.get("/quarantine")["holds"]
    troubles = _troubles(status, bundle)
    if as_json:
        shown = {name: value for name, value in bundle.items() if name != "text"}
        more = {"bundle": shown, "totals": totals, "held": len(held)}
        print_json({"ok": not troubles, "troubles": troubles, **status, **more})
    else:
        _show(status, bundle, totals, len(held))
        for trouble in troubles:
            click.echo(f"! {trouble}")
    if troubles:
        end(PROBLEM)


def _show(status: dict[str, Any], bundle: dict[str, Any], totals: dict[str, Any], held: int) -> None:
    click.echo(f"breakloop {clean(status.get('version', ''))} on {clean(status.get('url', ''))}")
    state = clean(status.get("state", "")) + (", degraded" if status.get("degraded") else "")
    denied = f", {totals['denied']:,} of them denied" if totals["denied"] else ""
    rows = {
        "up": span(status.get("uptime_seconds", 0.0)),
        "processes": str(status.get("workers", 1)),
        "bundle": _bundle(bundle),
        "state": state,
        "requests": f"{totals['requests']:,}{denied}",
        "agents": f"{totals['agents']:,}" + (f", {held:,} held" if held else ""),
        "loops": f"{totals['loops']:,}, {totals['incidents_open']:,} of them open",
        "spent": dollars(totals["cost_microusd"]),
        "saved": f"{dollars(totals['saved_microusd'])}, {count(totals['saved_requests'], 'request')} stopped",
    }
    for name, value in rows.items():
        click.echo(f"  {name:<10} {value}")


def _bundle(bundle: dict[str, Any]) -> str:
    version = bundle.get("version")
    if version is None:
        return "none"
    loaded = moment(bundle.get("loaded_at")) if bundle.get("loaded_at") else ""
    return f"version {version} from {clean(bundle.get('origin', ''))}" + (f", loaded {loaded}" if loaded else "")


def _troubles(status: dict[str, Any], bundle: dict[str, Any]) -> list[str]:
    found = []
    if status.get("degraded"):
        found.append("the shared store cannot be used: each instance counts for itself")
    problems = bundle.get("problems") or []
    if bundle.get("version") is None:
        found.append("no bundle is loaded: requests are answered with 503")
    elif problems:
        found.append(
            f"the bundle in its source is refused ({count(len(problems), 'problem')}); an older one is in force"
        )
    return found
