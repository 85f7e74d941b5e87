"""Bodies of Anthropic's interface, told from OpenAI's."""

from __future__ import annotations

from typing import Any

from breakloop.replay.formats.requests import is_theirs
from tests.each import each

PLAIN: dict[str, Any] = {"model": "x", "messages": [{"role": "user", "content": "Hello."}]}
USED = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]}]


@each(
    "body, response, theirs",
    [
        (PLAIN, {"type": "message", "content": []}, True),
        (PLAIN, [{"type": "message_start"}], True),
        (PLAIN, [{"object": "chat.completion.chunk"}], False),
        (PLAIN, {"choices": []}, False),
        ({**PLAIN, "system": "s", "max_tokens": 9}, {"choices": []}, False),
        ({**PLAIN, "system": "s", "max_tokens": 9}, None, True),
        ({**PLAIN, "anthropic_version": "v"}, None, True),
        ({**PLAIN, "messages": USED}, None, True),
        (PLAIN, None, False),
        ({**PLAIN, "max_tokens": 9}, None, False),
        ({"messages": "odd"}, None, False),
    ],
)
def test_whose_a_body_is(body: dict[str, Any], response: object, theirs: bool) -> None:
    """By the answer first, then by what only they have (X-5)."""
    assert is_theirs(body, response) is theirs
