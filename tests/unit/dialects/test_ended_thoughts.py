"""Thoughts that breakloop has ended are removed from the requests that follow (LD-13)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.dialects.body_changes import ENDED_THOUGHT
from breakloop.dialects.registry import DIALECTS

THOUGHT = {"type": "thinking", "thinking": "Again.", "signature": ENDED_THOUGHT}
SIGNED = {"type": "thinking", "thinking": "Now.", "signature": "EqQB"}
CALL = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
TEXT = {"type": "text", "text": f"I saw {ENDED_THOUGHT}."}


def messages(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": [*blocks]}]}


def cleaned(dialect: str, body: dict[str, Any]) -> Any:
    return json.loads(DIALECTS[dialect].without_ended_thoughts(json.dumps(body).encode()))


def test_anthropic() -> None:
    """Other blocks stay, those with a signature of the provider too, and a text that only mentions the mark."""
    assert cleaned("anthropic_messages", messages(THOUGHT, SIGNED, CALL)) == messages(SIGNED, CALL)
    assert cleaned("anthropic_messages", messages(THOUGHT, TEXT)) == messages(TEXT)
    assert cleaned("anthropic_messages", messages(TEXT)) == messages(TEXT)
    (left,) = cleaned("anthropic_messages", messages(THOUGHT))["messages"][1]["content"]
    assert left["type"] == "text"  # a message must not be empty
    assert left["text"]


def test_the_rest_of_the_body_stays_byte_for_byte() -> None:
    """As prompt caches require."""
    body = json.dumps(messages(THOUGHT, CALL), ensure_ascii=False, indent=2).encode()
    found = DIALECTS["anthropic_messages"].without_ended_thoughts(body)
    assert found.startswith(
        '{\n  "model": "m",\n  "messages": [{\n      "role": "user",\n      "content": "é"\n    },'.encode()
    )
    assert ENDED_THOUGHT.encode() not in found


def test_openai_responses() -> None:
    ended = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": ENDED_THOUGHT}
    asked = {"role": "user", "content": "Go on."}
    assert cleaned("openai_responses", {"input": [ended, asked]}) == {"input": [asked]}


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b'{"messages":7}', b'{"messages":[]}', b'{"input":"x"}', b'{"messages":[1]']
)
def test_other_shapes_stay_as_they_are(body: bytes) -> None:
    for dialect in ("anthropic_messages", "openai_responses", "openai_chat"):
        assert DIALECTS[dialect].without_ended_thoughts(body) == body
