"""Output and options that commands share: `--json`, tables, located problems, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

import click

from breakloop.cli.main import PROBLEM
from breakloop.config.loader import LoadedSettings, load_settings
from breakloop.errors import BundleError, Problem, SettingsError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STDIN: Final = "-"
STDIN_NAME: Final = "<stdin>"
_PIPE_WIDTH: Final = 160
Command = TypeVar("Command", bound=Callable[..., Any])


config_option: Final = click.option(
    "--config", metavar="PATH", default="", help="Settings file; ./breakloop.yaml if it exists."
)
policy_option: Final = click.option(
    "--policy",
    metavar="PATH",
    default="",
    help="Bundle (file or directory); by default the one in the settings, or the built-in protection.",
)


def json_option(command: Command) -> Command:
    """Add `--json`. Errors of input files and settings are printed accordingly, and end the command with 1."""

    @wraps(command)
    def reported(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except BundleError as error:
            fail_problems(error.problems)
        except SettingsError as error:
            fail(str(error))

    option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
    return option(cast("Command", reported))


def console(*, plain: bool = False) -> Console:
    """Return a console for standard output. Output to files and pipes is not wrapped to the width of a terminal."""
    from rich.console import Console  # noqa: PLC0415 - an extra, which not all commands need

    if sys.stdout.isatty() and not plain:
        return Console(highlight=False, markup=False)
    return Console(highlight=False, markup=False, no_color=True, force_terminal=False, width=_PIPE_WIDTH)


def print_table(table: Table) -> None:
    """Print a table without trailing spaces."""
    out = console()
    with out.capture() as captured:
        out.print(table, soft_wrap=False)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_json(content: object) -> None:
    click.echo(json.dumps(content, indent=2, ensure_ascii=False))


def end(code: int) -> NoReturn:
    click.get_current_context().exit(code)


def _wants_json() -> bool:
    return bool(click.get_current_context().params.get("as_json"))


def fail(message: str, *, as_json: bool | None = None, code: int = PROBLEM) -> NoReturn:
    """Print why the command cannot continue, by default in the form of `--json`, and exit."""
    if _wants_json() if as_json is None else as_json:
        print_json({"ok": False, "error": message})
    else:
        click.echo(message, err=True)
    end(code)


def fail_problems(problems: Iterable[Problem]) -> NoReturn:
    """Print the problems of an input file and exit with 1."""
    if _wants_json():
        print_json({"ok": False, "problems": [asdict(problem) for problem in problems]})
    else:
        for problem in problems:
            click.echo(str(problem), err=True)
    end(PROBLEM)


def settings_of(config: str) -> LoadedSettings:
    """Return the effective settings. Raises `SettingsError`."""
    return load_settings({"config": config or None})


def read_input(name: str) -> tuple[bytes, str]:
    """Return the content of a file or of standard input, and the name to show; exit if it cannot be read."""
    if name == STDIN:
        return sys.stdin.buffer.read(), STDIN_NAME
    try:
        return Path(name).read_bytes(), name
    except OSError as error:
        fail(f"{name}: cannot be read: {error.strerror}")
