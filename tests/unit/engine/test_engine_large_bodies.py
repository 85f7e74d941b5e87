"""Bodies that cannot be decoded at a bounded cost: they pass uninspected, or are refused where a policy says so. Bodies
without messages pass uninspected, too."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from breakloop.dialects import base, content
from tests.builders import at, bundle, call, exact, policy, tail, world

DENSE = b'{"model":"m","messages":[{"role":"user","content":[' + b"[]," * 400_000 + b'""]}]}'
PATH = "/v1/chat/completions"


def test_a_body_with_too_many_values_is_not_decoded() -> None:
    """It passes and is counted, at a small multiple of its size in memory: decoded it would take 20 times as much
    (Y-2).
    """
    here = world(bundle(policy("p", prefix="/", loop=tail())))
    asked = call(PATH, "POST", body=DENSE)
    tracemalloc.start()
    try:
        assert here.engine.decide(asked).allowed
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (asked.parsed.chat, here.engine.tally.unjudged) == (False, 1)
    assert most < 4 * len(DENSE)


PARTS = b"[]," * 60_000 + b'""'
DENSE_MESSAGES = {
    "/v1/chat/completions": b'{"model":"m","messages":[{"role":"user","content":[%b]}]}' % PARTS,
    "/v1/messages": b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[%b]}]}' % PARTS,
    "/v1/responses": b'{"model":"m","input":[{"role":"user","content":[%b]}]}' % PARTS,
    "/v1beta/models/g:generateContent": b'{"contents":[{"role":"user","parts":[%b]}]}' % PARTS,
}


@pytest.mark.parametrize("path", DENSE_MESSAGES)
def test_a_message_with_too_many_values_is_not_decoded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 180 KB cannot hold as many values as one of 10 MB, and yet enough to keep everybody waiting for 50 ms.
    What is decoded at once has 50,000 values at most (Y-2).
    """
    most = 0

    def counted(raw: Any) -> Any:
        nonlocal most
        most = max(most, bytes(raw).count(b","))
        return decode(raw)

    decode = content.decode
    monkeypatch.setattr(content, "decode", counted)
    here = world(bundle(policy("p", prefix="/", loop=[tail(), {"similarity": "steps"}])))
    assert here.decide(call(path, "POST", body=DENSE_MESSAGES[path])).allowed
    assert (most <= content.DECODED_VALUES_MAX, here.engine.tally.unjudged) == (True, 1)
    strict = world(bundle(policy("p", prefix="/", loop=tail(), on_large_body="reject")))
    verdict = strict.decide(call(path, "POST", body=DENSE_MESSAGES[path]))
    assert (verdict.status, verdict.reason) == (413, "body_too_complex")


def test_what_does_not_begin_like_json_is_not_read_leniently() -> None:
    """10 MB of a picture are no conversation, which their first bytes show (Y-2)."""
    for begin in (b"", b" \n", b"\xef\xbb\xbf"):
        assert content.load(begin + b'{"a":NaN}') is not None
        assert content.load(begin + b"\x89PNG" + b'{"a":NaN}') is None
    assert content.load('{"a":1}'.encode("utf-16")) == {"a": 1}
    assert not content.is_dense(b"\x89PNG" + b"[]," * 100_000)
    assert content.is_dense(b"\n[" + b"[]," * 100_000)


def test_repetitions_of_such_a_body_are_found_by_its_bytes() -> None:
    """An exact fingerprint needs no decoding (LD-1, Y-2)."""
    here = world(bundle(policy("p", loop=exact(3))))
    allowed = [here.decide(call(PATH, "POST", body=DENSE)).allowed for _ in range(3)]
    assert allowed == [True, True, False]
    assert here.decide(call(PATH, "POST", body=DENSE + b" ")).allowed


def test_a_policy_may_refuse_what_cannot_be_inspected() -> None:
    """413 with a reason that retrying does not change; `global_shadow` suspends it (Y-2, K-1)."""
    strict = policy("p", on_large_body="reject")
    here = world(bundle(strict))
    verdict = here.decide(call(PATH, "POST", body=DENSE))
    assert (verdict.allowed, verdict.status, verdict.reason, verdict.never) == (False, 413, "body_too_complex", True)
    assert "more JSON values than are inspected" in verdict.message
    shadow = {"enabled": True, "reason": "r", "expires_at": at(60)}
    assert world(bundle(strict, global_shadow=shadow)).decide(call(PATH, "POST", body=DENSE)).allowed


def test_long_texts_are_decoded_whatever_they_contain() -> None:
    """Commas and brackets inside of a text are no values: a large tool result is inspected like any other (Y-2)."""
    here = world(bundle(policy("p", prefix="/", loop=tail())))
    text = "1,[{" * 400_000
    asked = call(PATH, "POST", body=b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text.encode())
    assert here.engine.decide(asked).allowed
    assert asked.parsed.chat
    assert here.engine.tally.unjudged == 0


def test_a_body_without_messages_is_not_judged() -> None:
    """Six different ones are not the same conversation, which has nothing in it; they are counted (LD-2, LD-4)."""
    here = world(bundle(policy("p", prefix="/", loop=[tail(), {"similarity": "steps"}])))
    for number in range(12):
        assert here.decide(call(PATH, "POST", body=b'{"model":"m","inputs":"%d"}' % number)).allowed
    assert here.engine.tally.unjudged == 12


def said(text: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}, ensure_ascii=False).encode()


MB = 1024 * 1024
LONG_TEXTS = {
    "escapes": "a\n" * (2 * MB),
    "not ASCII": "\u4e2d" * (2 * MB),
    "commas": "a,b " * (5 * MB // 4),
    "JSON": '{"a": "b"}, ' * (3 * MB // 12),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_long_message_is_decoded_if_that_takes_no_longer_than_for_a_picture(name: str) -> None:
    """More than fits into the context of a model, and made of what takes time to decode: it passes, counted, and is refused
    where a policy says so. A picture of the same size is judged, and so is a text of 1 MB (Y-2)."""
    text = LONG_TEXTS[name]
    for large in ("pass", "reject"):
        here = world(bundle(policy("p", prefix="/", on_large_body=large, loop=tail())))
        assert here.decide(call(PATH, "POST", body=said(text))).allowed is (large == "pass")
        assert here.engine.tally.unjudged == 1
        for judged in (said(text[: len(text) // 8]), picture("A" * (6 * MB))):
            asked = call(PATH, "POST", body=judged)
            assert here.engine.decide(asked).allowed
            assert asked.parsed.chat
        assert here.engine.tally.unjudged == 1


def picture(data: str) -> bytes:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": [part]}]}).encode()


def test_what_is_between_the_ends_of_a_long_text_still_tells_it_from_others() -> None:
    """Detectors get half a million characters at most, and a digest of the rest (LD-1, Y-2)."""
    here = world(bundle(policy("p", prefix="/", loop=tail())))
    text = "word " * 400_000
    other = text[:MB] + "another" + text[MB:]
    for body, others in ((said(text), said(other)), (picture(text), picture(other))):
        sent = [body] * 5 + [others] * 5 + [body, others]
        assert [here.decide(call(PATH, "POST", body=one)).allowed for one in sent] == [True] * 10 + [False] * 2
    asked = call(PATH, "POST", body=said(text + "!"))
    here.engine.decide(asked)
    assert asked.parsed.chat
    assert len(asked.parsed.chat.tail[-1].text) < content.LONG_TEXT_CHARS + 100


FIELDS = {
    "/v1/completions": '{"model":"m","prompt":"%s"}',
    "/v1/embeddings": '{"model":"m","input":"%s"}',
    "/v1/responses": '{"model":"m","input":"%s"}',
    "/v1/conversations": '{"model":"m","inputs":"%s"}',
    "/api/generate": '{"model":"m","prompt":"%s"}',
    "/mcp": '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"f","arguments":{"a":"%s"}}}',
}


@pytest.mark.parametrize("path", FIELDS)
def test_texts_outside_of_messages_are_shortened_like_them(path: str) -> None:
    """A prompt, an input, or the arguments of a tool (Y-2)."""
    here = world(bundle(policy("p", prefix="/", loop=tail())))
    asked = call(path, "POST", body=(FIELDS[path] % ("word " * 400_000)).encode())
    assert here.engine.decide(asked).allowed
    assert asked.parsed.chat
    (message,) = asked.parsed.chat.tail
    assert len(message.text) + sum(len(one.arguments) for one in message.calls) < content.LONG_TEXT_CHARS + 100


def test_the_values_of_a_body_that_is_new_are_counted_from_a_quarter_of_a_megabyte_on() -> None:
    """500,000 messages fit into one megabyte. A conversation that only grows is not counted again (Y-2)."""
    here = world(bundle(policy("p", prefix="/", loop=tail(), on_large_body="reject")))
    body = b'{"model":"m","messages":[%b1]}' % (b"1," * 250_000)
    assert here.decide(call(PATH, "POST", body=body)).reason == "body_too_complex"
    assert here.engine.tally.unjudged == 1


def test_a_conversation_that_grows_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller has sent before has been counted (Y-2)."""
    counted: list[int] = []

    def noted(body: bytes) -> bool:
        counted.append(len(body))
        return content.has_too_many_values(body)

    monkeypatch.setattr(base, "has_too_many_values", noted)
    here = world(bundle(policy("p", prefix="/", loop=[tail(), {"similarity": "steps"}])))
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": f"{number} {'x' * 5000}"} for number in range(81)]
    for size in (61, 71, 81):
        body = json.dumps({"model": "m", "messages": messages[:size]}).encode()
        assert here.decide(call(PATH, "POST", body=body)).allowed
    assert len(counted) == 1


def test_large_bodies_are_compared_and_read_leniently_up_to_a_size() -> None:
    """Reading them as a whole takes long: 4 MB of what a strict decoder rejects, 2 MB to be written in one spelling
    (Y-2)."""
    assert content.load(b'{"a":NaN,"b":"%b"}' % (b"x" * (3 * MB))) is not None
    assert content.load(b'{"a":NaN,"b":"%b"}' % (b"x" * (5 * MB))) is None
    assert content.canonical(b'{ "b":"%b"}' % (b"x" * MB)).startswith(b'{"b"')
    assert content.canonical(b'{ "b":"%b"}' % (b"x" * (3 * MB))).startswith(b'{ "b"')


def test_escape_sequences_of_a_large_body_count_like_values() -> None:
    """Over 4 MB with more than a million of them (Y-2)."""
    assert content.has_too_many_values(b'["%b"]' % (b"\\n" * (2 * MB + 9)))
    assert not content.has_too_many_values(b'["%b"]' % (b"\\n" * (MB + 9)))
    assert not content.has_too_many_values(b'["%b"]' % (b"word\\n" * MB)[: 5 * MB])
