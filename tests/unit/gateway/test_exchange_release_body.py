"""What is left of a request's body while its answer is on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.gateway.exchange import KEPT_BYTES, release_body
from breakloop.gateway.http_request import Request
from breakloop.model.call import Call, Chat, Message


@pytest.mark.parametrize(("size", "kept"), [(KEPT_BYTES, True), (KEPT_BYTES + 1, False)])
def test_only_a_long_one_is_forgotten(size: int, kept: bool) -> None:
    """With what was read from it (Y-2)."""
    body = b"x" * size
    request = Request("POST", b"/", {}, body=body)
    call = Call("POST", "/", body=body)
    call.parsed.chat = Chat("openai_chat", "m", (Message("user", "x" * size),), 1)
    parsed: Any = body
    call.parsed.body = parsed
    release_body(request, call)
    assert (request.body == body, call.body == body, call.parsed.body is parsed) == (kept, kept, kept)
    assert (call.parsed.chat.model, bool(call.parsed.chat.tail)) == ("m", kept)


def test_the_id_of_a_call_of_a_tool_stays() -> None:
    """An error in its stead has to carry it (A-1)."""
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": "x" * KEPT_BYTES}).encode()
    call = Call("POST", "/mcp", body=body)
    release_body(Request("POST", b"/mcp", {}, body=body), call)
    assert json.loads(call.body)["id"] == 7
    assert len(call.body) < 200
