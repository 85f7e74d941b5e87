"""How many answers a request asks for at once, in every dialect; and what can be read without its messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.dialects import registry
from breakloop.model.call import UNREAD
from breakloop.testing import PATHS, Conversation
from tests.each import each
from tests.unit.dialects.parsing import read_chat
from tests.unit.dialects.recorded.shape import dump

SAID = [{"role": "user", "content": "hi"}]
CONTENTS = [{"parts": [{"text": "hi"}]}]
ODD = {"model": 7}  # sends the body to the tolerant step


@each(
    "dialect, body, answers",
    [
        ("openai_chat", {"messages": SAID}, 1),
        ("openai_chat", {"messages": SAID, "n": None}, 1),
        ("openai_chat", {"messages": SAID, "n": 3}, 3),
        ("openai_chat", {"messages": SAID, "n": 3} | ODD, 3),
        ("openai_chat", {"messages": SAID, "n": 3.0}, 3),
        ("openai_chat", {"messages": SAID, "n": 0}, 1),
        ("openai_chat", {"messages": SAID, "n": -5}, 1),
        ("openai_chat", {"messages": SAID, "n": "many"}, 1),
        ("openai_completions", {"model": "m", "prompt": "hi"}, 1),
        ("openai_completions", {"model": "m", "prompt": "hi", "n": 2}, 2),
        ("openai_completions", {"model": "m", "prompt": "hi", "n": 2, "best_of": 5}, 5),
        ("openai_completions", {"model": 7, "prompt": "hi", "n": 2, "best_of": 5}, 5),
        ("openai_completions", {"model": "m", "prompt": ["a", "b", "c"], "n": 2}, 6),
        ("openai_completions", {"model": "m", "prompt": [[1, 2], [3]]}, 2),
        ("openai_completions", {"model": "m", "prompt": [1, 2, 3]}, 1),  # the tokens of one
        ("openai_completions", {"model": "m", "prompt": []}, 1),
        ("gemini", {"contents": CONTENTS}, 1),
        ("gemini", {"contents": CONTENTS, "generationConfig": {"candidateCount": 4}}, 4),
        ("gemini", {"contents": CONTENTS, "generation_config": {"candidate_count": 4}}, 4),
        ("gemini", {"contents": CONTENTS, "generationConfig": {"candidateCount": 4, "maxOutputTokens": "9"}}, 4),
        ("gemini", {"contents": CONTENTS, "generationConfig": "odd"}, 1),
        # The others have one answer, whatever is sent; budgets for thinking are within Anthropic's max_tokens.
        ("anthropic_messages", {"model": "m", "messages": SAID, "max_tokens": 9, "n": 3}, 1),
        ("openai_responses", {"model": "m", "input": "hi", "n": 3}, 1),
        ("openai_embeddings", {"model": "m", "input": ["a", "b"]}, 1),
    ],
)
def test_how_many_answers(dialect: str, body: dict[str, Any], answers: int) -> None:
    """Each may be as long as the request lets one be (L-3)."""
    chat = read_chat("POST", PATHS[dialect], dump(body), 3)
    assert chat is not None
    assert chat.answers == answers


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic_messages", "gemini"])
@pytest.mark.parametrize("odd", [False, True])
def test_a_head_is_the_same_without_messages(dialect: str, odd: bool) -> None:
    """Limits need none of them, and decoding them costs most (L-3)."""
    request = Conversation(dialect=dialect).request()
    if odd:
        request["stream"] = "yes"
        request["user"] = "\ud800"
    taken = registry.parse("POST", PATHS[dialect], json.dumps(request).encode())
    assert taken is not None
    chat, head = taken.chat(3), taken.head()
    assert chat is not None
    assert head.tail is UNREAD
    assert head._replace(tail=chat.tail) == chat
