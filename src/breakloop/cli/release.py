"""`breakloop release`: end the holds on an agent (SPEC G-1, X-3)."""

from __future__ import annotations

import click

from breakloop.cli.admin_client import AdminClient, part
from breakloop.cli.admin_options import EPILOG, admin_options, project_option
from breakloop.cli.admin_text import clean, count
from breakloop.cli.kill import NOT_SHARED
from breakloop.cli.output import print_json

_NOTHING = "was neither held nor known to be blocked; what its loops had counted is forgotten"


@click.command(name="release", epilog=EPILOG)
@click.argument("agent", required=False, default="")
@click.option(
    "--caller", metavar="ID", default="", help="Release everything of a caller, as `agents` and events name it."
)
@click.option("--run", metavar="ID", default="", help="Release a run that reached its ceiling.")
@project_option
@admin_options
def command(client: AdminClient, *, agent: str, caller: str, run: str, project: str, as_json: bool) -> None:
    """Release an AGENT: what holds it ends, its loops are blocked no longer, and what was remembered against it is
    cleared."""
    if not (agent or caller or run):
        raise click.UsageError("release whom? name an AGENT, --caller or --run")
    query = {"project": project}
    if caller or run:
        done = client.post("/quarantine/release", {"agent": agent, "caller": caller, "run": run}, query)
    else:
        done = client.post(f"/agents/{part(agent)}/release", {}, query)
    if as_json:
        print_json({"ok": True, **done})
        return
    ended, loops = len(done["released"]), done["loops"]
    nothing = "was not held" if run else _NOTHING
    click.echo(f"{clean(agent or caller or run)} " + (_said(ended, loops) if ended or loops else nothing))
    if not done["shared"]:
        click.echo(NOT_SHARED)


def _said(ended: int, loops: int) -> str:
    done = [f"{count(ended, 'hold')} ended"] if ended else []
    done += [f"{count(loops, 'blocked loop')} forgotten"] if loops else []
    return f"is released: {', '.join(done)}"
