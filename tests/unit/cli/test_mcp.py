"""`breakloop mcp -- COMMAND`: its options; tests/e2e/test_mcp_stdio.py runs it between a real client and server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from breakloop.cli.main import USAGE, run
from breakloop.cli.mcp import Faults, told


@pytest.fixture(autouse=True)
def _no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BREAKLOOP_URL", raising=False)


def called(*arguments: str) -> int:
    """Call it with pipes for standard input and output; the client has said all that it has to say."""
    read_in, write_in = os.pipe()
    read_out, write_out = os.pipe()
    os.close(write_in)
    with (
        os.fdopen(read_in) as stdin,
        os.fdopen(write_out, "w") as stdout,
        os.fdopen(read_out),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", stdin)
        patch.setattr(sys, "stdout", stdout)
        return run(["mcp", *arguments])


def test_the_exit_code_is_the_servers() -> None:
    """And what follows the two dashes is its own (P-3)."""
    assert called("--", sys.executable, "-c", "raise SystemExit(9)", "--policy", "x") == 9
    assert called(sys.executable, "-c", "raise SystemExit(8)", "--url") == 8


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """What a shell would say (P-3)."""
    assert called("--", "/nowhere/at-all") == 127
    assert capsys.readouterr().err == "breakloop: /nowhere/at-all cannot be started: No such file or directory\n"


@pytest.mark.parametrize(("flag", "value"), [("--policy", "nowhere.yaml"), ("--url", "ftp://x")])
def test_a_wrong_policy_is_said_at_once(
    flag: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the server is started (B-2)."""
    monkeypatch.chdir(tmp_path)
    assert called(flag, value, "--", sys.executable, "-c", "open('started', 'w')") == USAGE
    assert capsys.readouterr().err.startswith("breakloop: ")
    assert not Path("started").exists()


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    """It is loaded, and the server runs (B-1)."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("bundle_version: 1\npolicies: []\n")
    assert called("--policy", str(policy), "--agent", "a", "--shadow", "--", sys.executable, "-c", "pass") == 0


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    """There must be one; and a mistyped option is not taken for it (X-3)."""
    assert called() == USAGE
    assert called("--polcy", "x", "--", "true") == USAGE


def test_what_it_says_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake of ours once, and nothing of the message that it was made with (Y-1, S-3)."""
    faults = Faults()
    faults(ValueError("canary"))
    faults(ValueError("canary"))
    told("You repeat yourself.")
    assert faults.count == 2
    assert capsys.readouterr().err.splitlines() == [
        "breakloop: ValueError; messages pass unchecked",
        "breakloop (shadow) would have responded: You repeat yourself.",
    ]
