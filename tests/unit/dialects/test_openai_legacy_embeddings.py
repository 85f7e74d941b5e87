"""OpenAI embeddings: one message with all that is to be embedded."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from breakloop.model.call import Chat, Message
from tests.unit.dialects import parsing

read = partial(parsing.chat, "openai_embeddings")
opening = partial(parsing.opening, "openai_embeddings")


def test_a_plain_request() -> None:
    """A batch is one message, so that batches with the same end do not look the same (C-8)."""
    for said, expected in (("a", "a"), (["a", "b", "c", "d"], "a\nb\nc\nd")):
        raw = json.dumps({"model": "e", "input": said, "encoding_format": "base64"}).encode()
        assert read(raw, 3) == Chat("openai_embeddings", "e", (Message("input", expected),), 1)


def test_tokens_count_by_digest() -> None:
    """Token lists are told apart without their text (C-8)."""
    chats = [read(json.dumps({"model": "e", "input": tokens}).encode(), 3) for tokens in ([1], [2], [[1]])]
    assert len(set(chats)) == 3
    assert all(chat is not None and chat.tail[0].text.startswith("<tokens:") for chat in chats)


@pytest.mark.parametrize("value", [{}, {"model": "m"}, {"input": "x"}, {"model": None, "input": "x"}])
def test_other_apis_have_embeddings_too(value: Any) -> None:
    """Without model and input it is plain HTTP (C-8)."""
    assert read(json.dumps(value).encode(), 3) is None


def test_odd_types() -> None:
    """A model of another type does not hide the input (C-9)."""
    chat = read(b'{"model":7,"input":{"x":1}}', 3)
    assert chat == Chat("openai_embeddings", "7", (Message("input", '{"x":1}'),), 1, fallback="tolerant")


def test_no_opening() -> None:
    """There is no conversation (C-7)."""
    assert opening(b'{"model":"m","input":"x"}') == ""
