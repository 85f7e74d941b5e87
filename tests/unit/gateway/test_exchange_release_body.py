"""What is left of a request's body while its answer is on the way."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from breakloop.gateway.exchange import KEPT_BYTES, release_body
from breakloop.gateway.http_request import Request
from breakloop.model.call import Call, Chat, Message
from tests.builders import bundle, chat_body, policy, tail, user
from tests.unit.gateway.fake_client import get
from tests.unit.gateway.fake_upstream import Proxy


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


def test_nothing_parsed_is_held_while_the_upstream_works() -> None:
    """The parsed body and a large unpacked one go with the decision; what may be sent again stays (Y-2)."""
    packed = gzip.compress(chat_body(user("x" * 2 * KEPT_BYTES)))
    with Proxy(bundle(policy("p", loop=tail()))) as proxy:
        head = get("/v1/chat/completions", f"Content-Length: {len(packed)}", "Content-Encoding: gzip", method="POST")
        proxy.exchange(head + packed)
        proxy.send(head + packed)  # on a connection that was used before: it may have to be sent again
        exchange: Any = proxy.upstream().exchange
        call = exchange._call
        assert (call.parsed.body, call.parsed.prompt) == (None, None)
        assert (call.parsed.chat.model, call.parsed.chat.tail, call.body) == ("gpt-x", (), b"")
        assert exchange._request.body == packed
