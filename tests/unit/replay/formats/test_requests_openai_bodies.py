"""Bodies of OpenAI's interfaces."""

from __future__ import annotations

import pytest

from breakloop.replay.formats.requests import is_request, path_of


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
    assert is_request(body)
    assert path_of(body, None) == path


@pytest.mark.parametrize("body", [{}, {"messages": "x"}, {"input": "x"}, {"model": "m"}, {"model": "m", "input": 1}])
def test_what_is_no_body(body: dict[str, object]) -> None:
    """An input without a model may be anything (X-5)."""
    assert not is_request(body)
