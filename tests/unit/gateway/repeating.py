"""Streams that repeat themselves, as the stream guard's tests play them, and requests for them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from breakloop.dialects.framing import SseParser
from tests.builders import bundle, chat_body, policy, tail, user
from tests.unit.dialects.recorded.shape import events, named
from tests.unit.gateway.fake_client import get
from tests.unit.gateway.fake_upstream import answer

UNIT = "I should check the configuration file again before I go on with the migration. "
PROSE = "One thing after the other, number {}, and none of them twice over. "
LOOPED = 20  # so many of them are surely enough
SSE = "Content-Type: text/event-stream"
CHUNKED_HEAD = answer("Transfer-Encoding: chunked", SSE)
UNTIL_CLOSE_HEAD = answer(SSE)
POLICY = bundle(policy("p", loop=tail(max_hits=1_000_000)))  # so that requests are looked into, and none is a loop
_FRESH = itertools.count(1)


def asked(path: str = "/v1/chat/completions", *fields: str, version: str = "1.1") -> bytes:
    """A request for a stream."""
    body = chat_body(user(f"Tell me {next(_FRESH)}"), stream=True)
    return get(path, f"Content-Length: {len(body)}", *fields, method="POST", version=version) + body


def chat(piece: str, index: int = 0, **more: Any) -> bytes:
    """One event of a chat."""
    choice: dict[str, Any] = {"index": index, "delta": {"content": piece}, "finish_reason": None} | more
    return events({"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def finished(index: int = 0) -> bytes:
    """The event that ends an answer of a chat."""
    return chat("", index, delta={}, finish_reason="stop")


LOOP = [chat(UNIT) for _ in range(LOOPED)]
DONE = events(b"[DONE]")
BLOCKS = [
    named(
        {"type": "message_start", "message": {"id": "m-1", "model": "c", "usage": {"input_tokens": 9}, "content": []}}
    ),
    named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    *[
        named({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": UNIT}})
        for _ in range(LOOPED)
    ],
]


def chunked(*contents: bytes) -> bytes:
    """Chunks, and no last one."""
    return b"".join(b"%x\r\n%b\r\n" % (len(content), content) for content in contents)


def payloads(body: bytes) -> list[Any]:
    """The events of a stream."""
    return [data.decode() if data == b"[DONE]" else json.loads(data) for data in SseParser().feed(body)]


def said(found: Sequence[Any]) -> str:
    """All that is said in a chat."""
    pieces = [choice["delta"].get("content") or "" for event in found[:-1] for choice in event["choices"]]
    return "".join(pieces)


def check_cut(body: bytes, sent: bytes) -> None:
    """A chat that was cut: what the upstream sent, up to the end of an event, and a proper end."""
    found = payloads(body)
    assert found[-1] == "[DONE]"
    (choice,) = found[-2]["choices"]
    assert (choice["index"], choice["finish_reason"], choice["delta"]) == (0, "length", {})
    assert [event["choices"][0]["finish_reason"] for event in found[:-2]] == [None] * (len(found) - 2)
    text = said(found[:-2] + found[-1:])
    assert len(text) >= 1200
    passed = len(chat(UNIT)) * (len(found) - 2)
    assert len(sent) >= passed
    assert body[:passed] == sent[:passed]
    assert body[passed:].startswith(b'data: {"id"')
    assert body.rstrip(b"\n").endswith(b"[DONE]")  # a chunk may have had to be filled up
