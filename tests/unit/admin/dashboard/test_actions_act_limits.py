"""Kill switches, overrides, breakers and promotions from the dashboard (K-3, CB-2)."""

from __future__ import annotations

from tests.admin_records import NOW
from tests.admin_world import full
from tests.unit.admin.dashboard.test_actions_acts import act


def test_switches_are_set_and_lifted() -> None:
    world = full()
    where = act(world, "switch.set", scope_key="header:x-team", scope_value="blue", reason="spends", **{"for": "900"})
    assert "Kill switch on header:x-team=blue is set." in where[2]
    made = next(one for one in world.operator.switches() if one.scope_value == "blue")
    assert (made.reason, made.expires_at, made.by) == ("spends", NOW + 900, "ada")
    assert "is lifted" in act(world, "switch.lift", id=made.id)[2]
    assert [one.scope_value for one in world.operator.switches()] == ["sql-helper"]
    assert act(world, "switch.lift", id=made.id)[0] == 404
    assert act(world, "switch.set", scope_key="nonsense", scope_value="x", reason="y")[0] == 400
    assert [one.action for one in world.history.audit_rows[:2]] == ["switch.lift", "switch.set"]


def test_overrides_have_to_end() -> None:
    world = full()
    assert act(world, "override.set", override="global_shadow", reason="roll-out")[0] == 400
    assert (
        "global_shadow is on." in act(world, "override.set", override="global_shadow", reason="r", **{"for": "900"})[2]
    )
    assert [(one.name, one.expires_at) for one in world.operator.overrides()] == [("global_shadow", NOW + 900)]
    assert "global_shadow is off." in act(world, "override.lift", override="global_shadow")[2]
    assert world.operator.overrides() == []


def test_a_breaker_is_closed() -> None:
    world = full()
    key = "cb:default:spend-guard:per-team:blue"
    assert "The breaker is closed." in act(world, "breaker.reset", policy="spend-guard", key=key)[2]
    assert world.reset == [("spend-guard", key)]
    assert act(world, "breaker.reset", policy="spend-guard", key="cb:default:spend-guard:per-team:red")[0] == 404


def test_promote() -> None:
    """The report leads to a decision: from then on it denies, and the button is gone."""
    world = full()
    text = act(world, "policy.promote", policy="support-shadow")[2]
    assert "support-shadow is enforced." in text
    assert world.bundles.promoted == ["support-shadow"]
    assert "/ask/policy.promote" not in text
    assert act(world, "policy.promote", policy="support-shadow")[0] == 400
