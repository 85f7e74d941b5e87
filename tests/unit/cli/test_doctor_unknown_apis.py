"""`breakloop doctor` lists what was passed and not judged, from the history."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakloop.cli.main import run
from breakloop.clock import FakeClock
from breakloop.history.store import Retention, open_history
from breakloop.model.events import API_UNKNOWN, Activity, Event


def test_unknown_apis_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each endpoint once, as a warning; a file that is no database says nothing (C-6, O-1)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BREAKLOOP_HISTORY", "h.db")
    monkeypatch.setenv("HOME", str(tmp_path))
    history = open_history(tmp_path / "h.db", retention=Retention(30, 1000), clock=FakeClock(), report=print)
    data = {"path": "/v1/other", "upstream": "openai"}
    history.write([Event(API_UNKNOWN, 1.0, data), Event(API_UNKNOWN, 2.0, data)], Activity(), 3.0)
    history.close()
    assert run(["doctor"]) == 0
    assert capsys.readouterr().out.count("requests to /v1/other (openai) look like those of an LLM API") == 1
    (tmp_path / "h.db").write_bytes(b"no database")
    assert run(["doctor"]) == 0
    assert "LLM API" not in capsys.readouterr().out
