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


def test_the_budget_of_a_tree_is_reset() -> None:
    """The tree is named as it is listed (G-6)."""
    world = full()
    tree = {"project": "default", "caller": "key:4f2a", "root": "nightly-refactor"}
    assert "The tree has its whole budget again." in act(world, "tree_budget.reset", **tree)[2]
    assert world.reset == [("key:4f2a", "nightly-refactor")]
    assert world.history.audit_rows[0].action == "tree_budget.reset"
    assert act(world, "tree_budget.reset", **{**tree, "root": "another"})[0] == 404


def test_a_part_of_a_tree_is_stopped_and_released() -> None:
    """With all that it started, as the tree's page names it (G-6)."""
    world = full()
    which = {"project": "default", "caller": "key:4f2a", "root": "nightly-refactor", "session": "code-03"}
    said = act(world, "tree.kill", **which, reason="too dear")[2]
    assert "3 agents of the tree stopped." in said
    runs = {one.run for one in world.operator.holds() if one.binds == "run"}
    assert runs == {"key:4f2a|code-03", "key:4f2a|test-04", "key:4f2a|test-05"}
    assert world.history.audit_rows[0].action == "tree.kill"
    assert said.count("/ask/tree.release") == 2 * 3  # each the link, and for the dialog
    assert "3 agents of the tree released." in act(world, "tree.release", **which)[2]
    assert not any(one.binds == "run" for one in world.operator.holds())
    assert act(world, "tree.kill", **{**which, "session": "another"}, reason="r")[0] == 404
    assert act(world, "tree.kill", **which)[0] == 400


def test_promote() -> None:
    """The report leads to a decision: from then on it denies, and the button is gone."""
    world = full()
    text = act(world, "policy.promote", policy="support-shadow")[2]
    assert "support-shadow is enforced." in text
    assert world.bundles.promoted == ["support-shadow"]
    assert "/ask/policy.promote" not in text
    assert act(world, "policy.promote", policy="support-shadow")[0] == 400
