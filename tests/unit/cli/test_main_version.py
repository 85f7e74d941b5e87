"""`breakloop version`."""

from __future__ import annotations

import json

import pytest

from breakloop import __version__
from breakloop.cli.main import run


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, or JSON (X-3)."""
    assert run(["version"]) == 0
    assert capsys.readouterr().out == f"breakloop {__version__}\n"
    assert run(["version", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["version"] == __version__
    assert content["python"].startswith("3.")
