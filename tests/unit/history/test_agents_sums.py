"""What one batch says of every agent."""

from __future__ import annotations

from breakloop.history.agents import AgentSums, summed
from breakloop.model.events import Activity, AgentUse, LoopUse
from tests.histories import detected, told

T = 1_800_000_000.0


def test_callers_of_an_agent_are_added_up() -> None:
    """An agent is known by its project and name, whoever calls (G-1)."""
    activity = Activity(
        agents={
            ("p", "key:1", "bot"): AgentUse(3, 1, 1, 10, 20, 30, T + 1, "old"),
            ("p", "key:2", "bot"): AgentUse(1, 0, 0, 1, 2, 3, T + 2, "new"),
            ("q", "key:1", "bot"): AgentUse(requests=5),
        },
        loops={("p", "key:1", "bot", "f"): LoopUse(stopped=2, stopped_microusd=7, passed=9)},
    )
    batch = summed([], activity, T)
    assert batch.agents["p", "bot"] == AgentSums(4, 1, 1, 11, 22, 33, T + 2, "new", 0, 2, 7)
    assert batch.agents["q", "bot"] == AgentSums(requests=5, last_at=T)
    assert batch.callers == {("p", "bot", "key:1"): T + 1, ("p", "bot", "key:2"): T + 2, ("q", "bot", "key:1"): T}


def test_loops_are_counted_unless_in_shadow() -> None:
    events = [detected(T + 1), detected(T + 2), detected(T + 3, shadow=True), told("limit.exceeded", T, agent="bot")]
    batch = summed(events, Activity(), T)
    assert batch.agents == {("default", "bot"): AgentSums(loops=2, last_at=T + 2)}


def test_a_loop_alone_is_seen_now() -> None:
    batch = summed([], Activity(loops={("p", "c", "bot", "f"): LoopUse(stopped=1)}), T)
    assert batch.agents["p", "bot"] == AgentSums(saved_requests=1, last_at=T)


def test_projects_are_the_sums_of_their_agents() -> None:
    activity = Activity(
        agents={
            ("p", "c", "a"): AgentUse(1, 2, 3, 4, 5, 6, T, "m"),
            ("p", "c", "b"): AgentUse(10, 20, 30, 40, 50, 60, T, "m"),
            ("q", "c", "a"): AgentUse(requests=7),
        }
    )
    assert summed([detected(T, "a", project="p")], activity, T).projects() == {
        "p": AgentSums(11, 22, 33, 44, 55, 66, loops=1),
        "q": AgentSums(requests=7),
    }
