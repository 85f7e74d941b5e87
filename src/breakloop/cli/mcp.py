"""`breakloop mcp -- COMMAND`: starts an MCP server that speaks over stdin and stdout, and stands between it and its
client. Put it in front of the command in the client's settings."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module

import click

from breakloop.cli.main import USAGE
from breakloop.errors import BreakloopError
from breakloop.integrations.mcp_stdio import NotStartedError, Relay, StdioConversation
from breakloop.sdk.backend import STEPS_ONLY
from breakloop.sdk.environment import gateway_token, named_url
from breakloop.sdk.run import Run


@click.command(name="mcp", context_settings={"allow_interspersed_args": False})
@click.argument("server", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--policy", type=click.Path(), default=None, help="The bundle.  [the built-in protection]")
@click.option("--url", default="", help="A gateway that decides.  [BREAKLOOP_URL; without it, decided here]")
@click.option("--agent", default="", help="The agent's name, for policies and events.")
@click.option("--shadow", is_flag=True, help="Change nothing; tell on standard error what would have been said.")
def command(server: tuple[str, ...], *, policy: str | None, url: str, agent: str, shadow: bool) -> None:
    """Run an MCP server (stdio) with loop protection in front of it. What it writes to standard error passes; its exit
    code is ours."""
    asked = "" if policy else url or named_url()

    @cache
    def run() -> Run:
        """Made when the first tool is called: a client that starts ten servers need not wait for ten engines."""
        guard = import_module("breakloop.sdk.guard").Guard(
            policy or (None if asked else STEPS_ONLY), url=asked, token=gateway_token()
        )
        made = guard.run(agent)
        assert isinstance(made, Run)  # noqa: S101 - so that types are known
        return made

    if policy or asked:
        try:
            run()
        except BreakloopError as error:
            click.echo(f"breakloop: {error}", err=True)
            click.get_current_context().exit(USAGE)
    says = StdioConversation(run, shadow=_told if shadow else None)
    try:
        code = Relay(server, says, _Faults()).run(sys.stdin.fileno(), sys.stdout.fileno())
    except NotStartedError as error:
        click.echo(f"breakloop: {error}", err=True)
        code = error.code
    click.get_current_context().exit(code)


class _Faults:
    """Tells the first mistake of ours on standard error, and nothing that was said."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: Exception) -> None:
        self.count += 1
        if self.count == 1:
            click.echo(f"breakloop: {type(error).__name__}; messages pass unjudged", err=True)


def _told(notice: str) -> None:
    click.echo(f"breakloop (shadow) would have said: {notice}", err=True)
