"""Sums begin at nothing, each for itself."""

from __future__ import annotations

from breakloop.model.events import Activity, AgentUse, LoopUse, add_use


def test_sums_begin_at_nothing_and_do_not_mix() -> None:
    """Two intervals never share a sum (G-1)."""
    first, second = Activity(), Activity()
    first.agents["p", "c", "a"] = AgentUse(requests=1)
    first.loops["p", "c", "a", "f"] = LoopUse(stopped=1)
    assert (second.agents, second.loops, second.shadow) == ({}, {}, {})
    assert AgentUse() == AgentUse(0, 0, 0, 0, 0, 0, 0.0, "")
    assert LoopUse() == LoopUse(0, 0, 0, 0, 0, 0)


def test_sums_add_up() -> None:
    """Numbers add up; of times and names the later stays (S-5)."""
    total = AgentUse(requests=1, cost_microusd=5, last_at=10.0, model="a")
    add_use(total, AgentUse(requests=2, cost_microusd=7, last_at=9.0, model=""))
    assert total == AgentUse(requests=3, cost_microusd=12, last_at=10.0, model="a")
    add_use(total, AgentUse(last_at=11.0, model="b"))
    assert (total.last_at, total.model) == (11.0, "b")
