"""Where the admin API is and who asks, for every command that talks to it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest

from breakloop.cli.main import run
from breakloop.cli.remote import SPAN, _own_url
from tests.fake_admin import TOKEN, fake_admin

LIST = ["switch", "list"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.delenv("BREAKLOOP_ADMIN_TOKEN", raising=False)
    return tmp_path


def presented(*more: str) -> str:
    """The token that a command presents."""
    with fake_admin() as admin:
        admin.answers["GET /kill-switches"] = {"kill_switches": []}
        assert run([*LIST, "--url", admin.url, *more]) == 0
        return admin.headers[0].get("authorization", "")


def test_where_the_token_comes_from(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag before the environment, that before the settings, that before the file (X-3, T-2)."""
    assert presented() == ""
    folder = here / "data" / "breakloop"
    folder.mkdir(parents=True)
    (folder / "admin-token").write_text("of-the-file\n")
    assert presented() == "Bearer of-the-file"
    (here / "own.yaml").write_text("admin_token: of-the-settings\n")
    assert presented("--config", "own.yaml") == "Bearer of-the-settings"
    monkeypatch.setenv("BREAKLOOP_ADMIN_TOKEN", "of-the-environment")
    assert presented("--config", "own.yaml") == "Bearer of-the-environment"
    assert presented("--token", "of-the-flag") == "Bearer of-the-flag"


def test_where_the_url_comes_from(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag before the environment, that before the settings, as for `serve` (X-3)."""
    with fake_admin() as admin:
        admin.answers["GET /kill-switches"] = {"kill_switches": []}
        port = urlsplit(admin.url).port
        (here / "own.yaml").write_text(f"admin_port: {port}\nadmin_host: 0.0.0.0\n")
        assert run([*LIST, "--config", "own.yaml"]) == 0
        monkeypatch.setenv("BREAKLOOP_ADMIN_PORT", str(port))
        assert run(LIST) == 0
        monkeypatch.setenv("BREAKLOOP_ADMIN_PORT", "1")
        assert run(LIST) == 2
        assert run([*LIST, "--url", admin.url]) == 0


def test_the_url_of_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _own_url("") == "http://127.0.0.1:8788"
    monkeypatch.setenv("BREAKLOOP_ADMIN_HOST", "fd00::1")
    assert _own_url("") == "http://[fd00::1]:8788"
    monkeypatch.setenv("BREAKLOOP_ADMIN_PORT", "0")
    assert _own_url("") == "http://127.0.0.1:8788"


def test_a_token_file_that_cannot_be_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "data" / "breakloop" / "admin-token").mkdir(parents=True)
    assert run(LIST) == 3
    assert "admin-token: cannot be read: Is a directory" in capsys.readouterr().err


def test_a_failure_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Text on standard error, JSON on standard output, the same exit code (X-3)."""
    with fake_admin() as admin:
        admin.answers["GET /kill-switches"] = (401, {"error": {"message": "the token is wrong"}})
        args = [*LIST, "--url", admin.url, "--token", TOKEN]
        assert run(args) == 1
        text = capsys.readouterr()
        assert run([*args, "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
    assert text.out == ""
    assert text.err.startswith(f"{admin.url}: the token is wrong (give the token with --token")
    assert said == {"ok": False, "error": text.err.strip()}


def test_nobody_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is there: exit code 2 (X-3)."""
    assert run([*LIST, "--url", "http://127.0.0.1:1", "--token", TOKEN]) == 2
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("10m", 600), ("1h", 3600), ("1.5 H", 5400), ("7d", 604_800)]
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert SPAN.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "-1h", "1w", "99999d", "1h30m"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(click.BadParameter, match="use 30s, 10m, 1h or 7d"):
        SPAN.convert(text, None, None)
