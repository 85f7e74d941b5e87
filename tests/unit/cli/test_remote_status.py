"""`breakloop status`: one screen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.cli.main import run
from tests.fake_admin import Admin, fake_admin

STATUS: dict[str, Any] = {
    "version": "0.1.0", "url": "http://127.0.0.1:8787", "uptime_seconds": 98_200.0, "state": "memory", "degraded": False,
    "workers": 1, "tally": {}, "you": {"name": "ada", "role": "operator"},
}  # fmt: skip
BUNDLE: dict[str, Any] = {"version": 14, "digest": "d", "origin": "policy.yaml", "loaded_at": 1_800_000_000.0, "text": "t", "problems": []}  # fmt: skip
TOTALS: dict[str, Any] = {
    "requests": 12_345, "denied": 40, "loops": 3, "incidents_open": 1, "agents": 5, "input_tokens": 1, "output_tokens": 2,
    "cost_microusd": 4_120_000, "saved_requests": 40, "saved_microusd": 1_640_000,
}  # fmt: skip


def answering(admin: Admin, **changes: Any) -> Admin:
    admin.answers = {
        "GET /status": {**STATUS, **changes.get("status", {})},
        "GET /bundle": {**BUNDLE, **changes.get("bundle", {})},
        "GET /totals": {"since": 0.0, "totals": {**TOTALS, **changes.get("totals", {})}},
        "GET /quarantine": {"holds": changes.get("holds", [])},
    }
    return admin


def test_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """Version, bundle, state, what was stopped and saved (X-3)."""
    with fake_admin() as admin:
        assert run(["status", *answering(admin, holds=[{}]).args]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "breakloop 0.1.0 on http://127.0.0.1:8787",
        "  up         1 d 3 h",
        "  processes  1",
        "  bundle     version 14 from policy.yaml, loaded 2027-01-15 08:00:00Z",
        "  state      memory",
        "  requests   12,345, 40 of them denied",
        "  agents     5, 1 held",
        "  loops      3, 1 of them open",
        "  spent      $4.12",
        "  saved      $1.64, 40 requests stopped",
    ]


def test_what_is_wrong_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 for a script that asks (X-3, S-3)."""
    with fake_admin() as admin:
        changed = answering(admin, status={"state": "redis", "degraded": True}, bundle={"problems": [{}, {}]})
        assert run(["status", *changed.args]) == 1
    said = capsys.readouterr().out.splitlines()
    assert "  state      redis, degraded" in said
    assert said[-2:] == [
        "! the shared store is unavailable: each instance counts on its own",
        "! the new bundle is rejected (2 problems); an older one is in force",
    ]


def test_without_a_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_admin() as admin:
        assert run(["status", *answering(admin, bundle={"version": None}, totals={"denied": 0}).args]) == 1
    said = capsys.readouterr().out.splitlines()
    assert "  bundle     none" in said
    assert "  requests   12,345" in said
    assert said[-1] == "! no bundle is loaded: requests get 503"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything but the bundle's text (X-3)."""
    with fake_admin() as admin:
        assert run(["status", *answering(admin).args, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert run(["status", *answering(admin, status={"degraded": True}).args, "--json"]) == 1
        wrong = json.loads(capsys.readouterr().out)
    bundle = {name: value for name, value in BUNDLE.items() if name != "text"}
    assert said == {"ok": True, "troubles": [], **STATUS, "bundle": bundle, "totals": TOTALS, "held": 0}
    assert (wrong["ok"], len(wrong["troubles"])) == (False, 1)
