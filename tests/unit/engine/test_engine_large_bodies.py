"""Bodies that cannot be decoded at a bounded cost: they pass uninspected, or are refused where a policy says so. Bodies
without messages pass uninspected, too."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from breakloop.dialects import content
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
