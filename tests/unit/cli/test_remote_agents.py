"""`breakloop agents`: a list, and one of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.cli.main import run
from tests.fake_admin import fake_admin

HOLD = {"binds": "name", "project": "default", "caller": "", "agent": "code-fixer", "run": "", "since": 1_800_000_000.0, "until": None, "reason": "too dear", "by": "ada"}  # fmt: skip
AGENT: dict[str, Any] = {
    "project": "default", "agent": "code-fixer", "callers": 2, "first_at": 1_790_000_000.0, "last_at": 1_800_000_000.0,
    "requests": 18_240, "denied": 412, "loops": 9, "input_tokens": 39_033_600, "output_tokens": 5_654_400,
    "cost_microusd": 412_870_000, "today_microusd": 31_420_000, "saved_microusd": 16_892_000, "model": "claude-sonnet-4-5",
    "settings": {}, "holds": [], "stopped_by": "",
}  # fmt: skip
NEW = {**AGENT, "agent": "new\x1b[0m", "last_at": None, "requests": 0, "denied": 0, "loops": 0, "cost_microusd": 0, "today_microusd": 0, "saved_microusd": 0, "holds": [HOLD]}  # fmt: skip


def test_the_list(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was seen, what it cost, who is held (G-1, X-3)."""
    monkeypatch.setattr("breakloop.cli.remote.SystemClock.now", lambda _: 1_800_000_064.0)
    with fake_admin() as admin:
        admin.answers["GET /agents"] = {"agents": [AGENT, NEW]}
        assert run(["agents", "--find", "e", "--most", "7", *admin.args]) == 0
        assert admin.asked == [("GET /agents?find=e&most=7", None)]
    assert capsys.readouterr().out.splitlines() == [
        "agent        last seen       requests   denied   loops    today    in all    saved   held",
        "─" * 89,
        "code-fixer   1 min 4 s ago     18,240      412       9   $31.42   $412.87   $16.89",
        "new\\x1b[0m   never                  0        0       0    $0.00     $0.00    $0.00   held",
    ]


def test_one_agent(capsys: pytest.CaptureFixture[str]) -> None:
    """With what is set for it and what holds it (G-1)."""
    with fake_admin() as admin:
        admin.answers["GET /agents/a%2Fcode-fixer"] = {**AGENT, "settings": {"active": True}, "holds": [HOLD]}
        assert run(["agents", "a/code-fixer", "--project", "blue", *admin.args]) == 0
        assert admin.asked == [("GET /agents/a%2Fcode-fixer?project=blue", None)]
    assert capsys.readouterr().out.splitlines() == [
        "code-fixer in project default",
        "  first seen 2026-09-21 14:13:20Z",
        "  last seen  2027-01-15 08:00:00Z",
        "  model      claude-sonnet-4-5",
        "  callers    2",
        "  requests   18,240, 412 of them denied",
        "  loops      9",
        "  tokens     39,033,600 in, 5,654,400 out",
        "  spent      $412.87, $31.42 of it today",
        "  saved      $16.89",
        "  set        active: True",
        "  held       until it is released by ada: too dear",
    ]


def test_one_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """One that is not there: exit code 1 (X-3)."""
    with fake_admin() as admin:
        message = "there is no such agent in this project"
        admin.answers["GET /agents/nobody"] = (404, {"error": {"code": "unknown_agent", "message": message}})
        assert run(["agents", "nobody", *admin.args]) == 1
    assert capsys.readouterr().err == f"{admin.url}: {message}\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [([], "no agents yet"), (["--find", "x"], "no agents match")],
)
def test_nobody(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_admin() as admin:
        admin.answers["GET /agents"] = {"agents": []}
        assert run(["agents", *more, *admin.args]) == 0
    assert capsys.readouterr().out == f"{said}\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON (X-3)."""
    with fake_admin() as admin:
        admin.answers |= {"GET /agents": {"agents": [AGENT]}, "GET /agents/code-fixer": AGENT}
        assert run(["agents", "--json", *admin.args]) == 0
        assert json.loads(capsys.readouterr().out) == {"ok": True, "agents": [AGENT]}
        assert run(["agents", "code-fixer", "--json", *admin.args]) == 0
        assert json.loads(capsys.readouterr().out) == {"ok": True, **AGENT}


def test_whom_a_kill_switch_stops(capsys: pytest.CaptureFixture[str]) -> None:
    """Whom a kill switch stops (K-2)."""
    stopped = {**AGENT, "stopped_by": "kill_switch/ab12"}
    with fake_admin() as admin:
        admin.answers["GET /agents"] = {"agents": [stopped]}
        admin.answers["GET /agents/code-fixer"] = stopped
        assert run(["agents", *admin.args]) == run(["agents", "code-fixer", *admin.args]) == 0
    said = capsys.readouterr().out
    assert "   kill switch\n" in said
    assert "  stopped    by kill_switch/ab12: all its requests are denied\n" in said
