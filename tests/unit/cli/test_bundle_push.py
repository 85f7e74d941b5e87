"""`breakloop bundle push` and `show`: what is checked before anything is sent, and what cannot be reached. With a real
Redis: tests/e2e/test_remote_bundles.py."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakloop.cli.main import PROBLEM, UNREACHABLE, USAGE, run

GOOD = "bundle_version: 1\npolicies: []\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text(GOOD)


@pytest.fixture
def nobody() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"redis://:canary@127.0.0.1:{bound.getsockname()[1]}"


def test_unreachable_is_2(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And the password is not repeated (X-3)."""
    assert run(["bundle", "push", "p.yaml", "--state", nobody]) == UNREACHABLE
    assert run(["bundle", "show", "--state", nobody, "--json"]) == UNREACHABLE
    out, err = capsys.readouterr()
    assert "Connection refused" in err
    assert "Connection refused" in json.loads(out)["error"]
    assert "canary" not in out + err


def test_a_bad_bundle_is_not_pushed(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is validated first: 1 although nobody listens (B-2, B-3)."""
    Path("p.yaml").write_text("bundle_version: 0\npolicies: []\n")
    assert run(["bundle", "push", "p.yaml", "--state", nobody]) == PROBLEM
    assert "p.yaml:1:17: bundle_version" in capsys.readouterr().err
    assert run(["bundle", "push", "p.yaml", "--state", nobody, "--json"]) == PROBLEM
    assert json.loads(capsys.readouterr().out)["problems"][0]["path"] == "bundle_version"


def test_an_unsigned_bundle_is_not_pushed_where_signatures_are_wanted(
    nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key of the settings holds here too (B-4)."""
    Path("breakloop.yaml").write_text("policy_hmac_secret: a shared secret of some length\n")
    assert run(["bundle", "push", "p.yaml", "--state", nobody]) == PROBLEM
    assert "is not signed" in capsys.readouterr().err


def test_wrong_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """3 for no file and for a directory, which is several; 1 for settings without a Redis (X-3)."""
    assert run(["bundle", "push", "none.yaml", "--state", "redis://127.0.0.1"]) == USAGE
    assert run(["bundle", "push", str(tmp_path), "--state", "redis://127.0.0.1"]) == USAGE
    assert run(["bundle", "push", "p.yaml"]) == PROBLEM
    assert "set state to a Redis URL" in capsys.readouterr().err
