"""Output and options that commands share: `--json`, tables, located problems, exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.table import Table

from breakloop.cli.main import PROBLEM
from breakloop.config.loader import LoadedSettings, load_settings
from breakloop.errors import Problem, SettingsError

_PIPE_WIDTH = 160
Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


def config_option(command: Command) -> Command:
    text = "Settings file; ./breakloop.yaml if it exists."
    return click.option("--config", metavar="PATH", default="", help=text)(command)


def policy_option(command: Command) -> Command:
    text = "Bundle (file or directory); by default the one in the settings, or the built-in protection."
    return click.option("--policy", metavar="PATH", default="", help=text)(command)


def console(*, plain: bool = False) -> Console:
    """Return a console for standard output. Output to files and pipes is not wrapped to the width of a terminal."""
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


def problem_json(problem: Problem) -> dict[str, Any]:
    return asdict(problem)


def end(code: int) -> NoReturn:
    click.get_current_context().exit(code)


def fail(message: str, *, as_json: bool = False, code: int = PROBLEM) -> NoReturn:
    """Print why the command cannot continue and exit."""
    if as_json:
        print_json({"ok": False, "error": message})
    else:
        click.echo(message, err=True)
    end(code)


def fail_problems(problems: Iterable[Problem], *, as_json: bool = False) -> NoReturn:
    """Print the problems of an input file and exit with 1."""
    if as_json:
        print_json({"ok": False, "problems": [problem_json(problem) for problem in problems]})
    else:
        for problem in problems:
            click.echo(str(problem), err=True)
    end(PROBLEM)


def settings_of(config: str, *, as_json: bool = False) -> LoadedSettings:
    """Return the effective settings; exit if they are invalid."""
    try:
        return load_settings({"config": config or None})
    except SettingsError as error:
        fail(str(error), as_json=as_json)
