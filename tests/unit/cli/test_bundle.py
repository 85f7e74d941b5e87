"""`breakloop bundle`: its commands are found and named."""

from __future__ import annotations

import pytest

from breakloop.cli.bundle import command
from breakloop.cli.main import USAGE, run


def test_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """What there is, and 3 for what there is not (X-3)."""
    assert list(command.commands) == ["push", "show", "keygen", "sign", "verify"]
    assert run(["bundle", "--help"]) == 0
    assert "Push a bundle to Redis, for every instance." in capsys.readouterr().out
    assert run(["bundle"]) == USAGE
    assert run(["bundle", "pull"]) == USAGE
