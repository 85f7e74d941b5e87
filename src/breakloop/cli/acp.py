"""`breakloop acp -- COMMAND`: run an agent that speaks the Agent Client Protocol behind loop protection."""

from __future__ import annotations

import click

from breakloop.cli.mcp import Faults, lazy_guard, options, relay, told
from breakloop.integrations.acp import AcpGuard
from breakloop.integrations.stdio import Relay


@click.command(name="acp", context_settings={"allow_interspersed_args": False})
@click.argument("agent_command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@options
def command(agent_command: tuple[str, ...], *, policy: str | None, url: str, agent: str, shadow: bool) -> None:
    """Run an agent of an editor (Agent Client Protocol) behind loop protection. Its standard error and its exit code
    are passed on."""
    guard = lazy_guard(policy, url)
    checked = AcpGuard(lambda task: guard().run(agent, task=task), told if shadow else _noticed, shadow=shadow)
    made = Relay(agent_command, checked, Faults())
    checked.send = made.send_to_server
    relay(made)


def _noticed(notice: str) -> None:
    click.echo(f"breakloop: {notice}", err=True)
