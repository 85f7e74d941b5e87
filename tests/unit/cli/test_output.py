"""What the commands for policy authors share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.table import Table

from breakloop.cli import output
from breakloop.errors import BundleError, Problem

PROBLEM = Problem("f.yaml", 3, 4, "a.b", "is wrong", "fix it")


def outcome(action: Callable[[], object]) -> tuple[int, str, str]:
    """Run `action` as a command; return exit code, standard output and standard error."""
    done = CliRunner().invoke(click.Command("c", callback=action))
    return done.exit_code, done.stdout, done.stderr


def test_fail_ends_with_one() -> None:
    """Problems go to standard error as text, to standard output as JSON; both end with 1 (X-3)."""
    assert outcome(lambda: output.fail("no")) == (1, "", "no\n")
    code, out, err = outcome(lambda: output.fail("no", as_json=True))
    assert (code, json.loads(out), err) == (1, {"ok": False, "error": "no"}, "")


def test_problems_are_told_with_their_place() -> None:
    """File:line:column: path: message (hint) (B-2)."""

    @click.command()
    @output.json_option
    def command(as_json: bool) -> None:
        raise BundleError([PROBLEM])

    done = CliRunner().invoke(command)
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "f.yaml:3:4: a.b: is wrong (fix it)\n")
    done = CliRunner().invoke(command, ["--json"])
    assert (done.exit_code, done.stderr) == (1, "")
    said = json.loads(done.stdout)
    assert (said["ok"], said["problems"]) == (False, [asdict(PROBLEM)])
    assert said["problems"][0]["column"] == 4


def test_settings_that_are_wrong_end_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong settings file is told with its place (T-1)."""
    monkeypatch.chdir(tmp_path)
    Path("other.yaml").write_text("port: high\n", encoding="utf-8")
    code, _, err = outcome(output.json_option(lambda: output.settings_of("other.yaml")))
    assert code == 1
    assert err.startswith("other.yaml:1:7: port: ")
    assert output.settings_of("").settings.port == 8787


def test_tables_end_without_blanks() -> None:
    """Lines that are copied or compared carry nothing invisible, and no name is cut in a pipe."""
    table = Table(box=None, pad_edge=False)
    table.add_column("name")
    table.add_column("x")
    table.add_row("n" * 100, "y")
    table.add_row("short", "")
    code, out, _ = outcome(lambda: output.print_table(table))
    assert code == 0
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    assert "n" * 100 in out


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets plain text; so does a terminal when asked for."""
    assert not output.console().is_terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert output.console(plain=True).no_color


def test_options() -> None:
    """The shared options have the same names everywhere (X-3)."""

    @click.command()
    @output.policy_option
    @output.config_option
    @output.json_option
    def command(policy: str, config: str, as_json: bool) -> None:
        output.print_json([policy, config, as_json])

    done = CliRunner().invoke(command, ["--policy", "p", "--config", "c", "--json"])
    assert json.loads(done.output) == ["p", "c", True]
