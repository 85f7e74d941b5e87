"""An answer whose head and body arrive together is passed on, read and settled as one that arrives in parts (D-1)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breakloop.dialects import answers, registry
from breakloop.model.call import Answer, Call
from tests.builders import bundle, chat_body, policy, tail, user
from tests.each import each
from tests.unit.gateway.fake_client import get, post
from tests.unit.gateway.fake_upstream import Proxy, answer

CHOICE = {"index": 0, "message": {"role": "assistant", "content": "It opens at seven."}, "finish_reason": "stop"}
USAGE = {"prompt_tokens": 12, "completion_tokens": 5}
CHAT = {"id": "chatcmpl-1", "model": "gpt-4.1", "object": "chat.completion", "choices": [CHOICE], "usage": USAGE}
JSON: list[Any] = [
    CHAT,
    {**CHAT, "choices": [CHOICE, {**CHOICE, "index": 1}]},
    {**CHAT, "choices": []},
    {"error": {"message": "no"}},
    {"type": "message", "content": [{"type": "text", "text": "At seven."}], "usage": {"input_tokens": 3}},
    {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "found"}]}},
    {},
    [],
]
ODD = [b"", b"no JSON", b'{"usage": {"prompt_tokens": 7}, "choices', b'data: {"choices": []}\n\ndata: [DONE]\n\n']
BODIES = [*[json.dumps(given).encode() for given in JSON], *ODD]


def chat_post(body: bytes) -> bytes:
    return get("/v1/chat/completions", f"Content-Length: {len(body)}", method="POST") + body


CHAT_REQUEST = chat_post(chat_body(user("When does the harbour open?")))
TYPES = ["Content-Type: application/json", "content-type: Application/JSON; charset=utf-8", "Content-Type: text/html"]


def observe(request: bytes, head: bytes, body: bytes, *, whole: bool, drains: bool = False) -> dict[str, Any]:
    """What an exchange leads to, whether its answer arrives as a whole or in two parts."""
    settled: list[tuple[int, Answer]] = []
    with Proxy(bundle(policy("p", loop=tail(max_hits=1_000_000)))) as proxy:
        settle = proxy.door.admission.settle

        def spy(call: Call, answer: Answer) -> None:
            settled.append((len(call.body), answer))
            settle(call, answer)

        setattr(proxy.door.admission, "settle", spy)  # noqa: B010 - mypy takes it for a method
        proxy.send(request)
        proxy.server.draining = drains
        upstream = proxy.upstream()
        upstream.says(*[head + body] if whole or not body else [head, body])
        tally = proxy.world.engine.tally
        return {
            "sent": proxy.sent(),
            "closed": proxy.closed(),
            "phase": proxy.phase(),
            "settled": settled,
            "tally": (tally.settled, tally.failed, tally.input_tokens, tally.output_tokens, tally.not_read),
            "held": proxy.server.body_memory.held,
            "reused": proxy.pools["up"].take() is upstream,
            "aborted": upstream.wire.aborted,
            "faults": (proxy.server.handler_errors, tally.faults),
        }


def same(request: bytes, head: bytes, body: bytes, *, drains: bool = False) -> dict[str, Any]:
    found = observe(request, head, body, whole=True, drains=drains)
    assert found == observe(request, head, body, whole=False, drains=drains)
    return found


@each("body", BODIES)
@each("kind", TYPES)
def test_bodies(kind: str, body: bytes) -> None:
    found = same(CHAT_REQUEST, answer(kind, f"Content-Length: {len(body)}", "X-A: b"), body)
    assert len(found["settled"]) == 1


@each("kind", ["Content-Type: ;charset=utf-8", "Content-Type: ", "X: no type"])
def test_a_stream_that_was_asked_for_comes_without_a_type(kind: str) -> None:
    request = chat_post(json.dumps({**json.loads(chat_body(user("When?"))), "stream": True}).encode())
    for body in BODIES:
        same(request, answer(kind, f"Content-Length: {len(body)}"), body)


def test_an_ordinary_answer_is_read() -> None:
    head = answer(TYPES[0], f"Content-Length: {len(BODIES[0])}")
    [(_, found)] = same(CHAT_REQUEST, head, BODIES[0])["settled"]
    assert (found.text, found.usage.input_tokens, found.complete) == ("It opens at seven.", 12, True)


@each("status", ["200 OK", "203 Odd", "302 Found", "304 Not Modified", "400 Bad", "429 Too Many", "500 Fault"])
@each("field", ["X: y", "Connection: close", "Connection: keep-alive", "Content-Encoding: identity"])
def test_heads(status: str, field: str) -> None:
    same(CHAT_REQUEST, answer(TYPES[0], field, f"Content-Length: {len(BODIES[0])}", status=status), BODIES[0])


@each(
    "request_",
    [
        get("/v1/models"),
        get("/v1/models", version="1.0"),
        get("/v1/models", "Connection: close"),
        chat_post(b"no JSON"),
        post(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a"}}).encode()),
        chat_post(chat_body(user("x" * 100_000))),
    ],
)
@each("drains", [False, True])
def test_requests(request_: bytes, drains: bool) -> None:
    same(request_, answer(TYPES[0], f"Content-Length: {len(BODIES[0])}"), BODIES[0], drains=drains)


def test_more_than_the_body_is_not_passed_on() -> None:
    head = answer(TYPES[0], "Content-Length: 3")
    found = same(CHAT_REQUEST, head, b"{} and more")
    assert found["sent"].endswith(b"\r\n\r\n{} ")
    assert not found["reused"]


def test_a_body_that_is_too_large_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token counts are near its end."""
    monkeypatch.setattr(answers, "BODY_MAX_BYTES", 100)
    monkeypatch.setattr(answers.WholeAnswerReader.__init__, "__defaults__", (100, None))
    [(_, found)] = same(CHAT_REQUEST, answer(TYPES[0], f"Content-Length: {len(BODIES[0])}"), BODIES[0])["settled"]
    assert (found.text, found.usage.input_tokens) == ("", 12)


def test_a_fault_in_reading_does_not_end_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(type(registry.DIALECTS["openai_chat"]), "read_answer", fails)
    found = same(CHAT_REQUEST, answer(TYPES[0], f"Content-Length: {len(BODIES[0])}"), BODIES[0])
    assert found["sent"].endswith(BODIES[0])
    assert found["tally"][-1] == {"fault": 1}
