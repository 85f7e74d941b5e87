"""`breakloop mcp -- COMMAND`: run an MCP server over stdin and stdout behind loop protection."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

import click

from breakloop.cli.main import USAGE
from breakloop.errors import BreakloopError
from breakloop.integrations.mcp import StdioGuard
from breakloop.integrations.stdio import NotStartedError, Relay
from breakloop.sdk.context import configured_url, gateway_token
from breakloop.sdk.requests import STEPS_ONLY
from breakloop.sdk.toolkit import Run

if TYPE_CHECKING:  # loading it takes longer than these commands should take to start
    from breakloop.sdk.guard import Guard


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `breakloop mcp` and `breakloop acp` have in common."""
    for option in (
        click.option(
            "--shadow", is_flag=True, help="Change nothing; print to standard error what would have been denied."
        ),
        click.option("--agent", default="", help="Name of the agent, for policies and events."),
        click.option(
            "--url",
            default="",
            help="URL of a gateway that decides.  [BREAKLOOP_URL; without one, this process decides]",
        ),
        click.option("--policy", type=click.Path(), default=None, help="The bundle.  [the built-in protection]"),
    ):
        command = option(command)
    return command


@click.command(name="mcp", context_settings={"allow_interspersed_args": False})
@click.argument("server", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@options
def command(server: tuple[str, ...], *, policy: str | None, url: str, agent: str, shadow: bool) -> None:
    """Run an MCP server (stdio) behind loop protection. Its standard error and its exit code are passed on."""
    guard = lazy_guard(policy, url)

    @cache
    def run() -> Run:
        return guard().run(agent)

    relay(Relay(server, StdioGuard(run, shadow=told if shadow else None), Faults()))


def lazy_guard(policy: str | None, url: str) -> Callable[[], Guard]:
    """Return a function that creates the guard when the first message is checked: a client that starts ten servers does
    not wait for ten engines. A policy and a URL are checked at once: the command ends if they are wrong."""
    asked = "" if policy else url or configured_url()

    @cache
    def guard() -> Guard:
        given = policy or (None if asked else STEPS_ONLY)
        made: Guard = import_module("breakloop.sdk.guard").Guard(given, url=asked, token=gateway_token())
        return made

    if policy or asked:
        try:
            guard()
        except BreakloopError as error:
            click.echo(f"breakloop: {error}", err=True)
            click.get_current_context().exit(USAGE)
    return guard


def relay(made: Relay) -> None:
    """Relay between our standard input and output until the server ends, and exit with its code."""
    try:
        code = made.run(sys.stdin.fileno(), sys.stdout.fileno())
    except NotStartedError as error:
        click.echo(f"breakloop: {error}", err=True)
        code = error.code
    click.get_current_context().exit(code)


class Faults:
    """Prints the first internal error to standard error, without contents of messages."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: Exception) -> None:
        self.count += 1
        if self.count == 1:
            click.echo(f"breakloop: {type(error).__name__}; messages pass unchecked", err=True)


def told(notice: str) -> None:
    click.echo(f"breakloop (shadow) would have responded: {notice}", err=True)
