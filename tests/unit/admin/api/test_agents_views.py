"""Tests of views of agents and orders: what has no end is null."""

from __future__ import annotations

import math

from breakloop.admin.api.agents import agent_view, hold_view
from breakloop.admin.api.orders import override_view, switch_view
from breakloop.engine.operator import OverrideOrder, SwitchOrder
from breakloop.engine.quarantine import NAME, Hold
from breakloop.policy.compiled import CompiledKillSwitch
from tests.admin_records import agents


def test_a_hold_without_an_end() -> None:
    hold = Hold(NAME, "p", "c", "a", 5.0, math.inf, "spins", "run-1", ("key",), "ada")
    shown = hold_view(hold)
    assert (shown.until, shown.since, shown.reason, shown.by, shown.run) == (None, 5.0, "spins", "ada", "run-1")
    assert not hasattr(shown, "clears")
    assert hold_view(Hold(NAME, "p", "c", "a", 5.0, 9.0, "x")).until == 9.0


def test_switches_and_overrides_without_an_end() -> None:
    switch = SwitchOrder("1", "agent:id", "a", "/v1/*", "why", math.inf, "ada", 5.0)
    assert (switch_view(switch).expires_at, switch_view(switch).scope_value) == (None, "a")
    override = OverrideOrder("global_shadow", "why", 9.0, "ada", 5.0)
    assert (override_view(override).expires_at, override_view(override).name) == (9.0, "global_shadow")


def test_an_agent_with_what_holds_it() -> None:
    one = agents()[0]
    hold = hold_view(Hold(NAME, one.project, "", one.agent, 5.0, 9.0, "x"))
    shown = agent_view(one, [hold], CompiledKillSwitch(0, "agent:id", one.agent))
    assert shown.stopped_by == "kill_switches[0]"
    assert (shown.agent, shown.cost_microusd, shown.holds) == (one.agent, one.cost_microusd, [hold])
