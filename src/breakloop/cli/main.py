"""The `breakloop` command: finds its subcommands by name and loads only what is called, so that `version` is quick.

Exit codes: 0 ok, 1 a problem was found, 2 something could not be reached, 3 the command was called wrongly.

`breakloop version`.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Final, NoReturn

import click

from breakloop._version import __version__

OK: Final = 0
PROBLEM: Final = 1
UNREACHABLE: Final = 2
USAGE: Final = 3

# Name -> where it is, and its line in the list of commands (so that the list needs none of them loaded).
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "serve": ("breakloop.cli.serve:command", "Run the proxy and decision service."),
    "demo": ("breakloop.cli.demo:command", "Watch a looping agent being stopped; no keys, no network."),
    "init": ("breakloop.cli.init:command", "Write a first policy bundle, its tests and settings."),
    "validate": ("breakloop.cli.validate:command", "Check policy bundles."),
    "bundle": ("breakloop.cli.bundle:command", "Push a bundle to every instance; sign bundles and verify them."),
    "test": ("breakloop.cli.test:command", "Run a file of requests and expected verdicts against a bundle."),
    "explain": ("breakloop.cli.explain:command", "Show how a request is judged, and why."),
    "replay": ("breakloop.cli.replay:command", "Run recorded traffic through a bundle: what it would have said."),
    "scan": ("breakloop.cli.scan:command", "Look for loops in transcripts of Claude Code, Codex and others."),
    "status": ("breakloop.cli.remote:status_command", "Show how a running instance is, and what it saved."),
    "events": ("breakloop.cli.remote:events_command", "Show what happened; --follow: what happens."),
    "agents": ("breakloop.cli.remote:agents_command", "List agents: what they cost, and who is held."),
    "kill": ("breakloop.cli.remote:kill_command", "Hold an agent, now and everywhere."),
    "release": ("breakloop.cli.remote:release_command", "End the holds on an agent."),
    "switch": ("breakloop.cli.remote:switch_command", "Set, list and lift kill switches at run time."),
    "hook": ("breakloop.cli.hook:command", "Answer the hooks of an agent: Claude Code."),
    "mcp": ("breakloop.cli.mcp:command", "Run an MCP server (stdio) with loop protection in front of it."),
    "prices": ("breakloop.cli.prices:command", "Show what a model costs here, and which list says so."),
    "schema": ("breakloop.cli.schema:command", "Print the JSON Schema of bundles or settings."),
    "doctor": ("breakloop.cli.doctor:command", "Show every setting and where it came from; warn of unsafe ones."),
    "version": ("breakloop.cli.main:version_command", "Print the version."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - a mistake in the table above
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called; for one that is not there, say which was probably meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            meant = get_close_matches(name, COMMANDS, 1)
            ctx.fail(f"No such command '{name}'." + (f" Did you mean '{meant[0]}'?" if meant else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="breakloop %(version)s", help="Print the version and exit.")
def cli() -> None:
    """Stops runaway AI agents before they burn money."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    try:
        code = cli.main(args=arguments, prog_name="breakloop", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("Aborted.", err=True)
        return PROBLEM
    return code if isinstance(code, int) else OK


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    sys.exit(run())


@click.command(name="version", help="Print the version.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the versions of Python and the system.")
def version_command(*, as_json: bool) -> None:
    """Print the version."""
    if as_json:
        system = f"{platform.system()} {platform.machine()}"
        click.echo(json.dumps({"version": __version__, "python": platform.python_version(), "system": system}))
    else:
        click.echo(f"breakloop {__version__}")
