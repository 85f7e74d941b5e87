"""MCP tool calls as steps."""

from __future__ import annotations

import json
from typing import Any

from breakloop.model.call import ToolCall
from breakloop.model.step import Step
from breakloop.wire.mcp_steps import read


def asked(number: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": {"b": 1, "a": 2}, **more}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def step(value: Any) -> Step:
    found = read(json.dumps(value).encode())
    assert found is not None
    return found


def test_a_call_without_a_result() -> None:
    """LD-4, C-8: the result goes to the client; the id says which request it is, and not what was asked."""
    sent = json.dumps(asked(7, _meta={"progressToken": 1})).encode()
    assert read(sent) == Step("", (ToolCall("f", '{"a":2,"b":1}'),), ("7",), (), (), (), 1, len(sent))
    assert step(asked("x")).calls == step(asked(8)).calls
    assert step(asked("x")).call_ids == ("x",)


def test_a_batch() -> None:
    other = {"jsonrpc": "2.0", "id": 5, "method": "ping"}
    found = step([asked(1), other, asked(2, "g")])
    assert ([call.name for call in found.calls], found.call_ids) == (["f", "g"], ("1", "2"))


def test_what_the_user_was_asked_for() -> None:
    assert step(asked(1, inputResponses={"sure": True})).users == ('{"sure":true}',)


def test_other_methods() -> None:
    assert read(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}') is None
    assert read(b"no") is None


def test_odd_types() -> None:
    """C-9: an id that is no id, and lone surrogates."""
    assert step(asked({"x": 1})).call_ids == ('{"x":1}',)
    assert step(asked("\ud83d", "f\ud83d")).call_ids == ("?",)
    assert step(asked(None)).call_ids == ()
