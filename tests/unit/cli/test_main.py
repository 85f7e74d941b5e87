"""The command itself: finding commands, exit codes, and how little it loads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

import click
import pytest

from breakloop.__main__ import main
from breakloop.cli.main import COMMANDS, LIBRARY, OK, SERVER, USAGE, cli, run
from tests.each import each


def test_list_of_commands_loads_none(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` names every command with a line about it (X-3)."""
    assert run(["--help"]) == OK
    text = capsys.readouterr().out
    for name, (_, line) in COMMANDS.items():
        assert f"  {name} " in text
        assert line in text


@pytest.mark.parametrize(
    "arguments", [["bogus"], ["version", "--bogus"], ["serve", "--port", "x"], ["serve", "extra"], []]
)
def test_wrong_usage_is_3(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that makes no sense exits 3 and says why on standard error (X-3)."""
    assert run(arguments) == USAGE
    assert "Usage: breakloop" in capsys.readouterr().err


def test_a_mistyped_command_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    """The command that was probably meant is named; far from all of them, none is (X-3)."""
    assert run(["validat", "x.yaml"]) == USAGE
    assert "No such command 'validat'. Did you mean 'validate'?" in capsys.readouterr().err
    assert run(["frobnicate"]) == USAGE
    assert "Did you mean" not in capsys.readouterr().err


def test_the_usual_flag_for_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` says what `version` says (X-3)."""
    assert run(["--version"]) == OK
    said = capsys.readouterr().out
    assert run(["version"]) == OK
    assert capsys.readouterr().out == said


def test_command_modules_are_where_the_table_says() -> None:
    """What is there can be called by its name (X-3)."""
    context = click.Context(cli)
    for name, (where, _) in COMMANDS.items():
        if find_spec(where.partition(":")[0]) is not None:
            command = cli.get_command(context, name)
            assert command is not None
            assert command.name == name
    assert cli.get_command(context, "bogus") is None


@each("name", sorted(set(COMMANDS) - LIBRARY))
def test_a_command_says_which_extra_it_needs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence with the remedy, whichever package is missing, before anything is done (X-3)."""
    for package in SERVER:
        with monkeypatch.context() as without:
            without.setitem(sys.modules, package, None)
            assert run([name]) == USAGE
        said = f'Error: breakloop {name} needs the extra "server": pip install "breakloop[server]"\n'
        assert capsys.readouterr() == ("", said), package


def test_code_of_a_command_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command returns, exits with, or breaks off with (X-3)."""

    def use(function: Callable[[], object]) -> None:
        monkeypatch.setattr(cli, "get_command", lambda _context, _name: click.Command("x", callback=function))

    def exits() -> None:
        click.get_current_context().exit(2)

    def refuses() -> None:
        raise click.ClickException("no")

    def aborts() -> None:
        raise click.Abort

    for function, code in ((lambda: 1, 1), (lambda: None, 0), (exits, 2), (refuses, 1), (aborts, 1)):
        use(function)
        assert run(["x"]) == code


def test_main_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed command ends with the code of the one that it runs."""
    monkeypatch.setattr(sys, "argv", ["breakloop", "version", "--bogus"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == USAGE


def test_version_loads_next_to_nothing() -> None:
    """A quick command does not wait for what only the server needs (X-3)."""
    code = (
        "import sys; from breakloop.cli.main import run; run(['version']);"
        "print(sorted({'pydantic', 'uvloop', 'ruamel', 'rich', 'jwt', 'httptools', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
