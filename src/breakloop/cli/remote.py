"""Commands that call the admin API of a running instance: `status`, `events`, `agents`, `kill`, `release`, `switch`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Event as Pause
from typing import Any, Final

import click

from breakloop.cli.admin_client import (
    EPILOG,
    SPAN,
    AdminClient,
    AdminError,
    admin_options,
    ago,
    clean,
    dollars,
    moment,
    part,
    project_option,
    show_table,
    until,
    words,
)
from breakloop.cli.main import PROBLEM, UNREACHABLE
from breakloop.cli.output import end, print_json
from breakloop.clock import SystemClock
from breakloop.formatting import duration, plural


@click.command(name="status", epilog=EPILOG.replace("rejected", "rejected, or the instance has a problem"))
@admin_options
def status_command(client: AdminClient, *, as_json: bool) -> None:
    """Show the status of a running instance: its bundle, its state, what it denied and saved in 24 hours."""
    status, bundle = client.get("/status"), client.get("/bundle")
    totals, held = client.get("/totals")["totals"], client.get("/quarantine")["holds"]
    troubles = _troubles(status, bundle)
    if as_json:
        shown = {name: value for name, value in bundle.items() if name != "text"}
        more = {"bundle": shown, "totals": totals, "held": len(held)}
        print_json({"ok": not troubles, "troubles": troubles, **status, **more})
    else:
        _show_status(status, bundle, totals, len(held))
        for trouble in troubles:
            click.echo(f"! {trouble}")
    if troubles:
        end(PROBLEM)


def _show_status(status: dict[str, Any], bundle: dict[str, Any], totals: dict[str, Any], held: int) -> None:
    click.echo(f"breakloop {clean(status.get('version', ''))} on {clean(status.get('url', ''))}")
    state = clean(status.get("state", "")) + (", degraded" if status.get("degraded") else "")
    denied = f", {totals['denied']:,} of them denied" if totals["denied"] else ""
    rows = {
        "up": duration(status.get("uptime_seconds", 0.0)),
        "processes": str(status.get("workers", 1)),
        "bundle": _bundle(bundle),
        "state": state,
        "requests": f"{totals['requests']:,}{denied}",
        "agents": f"{totals['agents']:,}" + (f", {held:,} held" if held else ""),
        "loops": f"{totals['loops']:,}, {totals['incidents_open']:,} of them open",
        "spent": dollars(totals["cost_microusd"]),
        "saved": f"{dollars(totals['saved_microusd'])}, {plural(totals['saved_requests'], 'request')} stopped",
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
        found.append("the shared store is unavailable: each instance counts on its own")
    problems = bundle.get("problems") or []
    if bundle.get("version") is None:
        found.append("no bundle is loaded: requests get 503")
    elif problems:
        found.append(f"the new bundle is rejected ({plural(len(problems), 'problem')}); an older one is in force")
    return found


_MOST: Final = 50
_BEFORE: Final = 10  # shown before --follow starts
_TRIES: Final = 10  # attempts to reconnect
_PAUSE_S: Final = 1.0


@click.command(name="events", epilog=EPILOG)
@click.option("--follow", "-f", is_flag=True, help="Stream new events until Ctrl-C.")
@click.option("--name", "names", metavar="EVENT", multiple=True, help="Only events of this name. Repeatable.")
@click.option("--agent", metavar="NAME", default="", help="Only events of this agent.")
@click.option("--incident", metavar="ID", default="", help="Only events of this incident.")
@click.option("--since", "since_s", type=SPAN, metavar="SPAN", help="Only events of the last 30m, 1h, 7d.")
@click.option("--most", type=click.IntRange(0, 500), metavar="N", help=f"Maximum number.  [{_MOST}; {_BEFORE} with -f]")
@project_option
@admin_options
def events_command(
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
    elif as_json or not found:
        nothing = "no events" + (" that match" if any(asked.values()) or since else " yet")
        _tell({"events": found}, nothing, as_json=as_json)
    else:
        show_table(("time", "event", "agent", "what"), [_event_row(event) for event in found])


def _follow(client: AdminClient, asked: dict[str, Any], found: list[dict[str, Any]], *, as_json: bool) -> None:
    for event in found:
        _print(event, as_json=as_json)
    last_id = str(found[-1]["id"]) if found else ""
    tries = 0
    try:
        while True:
            lost = AdminError(f"{client.url}: ended the stream", UNREACHABLE)
            try:
                for event_id, event in client.follow("/events", {**asked, "follow": "true"}, last_id):
                    last_id, tries = event_id, 0
                    _print(event, as_json=as_json)
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
        time, name, agent, what = _event_row(event)
        click.echo(f"{time}  {name:<18}  {agent:<20}  {what}".rstrip())


def _event_row(event: dict[str, Any]) -> list[str]:
    return [moment(event["at"]), clean(event["name"]), clean(event["agent"], 40), words(event["data"])]


_HEADS = ("agent", "last seen", "requests", "denied", "loops", "today", "in all", "saved", "held")
_NUMBERS = ("requests", "denied", "loops", "today", "in all", "saved")


@click.command(name="agents", epilog=EPILOG)
@click.argument("name", required=False, default="")
@click.option("--find", metavar="TEXT", default="", help="Only agents with this in their name.")
@click.option("--most", type=click.IntRange(1, 500), default=50, show_default=True, help="Maximum number.")
@project_option
@admin_options
def agents_command(client: AdminClient, *, name: str, find: str, most: int, project: str, as_json: bool) -> None:
    """List agents, the last seen first, or show one by its NAME."""
    if name:
        agent = client.get(f"/agents/{part(name)}", {"project": project})
        if as_json:
            print_json({"ok": True, **agent})
        else:
            _show_agent(agent)
        return
    found = client.get("/agents", {"project": project, "find": find, "most": most})["agents"]
    if as_json or not found:
        _tell({"agents": found}, "no agents" + (" match" if find else " yet"), as_json=as_json)
    else:
        now = SystemClock().now()
        show_table(_HEADS, [_agent_row(agent, now) for agent in found], _NUMBERS)


def _agent_row(agent: dict[str, Any], now: float) -> list[str]:
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


def _show_agent(agent: dict[str, Any]) -> None:
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


def _tell(answer: dict[str, Any], *lines: str, as_json: bool) -> None:
    """Print the answer as JSON, or these lines about it."""
    if as_json:
        print_json({"ok": True, **answer})
        return
    for line in lines:
        click.echo(line)
    if not answer.get("shared", True):
        click.echo("note: other instances are unreachable; they apply the change when they are back")


@click.command(name="kill", epilog=EPILOG)
@click.argument("agent")
@click.option("--reason", metavar="TEXT", default="stopped from the command line", show_default=True, help="Why.")
@click.option(
    "--for", "for_s", type=SPAN, metavar="SPAN", help="Duration, such as 30m or 1h; by default until it is released."
)
@project_option
@admin_options
def kill_command(
    client: AdminClient, *, agent: str, reason: str, for_s: float | None, project: str, as_json: bool
) -> None:
    """Quarantine an AGENT: all its requests are denied on every instance, for every caller."""
    expires_at = None if for_s is None else SystemClock().now() + for_s
    body = {"reason": reason, "expires_at": expires_at}
    done = client.post(f"/agents/{part(agent)}/kill", body, {"project": project})
    hold, meant = done["hold"], done["did_you_mean"]
    lines = [f"{clean(hold['agent'])} in project {clean(hold['project'])} is held {until(hold['until'])}"]
    if not done["seen"]:
        lines.append("note: no agent with this name is known" + (f"; did you mean {clean(meant)}?" if meant else ""))
    _tell(done, *lines, as_json=as_json)


@click.command(name="release", epilog=EPILOG)
@click.argument("agent", required=False, default="")
@click.option(
    "--caller", metavar="ID", default="", help="Release everything of a caller, by the id in `agents` and events."
)
@click.option("--run", metavar="ID", default="", help="Release a run that reached its limit.")
@project_option
@admin_options
def release_command(client: AdminClient, *, agent: str, caller: str, run: str, project: str, as_json: bool) -> None:
    """Release an AGENT: what holds it ends, its loops are blocked no longer, and what was remembered against it is
    cleared."""
    if not (agent or caller or run):
        raise click.UsageError("give an AGENT, --caller or --run")
    query = {"project": project}
    if caller or run:
        done = client.post("/quarantine/release", {"agent": agent, "caller": caller, "run": run}, query)
    else:
        done = client.post(f"/agents/{part(agent)}/release", {}, query)
    ended, loops = len(done["released"]), done["loops"]
    what = [f"{plural(ended, 'hold')} ended"] if ended else []
    what += [f"{plural(loops, 'blocked loop')} forgotten"] if loops else []
    nothing = "was not held" if run else "was neither quarantined nor blocked; its loop counters are cleared"
    said = f"is released: {', '.join(what)}" if what else nothing
    _tell(done, f"{clean(agent or caller or run)} {said}", as_json=as_json)


@click.command(name="set", short_help="Deny requests by the value of a descriptor.", epilog=EPILOG)
@click.argument("descriptor")
@click.argument("value")
@click.option("--route", metavar="PATH", default="", help="Only this path, or a prefix: /v1/*")
@click.option("--reason", metavar="TEXT", default="", help="Why.")
@click.option(
    "--for", "for_s", type=SPAN, metavar="SPAN", help="Duration, such as 30m or 1h; by default until it is lifted."
)
@admin_options
def set_switch(
    client: AdminClient, *, descriptor: str, value: str, for_s: float | None, as_json: bool, **more: str
) -> None:
    """Deny all requests with this VALUE of a DESCRIPTOR, on every instance: `switch set agent:id scraper`."""
    expires_at = None if for_s is None else SystemClock().now() + for_s
    body = {"scope_key": descriptor, "scope_value": value, "expires_at": expires_at, **more}
    done = client.post("/kill-switches", body)
    ends, name = f"until {moment(expires_at)}" if expires_at else "until it is lifted", clean(done["id"])
    _tell(done, f"{name} is set, {ends}: breakloop switch lift {name}", as_json=as_json)


@click.command(name="list", epilog=EPILOG)
@admin_options
def list_switches(client: AdminClient, *, as_json: bool) -> None:
    """List the kill switches that were set at run time."""
    found = client.get("/kill-switches")["kill_switches"]
    if as_json or not found:
        nothing = "no kill switches are set at run time (the bundle may have its own)"
        _tell({"kill_switches": found}, nothing, as_json=as_json)
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
    _tell(done, f"{clean(switch)} is lifted", as_json=as_json)


@click.group(name="switch", commands=[set_switch, list_switches, lift])
def switch_command() -> None:
    """Set, list and lift kill switches at run time."""
