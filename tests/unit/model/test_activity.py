"""Sums begin at nothing, each for itself."""

from __future__ import annotations

from breakloop.model.activity import Activity, AgentUse, LoopUse


def test_sums_begin_at_nothing_and_do_not_mix() -> None:
    """G-1: two intervals never share a sum."""
    first, second = Activity(), Activity()
    first.agents["p", "c", "a"] = AgentUse(requests=1)
    first.loops["p", "c", "a", "f"] = LoopUse(stopped=1)
    assert (second.agents, second.loops, second.shadow) == ({}, {}, {})
    assert AgentUse() == AgentUse(0, 0, 0, 0, 0, 0, 0.0, "")
    assert LoopUse() == LoopUse(0, 0, 0, 0, 0, 0)
