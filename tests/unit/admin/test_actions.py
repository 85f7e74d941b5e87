"""Tests of `admin.actions`: done, written down, and shared; in this order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from breakloop.admin.actions import Actions
from breakloop.admin.auth import AdminIdentity
from breakloop.admin.errors import ApiError
from breakloop.errors import OrderError
from tests.admin_world import World, full

ADA = AdminIdentity("ada", "operator")


@pytest.fixture
def world() -> World:
    return full()


def _actions(world: World) -> Actions:
    return Actions(world.services, ADA)


def test_an_order_waits_until_it_is_shared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the audit log has it before (K-3)."""
    told: list[str] = []

    async def acknowledged(_timeout_s: float = 1.0) -> bool:
        told.append(world.history.audit_rows[0].action)
        return False

    monkeypatch.setattr(world.operator, "acknowledged", acknowledged)
    hold, stopped = asyncio.run(_actions(world).kill("default", "planner", "spins"))
    assert (hold.agent, hold.by, stopped.shared) == ("planner", "ada", False)
    assert told == ["agent.kill"]
    entry = world.history.audit_rows[0]
    assert (entry.target, dict(entry.detail)) == ("default/planner", {"reason": "spins", "expires_at": None})


def test_what_is_refused_is_not_written_down(world: World) -> None:
    before = len(world.history.audit_rows)
    with pytest.raises(OrderError):
        asyncio.run(_actions(world).kill("default", "", "spins"))
    with pytest.raises(ApiError):
        asyncio.run(_actions(world).lift_switch("nope"))
    assert len(world.history.audit_rows) == before


def test_settings_are_merged_kept_and_put_in_force(world: World) -> None:
    """At run time, over the bundle's (G-1)."""
    wanted = asyncio.run(_actions(world).set_agent("default", "invoice-bot", {"active": False, "allowed_hours": None}))
    assert wanted == {"budget_usd_per_day": 20.0, "active": False}
    assert world.operator.agent_settings()["invoice-bot"] == wanted
    found = world.history.agent("default", "invoice-bot")
    assert found is not None
    assert found.settings == wanted


@pytest.mark.parametrize("changes", [{"budget": 5}, {"unknown": None}, {"budget_usd_per_day": 0}, {"timezone": "Mars/Base"}])  # fmt: skip
def test_settings_are_checked_as_the_bundles(world: World, changes: dict[str, Any]) -> None:
    with pytest.raises(OrderError):
        asyncio.run(_actions(world).set_agent("default", "planner", changes))
    found = world.history.agent("default", "planner")
    assert found is not None
    assert found.settings == {}


def test_an_agent_without_a_name_has_no_settings(world: World) -> None:
    with pytest.raises(ApiError, match="must not be empty"):
        asyncio.run(_actions(world).set_agent("default", " ", {}))


def test_a_webhooks_address_is_not_written_down(world: World) -> None:
    """Of the URL only its host; the rest may be a secret (Y-1)."""
    url = "https://user:pass@hooks.example.com/T0KEN?k=T0KEN"
    made = asyncio.run(_actions(world).add_webhook(url, ["loop.detected"], allow_private=False))
    entry = world.history.audit_rows[0]
    assert entry.target == made["id"]
    assert entry.detail["host"] == "hooks.example.com"
    assert "T0KEN" not in str(entry)
    assert "pass" not in str(entry)
    assert made["secret"] not in str(entry)


def test_long_texts_are_cut_in_the_log(world: World) -> None:
    asyncio.run(_actions(world).audit("x.y", "t" * 900, {"text": "x" * 900, "number": 7}))
    entry = world.history.audit_rows[0]
    assert (len(entry.target), len(entry.detail["text"]), entry.detail["number"]) == (300, 300, 7)


def test_a_snooze_ends(world: World) -> None:
    """A snooze ends (LD-6)."""
    until = asyncio.run(_actions(world).snooze("9b0c44d1e2a7f350", 600))
    assert until == world.clock.now() + 600
    assert world.snoozed == {"9b0c44d1e2a7f350": until}


def test_the_stop_webhook_is_called(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the agent that is killed, with who killed it and why (K-4)."""
    hooks = {"planner": ("https://agents.example/stop", False)}
    called: list[Any] = []
    monkeypatch.setattr(world.operator, "stop_webhook", hooks.get)
    monkeypatch.setattr(
        world.services.alerts, "call_stop", lambda url, told, **more: called.append((url, told, more)), raising=False
    )
    asyncio.run(_actions(world).kill("default", "planner", "spins"))
    asyncio.run(_actions(world).kill("default", "other", "spins"))
    told = {"event": "agent.killed", "project": "default", "agent": "planner", "reason": "spins", "by": "ada"}
    assert called == [("https://agents.example/stop", told, {"allow_private": False})]
