"""Which reader reads the newest step of a request."""

from __future__ import annotations

import json

import pytest

from breakloop.dialects import registry
from breakloop.model.call import Step
from tests.unit.dialects.parsing import newest_step

BODIES = {
    "openai_chat": {"messages": [{"role": "user", "content": "go"}]},
    "openai_responses": {"model": "m", "input": "go"},
    "openai_completions": {"model": "m", "prompt": "go"},
    "anthropic_messages": {"model": "m", "messages": [{"role": "user", "content": "go"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
}


@pytest.mark.parametrize("dialect", BODIES)
def test_each_dialect(dialect: str) -> None:
    """The same first step, however it is written (C-8, LD-4)."""
    sent = json.dumps(BODIES[dialect]).encode()
    found = newest_step(dialect, sent)
    assert found is not None
    stored = dialect == "openai_responses"  # unless the request says otherwise
    assert found == Step("", (), (), (), ("go",), (), 1, len(sent), stored=stored)


def test_odd_bodies_are_read_once_more_and_no_oftener() -> None:
    """What the chat had to be read tolerantly for, the step need not find out again (C-9, Q-1)."""
    sent = b'{"messages":[{"role":"assistant","content":"a"},"b"]}'
    taken = registry.DIALECTS["openai_chat"].parse(sent)
    assert taken is not None
    typed, chat, loose = taken.parts, taken.chat(1), taken.parts
    assert chat is not None
    assert (chat.fallback, typed is loose) == ("tolerant", False)
    step = taken.newest_step()
    assert step is not None
    assert (step.said, step.users) == ("a", ("b",))
    assert taken.parts is loose


def test_mcp() -> None:
    """MCP calls are steps too (C-8)."""
    found = newest_step("mcp", b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "f"}}')
    assert found is not None
    assert found.calls[0].name == "f"


def test_nothing_to_read() -> None:
    """Embeddings, and bodies that are none (C-9)."""
    assert newest_step("openai_embeddings", b'{"model": "m", "input": "go"}') is None
    for dialect in BODIES:
        assert newest_step(dialect, b"") is None
        assert newest_step(dialect, b"\xff\xfe") is None


@pytest.mark.parametrize("dialect", [*BODIES, "mcp"])
def test_nested_too_deep(dialect: str) -> None:
    """Nested too deep: never raises (C-9)."""
    field = {"openai_responses": "input", "gemini": "contents", "openai_completions": "prompt"}.get(dialect, "messages")
    for depth in (900, 5_000, 100_000):
        deep = b"[" * depth + b"]" * depth
        newest_step(dialect, b'{"jsonrpc":"2.0","method":"tools/call","model":"m","params":' + deep + b"}")
        newest_step(
            dialect,
            b'{"model":"m","' + field.encode() + b'":[{"role":"user","content":' + deep + b',"parts":' + deep + b"}]}",
        )
