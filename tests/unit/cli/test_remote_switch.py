"""`breakloop switch`: set, list, lift."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.cli.main import run
from tests.fake_admin import fake_admin

SWITCH: dict[str, Any] = {
    "id": "ks-1", "scope_key": "agent:id", "scope_value": "scraper", "route": "", "reason": "too many", "expires_at": None,
    "by": "ada", "since": 1_800_000_000.0,
}  # fmt: skip


def test_set(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to lift it again (K-3)."""
    monkeypatch.setattr("breakloop.cli.remote.SystemClock.now", lambda _: 1_800_000_000.0)
    with fake_admin() as admin:
        admin.answers["POST /kill-switches"] = (201, {"id": "ks-1", "shared": True})
        more = ["--route", "/v1/*", "--reason", "too many", "--for", "30m"]
        assert run(["switch", "set", "agent:id", "scraper", *more, *admin.args]) == 0
        assert admin.asked[0][1] == {
            "scope_key": "agent:id",
            "scope_value": "scraper",
            "route": "/v1/*",
            "reason": "too many",
            "expires_at": 1_800_001_800.0,
        }
        admin.answers["POST /kill-switches"] = (201, {"id": "ks-2", "shared": False})
        assert run(["switch", "set", "agent:id", "scraper", *admin.args]) == 0
        assert admin.asked[1][1]["expires_at"] is None
    assert capsys.readouterr().out.splitlines() == [
        "ks-1 is set, until 2027-01-15 08:30:00Z: breakloop switch lift ks-1",
        "ks-2 is set, until it is lifted: breakloop switch lift ks-2",
        "note: other instances are unreachable; they apply the change when they are back",
    ]


def test_a_wrong_descriptor(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong descriptor: exit code 1, with the field (X-3)."""
    with fake_admin() as admin:
        error = {"message": "is no descriptor", "field": "scope_key"}
        admin.answers["POST /kill-switches"] = (400, {"error": error})
        assert run(["switch", "set", "nonsense", "x", *admin.args]) == 1
    assert capsys.readouterr().err == f"{admin.url}: scope_key: is no descriptor\n"


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    """List (K-3)."""
    other = {**SWITCH, "id": "ks-2", "route": "/v1/*", "expires_at": 1_800_003_600.0, "reason": ""}
    with fake_admin() as admin:
        admin.answers["GET /kill-switches"] = {"kill_switches": [SWITCH, other]}
        assert run(["switch", "list", *admin.args]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "id     stops              paths   since                  until                  by    reason",
        "─" * 94,
        "ks-1   agent:id=scraper   all     2027-01-15 08:00:00Z   lifted                 ada   too many",
        "ks-2   agent:id=scraper   /v1/*   2027-01-15 08:00:00Z   2027-01-15 09:00:00Z   ada",
    ]


def test_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_admin() as admin:
        admin.answers["GET /kill-switches"] = {"kill_switches": []}
        assert run(["switch", "list", *admin.args]) == 0
    assert capsys.readouterr().out == "no kill switches are set at run time (the bundle may have its own)\n"


def test_lift(capsys: pytest.CaptureFixture[str]) -> None:
    """Lift (K-3)."""
    with fake_admin() as admin:
        admin.answers["DELETE /kill-switches/ks-1"] = {"shared": False}
        assert run(["switch", "lift", "ks-1", *admin.args]) == 0
        assert admin.asked == [("DELETE /kill-switches/ks-1", None)]
        assert run(["switch", "lift", "ks-9", *admin.args]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "ks-1 is lifted"
    assert said.out.splitlines()[1].startswith("note: other instances")
    assert said.err == f"{admin.url}: there is nothing here\n"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON: of all three (X-3)."""
    with fake_admin() as admin:
        admin.answers |= {
            "POST /kill-switches": (201, {"id": "ks-1", "shared": True}),
            "GET /kill-switches": {"kill_switches": [SWITCH]},
            "DELETE /kill-switches/ks-1": {"shared": True},
        }
        assert run(["switch", "set", "agent:id", "x", "--json", *admin.args]) == 0
        assert json.loads(capsys.readouterr().out) == {"ok": True, "id": "ks-1", "shared": True}
        assert run(["switch", "list", "--json", *admin.args]) == 0
        assert json.loads(capsys.readouterr().out) == {"ok": True, "kill_switches": [SWITCH]}
        assert run(["switch", "lift", "ks-1", "--json", *admin.args]) == 0
        assert json.loads(capsys.readouterr().out) == {"ok": True, "shared": True}
