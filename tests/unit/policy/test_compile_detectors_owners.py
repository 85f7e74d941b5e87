"""Whose windows there are."""

from __future__ import annotations

from typing import Any

from breakloop.policy.compile_detectors import WindowOwners
from tests.builders import bundle, chat, user, world

KEY = {"authorization": "Bearer k"}


def owners() -> WindowOwners:
    return WindowOwners(world(bundle()).descriptors)


def asked(text: str = "hello", **headers: str) -> Any:
    return chat(user(text), headers={**KEY, **{name.replace("_", "-"): value for name, value in headers.items()}})


def test_a_session_belongs_to_its_caller() -> None:
    """Whoever picks somebody else's id gets a session of his own (C-7)."""
    read = owners()
    mine, other = asked(x_agent_session="s"), asked(x_agent_session="s", authorization="Bearer other")
    assert read.session(mine).startswith("s:")
    assert read.session(mine) != read.session(other)
    assert read.session(asked(x_agent_session="s:1")) != read.session(asked(x_agent_session="s"))


def test_agents_are_told_apart() -> None:
    read = owners()
    assert read.agent(asked(x_agent_id="a")) != read.agent(asked(x_agent_id="b"))
    assert read.agent(asked("one")) == read.agent(asked("two"))


def test_only_unnamed_sessions_have_a_lane() -> None:
    """Derived from how the conversation opens (C-7)."""
    read = owners()
    assert read.unnamed(asked()) == read.agent(asked())
    assert read.unnamed(asked(x_agent_session="s")) == ""


def test_only_calls_that_name_where_they_come_from_have_a_parent() -> None:
    read = owners()
    assert read.parent(asked()) == ""
    assert read.parent(asked(x_agent_parent="root")).startswith("c:")
    assert read.parent(asked(x_agent_parent="root", x_agent_id="a")) == read.parent(asked(x_agent_parent="other"))
