"""`breakloop kill`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.cli.main import run
from tests.fake_admin import fake_admin

PATH = "POST /agents/code-fixer/kill"


def held(until: float | None, *, shared: bool = True) -> dict[str, Any]:
    return {
        "hold": {"project": "default", "agent": "code-fixer", "until": until},
        "shared": shared,
        "seen": True,
        "did_you_mean": "",
    }


def test_until_it_is_released(capsys: pytest.CaptureFixture[str]) -> None:
    """With a reason, for the audit log (G-1, T-2)."""
    with fake_admin() as admin:
        admin.answers[PATH] = held(None)
        assert run(["kill", "code-fixer", "--reason", "burns money", *admin.args]) == 0
        assert admin.asked == [(PATH, {"reason": "burns money", "expires_at": None})]
    assert capsys.readouterr().out == "code-fixer in project default is held until it is released\n"


def test_for_an_hour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For an hour: --for 1h (X-3)."""
    monkeypatch.setattr("breakloop.cli.remote.SystemClock.now", lambda _: 1_800_000_000.0)
    with fake_admin() as admin:
        admin.answers[PATH] = held(1_800_003_600.0, shared=False)
        assert run(["kill", "code-fixer", "--for", "1h", "--project", "default", *admin.args]) == 0
        body = {"reason": "stopped from the command line", "expires_at": 1_800_003_600.0}
        assert admin.asked == [(f"{PATH}?project=default", body)]
    assert capsys.readouterr().out.splitlines() == [
        "code-fixer in project default is held until 2027-01-15 09:00:00Z",
        "note: other instances are unreachable; they apply the change when they are back",
    ]


def test_a_viewer_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    """A viewer cannot: exit code 1, and why (X-3)."""
    with fake_admin() as admin:
        admin.answers[PATH] = (403, {"error": {"message": "your role is viewer, and this needs operator"}})
        assert run(["kill", "code-fixer", *admin.args]) == 1
    said = capsys.readouterr().err
    assert said == f"{admin.url}: your role is viewer, and this needs operator (use the token of an operator)\n"


STOPPED = {"calls": 3, "streams": 2, "agents": ["a", "b"]}
IN_FLIGHT = "stopped in flight: 3 calls (2 streams) of 2 agents"


def test_what_was_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    """Calls in flight, on all instances (K-4)."""
    with fake_admin() as admin:
        admin.answers[PATH] = {**held(None), "stopped": STOPPED}
        assert run(["kill", "code-fixer", *admin.args]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [IN_FLIGHT]


@pytest.mark.parametrize(
    ("arguments", "scope", "said"),
    [
        (["--session", "s-1"], ("agent:session", "s-1"), "session s-1"),
        (["--all"], ("project:id", "default"), "all agents"),
        (["--all", "--project", "shop"], ("project:id", "shop"), "all agents"),
    ],
)
def test_a_session_or_everything(
    arguments: list[str], scope: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kill switch, and how it is lifted (K-4)."""
    with fake_admin() as admin:
        admin.answers["POST /kill-switches"] = {"id": "0a1b", "shared": True, "stopped": STOPPED}
        assert run(["kill", *arguments, "--reason", "enough", *admin.args]) == 0
        [(_, sent)] = admin.asked
        assert (sent["scope_key"], sent["scope_value"], sent["reason"]) == (*scope, "enough")
    assert capsys.readouterr().out.splitlines() == [
        f"{said} stopped; to release: breakloop switch lift 0a1b",
        IN_FLIGHT,
    ]


def test_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    """By the session at its top; where several callers have it, by the caller as well (K-4)."""
    place = {"project": "default", "caller": "key:1", "root": "s-0"}
    with fake_admin() as admin:
        admin.answers["GET /trees"] = {"trees": [place, {**place, "caller": "key:2"}, {**place, "root": "s-9"}]}
        admin.answers["POST /tree/kill"] = {"sessions": 4, "shared": True, "stopped": STOPPED}
        assert run(["kill", "--tree", "s-0", "--caller", "key:1", "--reason", "enough", *admin.args]) == 0
        assert admin.asked[-1][1] == {**place, "session": "s-0", "reason": "enough"}
        said = capsys.readouterr().out.splitlines()
        assert said == ["4 sessions held; to release: breakloop release --tree s-0", IN_FLIGHT]
        admin.answers["POST /tree/release"] = {"sessions": 4, "shared": True}
        assert run(["release", "--tree", "s-0", "--caller", "key:1", *admin.args]) == 0
        assert admin.asked[-1][1] == {**place, "session": "s-0"}
        assert capsys.readouterr().out == "4 sessions of the tree released\n"
        assert run(["kill", "--tree", "s-0", *admin.args]) == 3
        assert "add --caller, one of key:1, key:2" in capsys.readouterr().err
        assert run(["kill", "--tree", "s-7", *admin.args]) == 3
        assert "GET /api/v1/trees" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "--for", "soon"],
        ["a", "b"],
        ["a", "--all"],
        ["--all", "--session", "s"],
        ["--tree", "s", "--for", "1h"],
        ["--session", "s", "--caller", "key:1"],
    ],
)
def test_called_wrongly(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Called wrongly: exit code 3 (X-3)."""
    assert run(["kill", *arguments]) == 3
    assert "Usage: breakloop kill" in capsys.readouterr().err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_admin() as admin:
        admin.answers[PATH] = held(None)
        assert run(["kill", "code-fixer", "--json", *admin.args]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, **held(None)}


def test_one_that_was_never_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that was mistyped does not look like success (G-1)."""
    with fake_admin() as admin:
        admin.answers[PATH] = {**held(None), "seen": False, "did_you_mean": "code-fixers"}
        assert run(["kill", "code-fixer", *admin.args]) == 0
        admin.answers[PATH] = {**held(None), "seen": False}
        assert run(["kill", "code-fixer", *admin.args]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "note: no agent with this name is known; did you mean code-fixers?"
    assert said[3] == "note: no agent with this name is known"
