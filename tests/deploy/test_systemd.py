"""deploy/systemd: systemd understands the unit and finds it safe, and it starts what exists."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from breakloop.config.settings import Settings
from tests.deploy.command_lines import wrong_with
from tests.deploy.tools import DEPLOY, run
from tests.programs import program

UNIT = DEPLOY / "systemd" / "breakloop.service"
EXPOSURE = 20  # of 100, as `systemd-analyze security` counts; 13 when this was written


def value(name: str) -> str:
    found = re.findall(rf"^{name}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 1, name
    return str(found[0])


def test_it_starts_what_exists() -> None:
    """The flags are flags of ours (X-3)."""
    words = shlex.split(value("ExecStart"))
    assert words[0] == "/opt/breakloop/bin/breakloop"
    assert wrong_with(words[1:]) == ""
    assert value("ExecReload") == "/bin/kill -HUP $MAINPID"


def test_it_is_waited_for_and_started_again() -> None:
    """systemd waits longer than running requests may take; a crash is not the end (S-6)."""
    assert float(value("TimeoutStopSec")) > Settings().shutdown_grace_seconds
    assert (value("Restart"), value("StartLimitIntervalSec")) == ("on-failure", "0")


def test_it_has_its_own_user_and_directory() -> None:
    assert (value("DynamicUser"), value("StateDirectory"), value("ProtectSystem")) == ("yes", "breakloop", "strict")


def analyze(folder: Path, text: str, *arguments: str) -> tuple[int, str]:
    """Ask systemd about a unit that starts a program which is there."""
    file = folder / UNIT.name
    file.write_text(text.replace("/opt/breakloop/bin/breakloop", sys.executable))
    done = run(program("systemd-analyze"), *arguments, str(file))
    return done.returncode, done.stdout + done.stderr


@pytest.mark.e2e
def test_systemd_understands_it(tmp_path: Path) -> None:
    """`systemd-analyze verify`, which warns of unknown names and of values that are none."""
    text = UNIT.read_text(encoding="utf-8")
    code, said = analyze(tmp_path, text, "verify")
    assert (code, [line for line in said.splitlines() if UNIT.name in line]) == (0, [])
    _, said = analyze(tmp_path, text.replace("ProtectHome=yes", "ProtectHouse=yes"), "verify")
    assert "ProtectHouse" in said


@pytest.mark.e2e
def test_systemd_finds_it_safe(tmp_path: Path) -> None:
    """Its measure of what a service could do if it were taken over."""
    text = UNIT.read_text(encoding="utf-8")
    arguments = ("security", "--offline=yes", f"--threshold={EXPOSURE}")
    assert analyze(tmp_path, text, *arguments)[0] == 0
    assert analyze(tmp_path, text.replace("SystemCallFilter=", "#"), *arguments)[0] != 0
