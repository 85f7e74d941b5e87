"""MCP tool calls: what is one, what of it counts."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from breakloop.dialects.mcp import MCP
from breakloop.model.call import Chat, Message, ToolCall
from tests.unit.dialects import parsing

read = partial(parsing.chat, "mcp")
opening = partial(parsing.opening, "mcp")


def request(method: str = "tools/call", number: int = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def calls(value: Any) -> tuple[ToolCall, ...]:
    chat = read(json.dumps(value).encode(), 3)
    assert chat is not None
    assert len(chat.tail) == 1
    return chat.tail[0].calls


def test_a_tool_call() -> None:
    """Name and arguments; `id`, `_meta` and task are not identity (C-8)."""
    asked = request(name="search", arguments={"q": "x", "n": 1.0}, _meta={"progressToken": 4}, task={"ttl": 9})
    chat = read(json.dumps(asked).encode(), 3)
    assert chat == Chat("mcp", "", (Message("tools/call", "", (ToolCall("search", '{"n":1,"q":"x"}'),)),), 1)
    assert chat == read(json.dumps(request(number=7, name="search", arguments={"n": 1, "q": "x"})).encode(), 3)


def test_a_slash_may_be_escaped() -> None:
    """Some encoders write `tools\\/call` (C-8)."""
    raw = json.dumps(request(name="f")).replace("tools/call", r"tools\/call").encode()
    assert read(raw, 3) is not None


def test_a_batch_is_one_request() -> None:
    """Every call counts, in order, so that batches with the same end do not look the same (C-8)."""
    batch = [request(name=name) for name in "abcde"]
    assert [made.name for made in calls([request("ping"), *batch])] == list("abcde")
    many = [request(name="f", arguments={"n": number}) for number in range(1001)]
    assert len(calls(many)) == 1001
    assert calls(many)[-1].arguments.startswith("<more:")


def test_answers_of_the_user_are_part_of_the_call() -> None:
    """The same call with what the user was asked for is another request; the state token is not identity (C-8)."""

    def text(**more: Any) -> str:
        chat = read(json.dumps(request(name="book", **more)).encode(), 3)
        assert chat is not None
        return chat.tail[0].text

    assert text(inputResponses={"a": "yes"}, requestState="s1") == text(inputResponses={"a": "yes"}, requestState="s2")
    assert len({text(), text(inputResponses={"a": "yes"}), text(inputResponses={"a": "no"})}) == 3


@pytest.mark.parametrize(
    "value",
    [
        request("tools/list"),
        request("initialize"),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "result": {"method": "tools/call"}},
        {"method": "tools/call", "params": {"name": "jsonrpc"}},
        [],
        [request("ping")],
        [1, "jsonrpc"],
    ],
)
def test_everything_else_is_plain_http(value: Any) -> None:
    """Other methods, answers, notifications, and what is no JSON-RPC (C-8)."""
    assert read(json.dumps(value).encode(), 3) is None


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ("x", ToolCall("", "x")),
        (["f", 1], ToolCall("", '["f",1]')),
        (None, ToolCall("", "")),
        ({"name": 5, "arguments": "x"}, ToolCall("5", "x")),
    ],
)
def test_odd_params(params: Any, expected: ToolCall) -> None:
    """Read as far as they go (C-9)."""
    assert calls({"jsonrpc": "2.0", "method": "tools/call", "params": params}) == (expected,)


def test_odd_bodies_are_read_tolerantly() -> None:
    """A version of another type, one item of a batch that is none (C-9)."""
    asked = {**request(name="f"), "jsonrpc": 2}
    for value in (asked, [asked, 7]):
        chat = read(json.dumps(value).encode(), 3)
        assert chat is not None
        assert (chat.tail[0].calls, chat.fallback) == ((ToolCall("f", ""),), "tolerant")


def test_no_messages_asked_for() -> None:
    assert read(json.dumps(request(name="f")).encode(), 0) == Chat("mcp", "", (), 1)


def test_the_mark_is_looked_for_at_both_ends() -> None:
    """Python's client writes it first, TypeScript's after the parameters; large bodies are not searched through
    (C-8)."""
    padding = "x" * 10_000
    first = json.dumps(request(name=padding)).encode()
    last = json.dumps({"method": "tools/call", "params": {"name": padding}, "jsonrpc": "2.0", "id": 1}).encode()
    assert MCP.is_likely(first)
    assert MCP.is_likely(last)
    assert not MCP.is_likely(json.dumps({"a": padding}).encode())
    assert not MCP.is_likely(b"")


def test_no_opening() -> None:
    """The session of a tool call is what its header says (C-7)."""
    assert opening(json.dumps(request(name="f")).encode()) == ""
