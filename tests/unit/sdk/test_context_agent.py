"""Who is speaking, by the `with` block around."""

from __future__ import annotations

import asyncio

from breakloop.sdk.context import AgentContext, agent, current_agent


def test_blocks_nest_and_end() -> None:
    """The inner one goes before, and what it leaves open is the outer one's (C-7)."""
    assert current_agent() == AgentContext()
    with agent("a", session="s"):
        with agent("b"):
            assert current_agent() == AgentContext("b", "s")
        with agent(session="t"):
            assert current_agent() == AgentContext("a", "t")
        assert current_agent() == AgentContext("a", "s")
    assert current_agent() == AgentContext()


def test_tasks_have_their_own() -> None:
    """Two agents in one event loop are not mixed up (C-7)."""

    async def one(name: str, gate: asyncio.Barrier) -> str:
        with agent(name):
            await gate.wait()
            return current_agent().agent

    async def both() -> tuple[str, str]:
        gate = asyncio.Barrier(2)
        return await asyncio.gather(one("a", gate), one("b", gate))

    assert tuple(asyncio.run(both())) == ("a", "b")


def test_names_travel_as_header_fields() -> None:
    """Nothing that could end a line, and nothing that is not ASCII (Y-3)."""
    assert AgentContext("a", "s").headers() == {"X-Agent-Id": "a", "X-Agent-Session": "s"}
    assert AgentContext().headers() == {}
    assert AgentContext(" ").headers() == {}
    written = AgentContext("Zoë\r\nX-Evil: 1").headers()["X-Agent-Id"]
    assert written.isascii()
    assert written.isprintable()
    assert AgentContext("Zoë").headers() != AgentContext("Zoe").headers()


def test_a_parent_belongs_to_its_session() -> None:
    """It holds for the session that it was given with, and not for another one inside (G-6)."""
    with agent("lead", session="a", parent="root"):
        assert current_agent().headers()["X-Agent-Parent"] == "root"
        with agent("same"):
            assert current_agent() == AgentContext("same", "a", "root")
        with agent(session="b"):
            assert current_agent() == AgentContext("lead", "b")
        with agent(session="c", parent="a"):
            assert current_agent() == AgentContext("lead", "c", "a")
    assert "X-Agent-Parent" not in current_agent().headers()
