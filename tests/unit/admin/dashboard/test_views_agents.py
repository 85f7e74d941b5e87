"""Agents: their states, and the form of their settings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from breakloop.admin.dashboard import views
from breakloop.engine.quarantine import AGENT, RUN, Hold
from breakloop.errors import OrderError
from breakloop.policy.compiled import CompiledKillSwitch
from tests import admin_records
from tests.admin_records import NOW, PROJECT

ONE = admin_records.agents()[0]
SWITCH = CompiledKillSwitch(0, "agent:id", ONE.agent)


def free(_agent: str) -> CompiledKillSwitch | None:
    return None


def hold(agent: str = ONE.agent, binds: str = AGENT, until: float = math.inf) -> Hold:
    return Hold(binds, PROJECT, "c", agent, NOW, until, "loops", "r" if binds == RUN else "")


def test_states() -> None:
    """Held before all, then switched off, then by when it was last seen."""
    assert views.state_of(ONE, [hold()], SWITCH, NOW) == views.QUARANTINED
    assert views.state_of(ONE, [hold(binds=RUN)], None, NOW) == views.RUNNING
    assert views.state_of(replace(ONE, settings={"active": False}), [], None, NOW) == views.OFF
    assert views.state_of(ONE, [], None, NOW + views.ACTIVE_S + 60) == views.INACTIVE
    assert views.state_of(ONE, [], SWITCH, NOW) == views.KILL_SWITCH


def test_rows_know_their_holds() -> None:
    """Only its own, in its own project; a filter by state leaves the rest out."""
    holds = [hold(), hold("other"), replace(hold(), project="elsewhere")]
    found = views.rows(admin_records.agents(), holds, free, NOW)
    assert [row.holds for row in found if row.agent.agent == ONE.agent] == [(holds[0],)]
    assert [row.agent.agent for row in views.rows(admin_records.agents(), holds, free, NOW, views.QUARANTINED)] == [
        ONE.agent
    ]


def test_dearest() -> None:
    """By what was spent today; shares are of the highest; whoever spent nothing is left out."""
    found = views.dearest(admin_records.agents(), 3)
    assert [(one.agent, round(share, 2)) for one, share in found] == [
        ("research-crew", 1.0),
        ("code-fixer", 0.53),
        ("pr-reviewer", 0.24),
    ]
    assert views.dearest([replace(ONE, today_microusd=0)]) == []


def test_ends() -> None:
    assert views.ends(hold()) is None
    assert views.ends(hold(until=5.0)) == 5.0


def test_the_form_shows_what_is_set() -> None:
    shown = {
        one.name: one.value for one in views.fields({"max_usd_per_run": 2.5, "rate_limit": {"requests_per_minute": 30}})
    }
    assert shown["active"] == "on"
    assert shown["max_usd_per_run"] == "2.5"
    assert shown["requests_per_minute"] == "30"
    assert shown["kill_switch_enabled"] == ""
    assert {one.name: one.value for one in views.fields({"active": False})}["active"] == ""


def test_the_form_gives_changes() -> None:
    """An empty field takes a setting away; what the form does not show stays; a default is not written down."""
    kept = {"rate_limit": {"requests_per_minute": 10, "burst": 4}, "kill_switch_window_size": 30}
    made = views.changes({"active": "on", "requests_per_minute": "20", "budget_usd_per_day": " 5.5 "}, kept)
    assert made == {
        "active": None,
        "budget_usd_per_day": 5.5,
        "allowed_hours": None,
        "timezone": None,
        "max_steps_per_run": None,
        "max_usd_per_run": None,
        "max_runs_per_hour": None,
        "max_usd_per_tree": None,
        "max_tokens_per_tree": None,
        "kill_switch_enabled": None,
        "rate_limit": {"requests_per_minute": 20, "burst": 4},
    }
    off = views.changes({"kill_switch_enabled": "on"}, kept)
    assert (off["active"], off["kill_switch_enabled"], off["rate_limit"]) == (False, True, None)


@pytest.mark.parametrize(("field", "text"), [("budget_usd_per_day", "a lot"), ("requests_per_minute", "1.5")])
def test_a_number_has_to_be_one(field: str, text: str) -> None:
    with pytest.raises(OrderError, match=f"{field}: must be a"):
        views.changes({field: text}, {})
