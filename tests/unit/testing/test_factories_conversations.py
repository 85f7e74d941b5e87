"""Conversations that grow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.testing.factories import PATHS, Conversation, conversation
from tests.unit.dialects.parsing import read_chat

DIALECTS = ["openai_chat", "openai_responses", "anthropic_messages", "gemini"]


def chat(talk: Conversation, tail: int = 3) -> Any:
    found = read_chat("POST", PATHS[talk.dialect], json.dumps(talk.request()).encode(), tail)
    assert found is not None
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_same_talk_in_every_dialect(dialect: str) -> None:
    talk = Conversation("Do it.", system="Be brief.", model="stand-in", dialect=dialect)
    talk.tool("look", {"q": 1}, "found", text="I look.", failed=True).assistant("Done.").user("Thanks.")
    found = chat(talk, 9)
    assert (found.dialect, found.model, found.fallback) == (dialect, "stand-in", "")
    texts = "\n".join(message.text for message in found.tail)
    for said in ("Do it.", "I look.", "found", "Done.", "Thanks."):
        assert said in texts
    assert [call.name for message in found.tail for call in message.calls] == ["look"]
    assert "Be brief." in json.dumps(talk.request())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_healthy_agent_never_repeats_its_tail(dialect: str) -> None:
    tails = [
        str(read_chat("POST", PATHS[dialect], json.dumps(one).encode(), 3))
        for one in conversation(dialect=dialect).requests(20)
    ]
    assert len(set(tails)) == len(tails) == 20


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_loop_repeats_its_tail_with_new_ids(dialect: str) -> None:
    talk = conversation(2, dialect=dialect).repeat(2)
    before, body = chat(talk, 4).tail, json.dumps(talk.request())
    talk.repeat()
    assert chat(talk, 4).tail == before
    assert json.dumps(talk.request()) != body
    if dialect == "openai_chat":
        ids = [call["id"] for message in talk.items() for call in message.get("tool_calls", ())]
        assert ids == sorted(set(ids))


def test_it_grows() -> None:
    sizes = [len(one["messages"]) for one in conversation(1).requests(3)]
    assert sizes == [4, 6, 8]  # system, task, and a call with its result for each step
    assert conversation().request(stream=True)["stream"] is True
    assert conversation(3).request() == conversation(3).request()


def test_a_dialect_without_conversations() -> None:
    with pytest.raises(ValueError, match="no conversations in mcp: one of openai_chat, "):
        conversation(dialect="mcp")
