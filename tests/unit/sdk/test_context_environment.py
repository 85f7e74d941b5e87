"""What the library reads from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.config.loader import load_settings
from breakloop.sdk.context import configured_url, data_dir, gateway_token, gateway_url, shared_secret


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (None, "http://127.0.0.1:8787"),
        ("", "http://127.0.0.1:8787"),
        ("  ", "http://127.0.0.1:8787"),
        ("https://guard.example.com/", "https://guard.example.com"),
        ("http://10.0.0.1:9/agents/a", "http://10.0.0.1:9/agents/a"),
    ],
)
def test_where_the_gateway_is(given: str | None, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BREAKLOOP_URL, else the default address of `breakloop serve` (P-2)."""
    monkeypatch.delenv("BREAKLOOP_URL", raising=False)
    if given is not None:
        monkeypatch.setenv("BREAKLOOP_URL", given)
    assert gateway_url() == url


def test_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own name for it (T-1)."""
    monkeypatch.delenv("BREAKLOOP_SECRET", raising=False)
    assert shared_secret() == b""
    monkeypatch.setenv("BREAKLOOP_SECRET", "s3cret")
    assert shared_secret() == b"s3cret"


def test_a_gateway_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks decide by themselves where none is (P-3)."""
    monkeypatch.delenv("BREAKLOOP_URL", raising=False)
    monkeypatch.delenv("BREAKLOOP_TOKEN", raising=False)
    assert (configured_url(), gateway_token()) == ("", "")
    monkeypatch.setenv("BREAKLOOP_URL", " http://10.0.0.1:9/ ")
    monkeypatch.setenv("BREAKLOOP_TOKEN", "sk-own")
    assert (configured_url(), gateway_token()) == ("http://10.0.0.1:9", "sk-own")


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"BREAKLOOP_DATA_DIR": "/d", "STATE_DIRECTORY": "/s", "HOME": "/h"}, "/d"),
        ({"STATE_DIRECTORY": "/s:/t", "XDG_DATA_HOME": "/x", "HOME": "/h"}, "/s"),
        ({"XDG_DATA_HOME": "/x", "HOME": "/h"}, "/x/breakloop"),
        ({"HOME": "/h"}, "/h/.local/share/breakloop"),
        ({}, ".breakloop"),
    ],
)
def test_the_data_directory(given: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the server would take (T-2)."""
    for name in ("BREAKLOOP_DATA_DIR", "STATE_DIRECTORY", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert data_dir() == Path(folder)
    loaded = load_settings(env=given).settings.data_dir
    assert Path(loaded).name == Path(folder).name
