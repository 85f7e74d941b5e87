"""The `breakloop` command.

Subcommands are imported when they are called, so that `breakloop version` starts quickly. Exit codes: 0 success, 1 a
problem was found, 2 something is unreachable, 3 wrong usage.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from breakloop._version import __version__

OK: Final = 0
PROBLEM: Final = 1
UNREACHABLE: Final = 2
USAGE: Final = 3

# Name -> "module:attribute" and the line in the list of commands, which is printed without importing any of them.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "serve": ("breakloop.cli.serve:command", "Run the proxy and decision service."),
    "run": ("breakloop.cli.run:command", "Run an agent behind a gateway of its own; end it when it must end."),
    "demo": ("breakloop.cli.demo:command", "Watch a looping agent being stopped; no keys, no network."),
    "init": ("breakloop.cli.init:command", "Write a first policy bundle with tests and settings."),
    "setup": ("breakloop.cli.setup:command", "Point a coding agent or a proxy at the gateway, and undo it."),
    "validate": ("breakloop.cli.validate:command", "Check policy bundles."),
    "bundle": ("breakloop.cli.bundle:command", "Push a bundle to every instance; sign and verify bundles."),
    "test": ("breakloop.cli.test:command", "Run a test file of requests and verdicts against a bundle."),
    "explain": ("breakloop.cli.explain:command", "Show how a request is decided, and why."),
    "replay": ("breakloop.cli.replay:command", "Run recorded traffic through a bundle; report what it would deny."),
    "scan": ("breakloop.cli.scan:command", "Find loops in transcripts of Claude Code, Codex and other agents."),
    "status": ("breakloop.cli.remote:status_command", "Show the status of a running instance and what it saved."),
    "events": ("breakloop.cli.remote:events_command", "Show recent events; --follow streams new ones."),
    "agents": ("breakloop.cli.remote:agents_command", "List agents with their cost; show which ones are quarantined."),
    "kill": ("breakloop.cli.remote:kill_command", "Quarantine an agent on every instance."),
    "release": ("breakloop.cli.remote:release_command", "Release an agent from quarantine."),
    "pauses": ("breakloop.cli.remote:pauses_command", "List paused runs, and answer for one."),
    "switch": ("breakloop.cli.remote:switch_command", "Set, list and lift kill switches at run time."),
    "hook": ("breakloop.cli.hook:command", "Run as a hook of an agent (Claude Code)."),
    "mcp": ("breakloop.cli.mcp:command", "Run an MCP server (stdio) with loop protection in front of it."),
    "acp": ("breakloop.cli.acp:command", "Run an agent of an editor (ACP) with loop protection."),
    "prices": ("breakloop.cli.prices:command", "Show the price of a model and the list it comes from."),
    "schema": ("breakloop.cli.schema:command", "Print the JSON Schema of bundles or settings."),
    "doctor": ("breakloop.cli.doctor:command", "Show every setting with its origin, and check the configuration."),
    "version": ("breakloop.cli.main:version_command", "Print the version."),
}
# Commands that work with the library alone. The others need the extra `server`, which consists of these packages (and
# uvloop, where there is one).
LIBRARY: Final = frozenset({"acp", "hook", "init", "mcp", "setup", "validate", "version"})
SERVER: Final = (
    "brotli", "cryptography", "genai_prices", "jinja2", "jwt", "prometheus_client", "rich", "sqlalchemy", "starlette",
    "uvicorn", "zstandard",
)  # fmt: skip


class LazyGroup(click.Group):
    """A click group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in LIBRARY and not _has_server():
            needed = f'breakloop {cmd_name} needs the extra "server": pip install "breakloop[server]"'
            raise click.UsageError(needed)
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - a mistake in the table above
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the closest name when the command does not exist."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from difflib import get_close_matches  # noqa: PLC0415 - for a mistake only: the hook is started often

            meant = get_close_matches(name, COMMANDS, 1)
            ctx.fail(f"No such command '{name}'." + (f" Did you mean '{meant[0]}'?" if meant else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _has_server() -> bool:
    """Return whether the packages of the extra `server` are installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - not for commands of the library

    return all(find_spec(package) for package in SERVER)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="breakloop %(version)s", help="Print the version and exit.")
def cli() -> None:
    """Stops runaway AI agents before they burn money."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    try:
        code = cli.main(args=arguments, prog_name="breakloop", standalone_mode=False)
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


@click.command(name="version", help="Print the version.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the versions of Python and the system.")
def version_command(*, as_json: bool) -> None:
    if as_json:
        import json  # noqa: PLC0415 - other commands do not need them
        import platform  # noqa: PLC0415

        system = f"{platform.system()} {platform.machine()}"
        click.echo(json.dumps({"version": __version__, "python": platform.python_version(), "system": system}))
    else:
        click.echo(f"breakloop {__version__}")
