"""Bodies of OpenAI's interfaces."""

from __future__ import annotations

import pytest

from breakloop.replay.formats import dialogue


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"messages": []}, "/v1/chat/completions"),
        ({"model": "m", "input": "hello"}, "/v1/responses"),
        ({"model": "m", "input": [{"role": "user"}]}, "/v1/responses"),
        ({"model": "m", "prompt": "hello"}, "/v1/completions"),
    ],
)
def test_where_bodies_go(body: dict[str, object], path: str) -> None:
    """Where bodies go (X-5)."""
    assert dialogue.is_openai(body)
    assert dialogue.path_of(body) == path


@pytest.mark.parametrize("body", [{}, {"messages": "x"}, {"input": "x"}, {"model": "m"}, {"model": "m", "input": 1}])
def test_what_is_no_body(body: dict[str, object]) -> None:
    """An input without a model may be anything (X-5)."""
    assert not dialogue.is_openai(body)
