"""`breakloop mcp -- COMMAND`: run an MCP server over stdin and stdout behind loop protection."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module

import click

from breakloop.cli.main import USAGE
from breakloop.errors import BreakloopError
from breakloop.integrations.mcp import NotStartedError, Relay, StdioGuard
from breakloop.sdk.context import configured_url, gateway_token
from breakloop.sdk.requests import STEPS_ONLY
from breakloop.sdk.toolkit import Run


@click.command(name="mcp", context_settings={"allow_interspersed_args": False})
@click.argument("server", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--policy", type=click.Path(), default=None, help="The bundle.  [the built-in protection]")
@click.option(
    "--url", default="", help="URL of a gateway that decides.  [BREAKLOOP_URL; without one, this process decides]"
)
@click.option("--agent", default="", help="Name of the agent, for policies and events.")
@click.option("--shadow", is_flag=True, help="Change nothing; print to standard error what would have been denied.")
def command(server: tuple[str, ...], *, policy: str | None, url: str, agent: str, shadow: bool) -> None:
    """Run an MCP server (stdio) behind loop protection. Its standard error and its exit code are passed on."""
    asked = "" if policy else url or configured_url()

    @cache
    def run() -> Run:
        """Create the guard when the first tool is called: a client that starts ten servers does not wait for ten
        engines.
        """
        given = policy or (None if asked else STEPS_ONLY)
        made: Run = import_module("breakloop.sdk.guard").Guard(given, url=asked, token=gateway_token()).run(agent)
        return made

    if policy or asked:
        try:
            run()
        except BreakloopError as error:
            click.echo(f"breakloop: {error}", err=True)
            click.get_current_context().exit(USAGE)
    guard = StdioGuard(run, shadow=_told if shadow else None)
    try:
        code = Relay(server, guard, _Faults()).run(sys.stdin.fileno(), sys.stdout.fileno())
    except NotStartedError as error:
        click.echo(f"breakloop: {error}", err=True)
        code = error.code
    click.get_current_context().exit(code)


class _Faults:
    """Prints the first internal error to standard error, without contents of messages."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: Exception) -> None:
        self.count += 1
        if self.count == 1:
            click.echo(f"breakloop: {type(error).__name__}; messages pass unchecked", err=True)


def _told(notice: str) -> None:
    click.echo(f"breakloop (shadow) would have responded: {notice}", err=True)
