"""Anthropic Messages requests: blocks, results and their error flag, what does not count."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from breakloop.model.call import Chat, Message, ToolCall
from tests.unit.dialects import parsing

read = partial(parsing.chat, "anthropic_messages")
opening = partial(parsing.opening, "anthropic_messages")

MARK = {"cache_control": {"type": "ephemeral"}}


def body(*messages: Any, **more: Any) -> bytes:
    return json.dumps({"model": "claude", "max_tokens": 64, "messages": messages, **more}).encode()


def blocks(*content: Any, role: str = "user") -> Message:
    chat = read(body({"role": role, "content": content}), 3)
    assert chat is not None
    return chat.tail[-1]


def test_a_plain_request() -> None:
    """Model, messages, stream and the token limit; the system prompt is no message (C-8)."""
    chat = read(body({"role": "user", "content": "hi"}, system="be kind", stream=True), 3)
    assert chat == Chat("anthropic_messages", "claude", (Message("user", "hi"),), 1, stream=True, max_tokens=64)


def test_text_and_calls_of_the_model() -> None:
    """Text is joined, calls are read in order with sorted arguments, thinking is left out (C-8)."""
    said = blocks(
        {"type": "thinking", "thinking": "hm", "signature": "abc"},
        {"type": "redacted_thinking", "data": "abc"},
        {"type": "text", "text": "let me"},
        {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": 1.0, "a": [2]}},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        role="assistant",
    )
    calls = (ToolCall("search", '{"a":[2],"q":1}'), ToolCall("web_search", '{"query":"x"}'))
    assert said == Message("assistant", "let me", calls)


def result(content: Any, **more: Any) -> str:
    return blocks({"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}).text


def test_results_and_their_error_flag() -> None:
    """A result is text, of a string or of blocks, and an error is not a success that says the same (C-8)."""
    assert result("none") == result([{"type": "text", "text": "none", **MARK}]) == "none"
    assert result("none", is_error=False) == "none"
    assert result("none", is_error=True) == "<error> none"
    assert result(None) == ""
    assert result("none", **MARK) == "none"


def test_media_count_by_their_bytes() -> None:
    """Images and documents stand as type and digest, whatever their ids and cache marks (C-8)."""

    def image(data: str, **more: Any) -> str:
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return blocks({"type": "image", "source": source, **more}).text

    assert image("AAAA").startswith("<image:")
    assert image("AAAA") == image("AAAA", **MARK) != image("BBBB")
    inside = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    assert result([inside]).startswith("<image:")
    assert blocks({"type": "document", "source": {"type": "text", "data": "d"}}).text.startswith("<document:")


def test_results_of_tools_that_run_at_the_provider() -> None:
    """Their content is an object, which stands as its JSON text, or a list of findings, as digests (C-8)."""
    failed = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    said = blocks({"type": "web_search_tool_result", "tool_use_id": "s", "content": failed}).text
    assert said == '{"error_code":"unavailable","type":"web_search_tool_result_error"}'


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": 7}, Message("user", "7")),
        ({"role": ["x"], "content": None}, Message('["x"]', "")),
        ({"content": ["a", {"text": "b"}, {"type": 5, "x": "y"}][:2]}, Message("", "a\nb")),
        ({"content": [{"type": "tool_use"}]}, Message("", "", (ToolCall("", ""),))),
    ],
)
def test_odd_messages(message: Any, expected: Message) -> None:
    """What is not as expected is read as far as it goes (C-9)."""
    chat = read(body(message), 1)
    assert chat is not None
    assert chat.tail == (expected,)


def test_odd_message_lists() -> None:
    """A message that is no object, and a single one without its list (C-9)."""
    assert (chat := read(body("x", 7), 3)) is not None
    assert (chat.tail, chat.fallback) == ((Message("", "x"), Message("", "7")), "tolerant")
    assert (chat := read(b'{"model":"m","messages":{"role":"user","content":"x"}}', 3)) is not None
    assert chat.tail == (Message("user", "x"),)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"role":"user","content":"note to a chat room"}',
        b'{"model":"m"}',
        b'{"messages":[]}',
        b'{"model":"m","messages":null}',
    ],
)
def test_other_apis_have_messages_too(raw: bytes) -> None:
    """Without model and messages it is plain HTTP, or every post to a chat room would look the same (C-8)."""
    assert read(raw, 3) is None
    assert opening(raw) == ""


def test_endless_blocks() -> None:
    """What follows the first thousand stands as one digest (Y-2)."""
    many = [{"type": "text", "text": "a"}] * 1000
    assert "<more:" not in blocks(*many).text
    assert blocks(*many, "x").text.count("<more:") == 1
    assert blocks(*many, "x") != blocks(*many, "y")


def test_opening() -> None:
    """The system prompt and the first user message; a cache mark that moves on does not matter (C-7)."""
    user = {"role": "user", "content": "plan"}
    plain = opening(body(user, system="be kind"))
    assert plain == opening(body(user, {"role": "assistant", "content": "ok"}, system="be kind")) != ""
    assert plain == opening(body(user, system=[{"type": "text", "text": "be kind", **MARK}]))
    assert plain == opening(b"\xef\xbb\xbf" + body(user, system="be kind"))
    assert plain not in {opening(body(user)), opening(body(user, system="be rude"))}
