"""Streams that are asked for their count of tokens: what upstream, client and engine see of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from breakloop.gateway.connection import Phase
from breakloop.model.call import CLIENT_LEFT, Answer, Usage
from tests.builders import bundle, chat_body, decide_with, policy, tail, user
from tests.unit.dialects.recorded.shape import dump, events
from tests.unit.gateway.fake_client import get, read_replies
from tests.unit.gateway.fake_upstream import Proxy, answer, chunks, ok
from tests.unit.gateway.repeating import DONE, LOOP, POLICY, SSE, UNIT, chat, chunked, finished, payloads, said

ASKS = b'"stream_options":{"include_usage":true}'
COUNT = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
PLAIN = [chat("One"), chat(" two"), finished(), DONE]
COUNTED = events({"id": "c-1", "choices": [], "usage": COUNT})


def with_nulls(*sent: bytes) -> list[bytes]:
    return [one.replace(b"}\n\n", b',"usage":null}\n\n') for one in sent]


ASKED = [*with_nulls(*PLAIN[:-1]), COUNTED, DONE]


@pytest.fixture(autouse=True)
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy needs the count of every call."""
    decide_with(monkeypatch, wants_usage=True)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(POLICY) as made:
        yield made


def request(*fields: str, path: str = "/v1/chat/completions", version: str = "1.1", **more: Any) -> bytes:
    body = chat_body(user("Tell me"), **{"stream": True, **more})
    return get(path, f"Content-Length: {len(body)}", *fields, method="POST", version=version) + body


def got(proxy: Proxy) -> tuple[bytes, bytes]:
    """Head and body of what the upstream got last."""
    head, _, body = proxy.upstream().wire.sent.partition(b"\r\n\r\n")
    return head, body


def tally(proxy: Proxy) -> tuple[int, int]:
    return proxy.world.engine.tally.asked_usage, proxy.world.engine.tally.refused_usage


# -- there and back


def test_the_upstream_is_asked_and_the_client_sees_nothing_of_it(proxy: Proxy, settled: list[Answer]) -> None:
    """The count reaches the engine, and the client gets what it would have got (D-1, L-3)."""
    proxy.send(request("Accept-Encoding: gzip, br"))
    head, body = got(proxy)
    assert body.endswith(b"," + ASKS + b"}")
    assert json.loads(body)["messages"] == [user("Tell me")]
    assert b"content-length: %d\r\n" % len(body) in head
    assert [line for line in head.split(b"\r\n") if line.lower().startswith(b"accept-encoding")] == [
        b"accept-encoding: identity"
    ]
    proxy.upstream().says(answer("Transfer-Encoding: chunked", SSE), *map(chunked, ASKED), b"0\r\n\r\n")
    [(status, passed, fields)] = read_replies(proxy.sent())
    assert (status, fields[b"transfer-encoding"], passed) == (200, b"chunked", b"".join(PLAIN))
    assert [given.usage for given in settled] == [Usage(9, 3)]
    assert (settled[0].text, settled[0].complete) == ("One two", True)
    assert tally(proxy) == (1, 0)
    assert proxy.phase() is Phase.IDLE
    assert proxy.pools["up"].take() is not None


def test_each_event_passes_when_it_comes(proxy: Proxy) -> None:
    """Nothing waits for the next one (D-1)."""
    proxy.send(request())
    proxy.upstream().says(answer("Transfer-Encoding: chunked", SSE))
    for asked, plain in zip(ASKED[:3], PLAIN[:3], strict=True):
        before = len(proxy.sent())
        proxy.upstream().says(chunked(asked))
        assert proxy.sent()[before:].endswith(chunked(plain))
    before = len(proxy.sent())
    proxy.upstream().says(chunked(COUNTED))
    assert proxy.sent()[before:] == b""
    proxy.upstream().says(chunked(DONE))
    assert proxy.sent()[before:] == chunked(DONE)


def test_wherever_the_upstreams_bytes_are_split() -> None:
    """Chunks within events, events within chunks, and packets within both (D-1)."""
    whole = chunks(b"".join(ASKED[:1]), *[b"".join(ASKED[1:])[at : at + 50] for at in range(0, 600, 50)])
    stream = answer("Transfer-Encoding: chunked", SSE) + whole.replace(b"0\r\n\r\n0\r\n\r\n", b"0\r\n\r\n")
    for at in range(1, len(stream), 7):
        with Proxy(POLICY) as proxy:
            proxy.send(request())
            proxy.upstream().says(stream[:at], stream[at:])
            assert read_replies(proxy.sent())[0][1] == b"".join(PLAIN), at


@pytest.mark.parametrize("framing", ["length", "close"])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_other_framings(framing: str, version: str, settled: list[Answer]) -> None:
    """A length would be wrong now, so the client gets chunks, or the end of the connection (D-1)."""
    with Proxy(POLICY) as proxy:
        proxy.send(request(version=version))
        sent = b"".join(ASKED)
        head = answer(SSE, f"Content-Length: {len(sent)}") if framing == "length" else answer(SSE)
        proxy.upstream().says(head, sent[:100], sent[100:])
        if framing == "close":
            proxy.upstream().ends()
        passed = proxy.sent()
        assert b"content-length" not in passed.lower()
        if version == "1.1":
            [(status, body, fields)] = read_replies(passed)
            assert (status, fields[b"transfer-encoding"], body) == (200, b"chunked", b"".join(PLAIN))
        else:
            assert passed.endswith(b"\r\n\r\n" + b"".join(PLAIN))
            assert proxy.closed()
        assert settled[0].usage == Usage(9, 3)


@pytest.mark.parametrize(
    "more",
    [
        {"stream": False},
        {"stream_options": {"include_usage": True}},
    ],
)
def test_who_asks_himself_or_needs_not_ask(proxy: Proxy, more: dict[str, Any]) -> None:
    """The body passes byte for byte, and so does the answer (D-1)."""
    sent = request(**more)
    proxy.send(sent)
    assert got(proxy)[1] == sent.partition(b"\r\n\r\n")[2]
    stream = answer("Transfer-Encoding: chunked", SSE) + chunks(*ASKED)
    proxy.upstream().says(stream)
    assert proxy.sent().endswith(chunks(*ASKED))
    assert tally(proxy) == (0, 0)


def test_nobody_asks_where_no_policy_needs_it(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes pass as they are (D-1)."""
    decide_with(monkeypatch, wants_usage=False)
    sent = request()
    proxy.send(sent)
    assert got(proxy)[1] == sent.partition(b"\r\n\r\n")[2]
    assert tally(proxy) == (0, 0)


def test_a_packed_request_goes_plain(proxy: Proxy) -> None:
    """What is changed was unpacked for judging (C-9)."""
    body = gzip.compress(chat_body(user("Tell me"), stream=True))
    fields = (f"Content-Length: {len(body)}", "Content-Encoding: gzip")
    proxy.send(get("/v1/chat/completions", *fields, method="POST") + body)
    head, passed = got(proxy)
    assert passed.endswith(ASKS + b"}")
    assert b"content-encoding" not in head.lower()


def test_a_packed_answer_passes_with_the_count(proxy: Proxy, settled: list[Answer]) -> None:
    """An upstream that packs although it was asked not to; the count is read all the same (D-1)."""
    proxy.send(request("Accept-Encoding: gzip"))
    packed = gzip.compress(b"".join(ASKED))
    proxy.upstream().says(answer("Transfer-Encoding: chunked", SSE, "Content-Encoding: gzip"), chunked(packed[:99]))
    assert proxy.sent().endswith(chunked(packed[:99]))
    proxy.upstream().says(chunks(packed[99:]))
    assert proxy.sent().endswith(chunks(packed[:99], packed[99:]))
    assert settled[0].usage == Usage(9, 3)


def test_an_answer_that_is_no_stream_passes_as_it_is(proxy: Proxy, settled: list[Answer]) -> None:
    """The upstream does not stream after all (D-1)."""
    proxy.send(request())
    body = dump({"id": "c", "choices": [{"index": 0, "message": {"content": "Hi"}}], "usage": COUNT})
    proxy.upstream().says(ok(body, "Content-Type: application/json"))
    assert read_replies(proxy.sent())[0][1] == body
    assert settled[0].usage == Usage(9, 3)


def test_a_stream_that_lacks_its_last_line_passes_whole(proxy: Proxy) -> None:
    """An error without an event around it, as some servers send it, and no empty line behind it (D-1)."""
    proxy.send(request())
    broken = [*ASKED[:2], b'{"error":{"message":"Overloaded"}}']
    proxy.upstream().says(answer("Transfer-Encoding: chunked", SSE) + chunks(*broken))
    assert read_replies(proxy.sent())[0][1] == b"".join([*PLAIN[:2], broken[2]])


def test_a_stream_that_breaks_off_is_aborted(proxy: Proxy, settled: list[Answer]) -> None:
    """It never looks whole (D-1)."""
    proxy.send(request())
    proxy.upstream().says(answer("Transfer-Encoding: chunked", SSE), chunked(ASKED[0]), chunked(ASKED[1][:20]))
    proxy.upstream().goes()
    assert proxy.sent().endswith(chunked(PLAIN[0]))
    assert proxy.transport.aborted
    assert (settled[0].text, settled[0].usage, settled[0].complete) == ("One", None, False)


def test_a_cancelled_stream_settles_by_what_passed(proxy: Proxy, settled: list[Answer]) -> None:
    """Its text is there to be counted (L-3)."""
    proxy.send(request())
    proxy.upstream().says(answer("Transfer-Encoding: chunked", SSE), chunked(ASKED[0]), chunked(ASKED[1]))
    proxy.connection.connection_lost(ConnectionResetError())
    assert (settled[0].status, settled[0].text, settled[0].usage) == (CLIENT_LEFT, "One two", None)


def test_steering_and_asking_go_together() -> None:
    """Both change the body (LD-5, D-1)."""
    loop = tail(max_hits=1, action="steer", retry_free=0, concurrent_free=0)
    with Proxy(bundle(policy("p", loop=loop))) as steering:
        for _ in range(2):
            steering.send(request())
            steering.upstream().says(answer("Transfer-Encoding: chunked", SSE) + chunks(*ASKED))
        body = json.loads(got(steering)[1].rpartition(b"\r\n\r\n")[2])  # the second on its connection
        assert "[breakloop]" in body["messages"][-1]["content"]
        assert body["stream_options"] == {"include_usage": True}
        assert steering.world.engine.tally.steered == 1


def test_the_stream_guard_cuts_a_rewritten_stream(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proper end, and without what was asked for (LD-8)."""
    decide_with(monkeypatch, guards_stream=1)
    proxy.send(request())
    proxy.upstream().says(answer("Transfer-Encoding: chunked", SSE))
    for one in with_nulls(*LOOP):
        if not proxy.upstream().wire.closed:
            proxy.upstream().says(chunked(one))
    [(_, passed, _)] = read_replies(proxy.sent())
    assert b'"usage"' not in passed
    found = payloads(passed)
    assert found[-1] == "[DONE]"
    assert found[-2]["choices"][0]["finish_reason"] == "length"
    assert said(found).startswith(UNIT * 15)
    assert proxy.world.engine.tally.cut == 1


# -- upstreams that do not know the question


@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable Content"])
def test_a_refusal_is_asked_again_without_the_question(proxy: Proxy, settled: list[Answer], status: str) -> None:
    """The client's own request, once, and from then on (D-1)."""
    sent = request("Accept-Encoding: gzip")
    proxy.send(sent)
    proxy.upstream().says(ok(b'{"error":"Unknown parameter: stream_options"}', status=status))
    proxy.loop.turn(3)
    head, body = got(proxy)
    assert body == sent.partition(b"\r\n\r\n")[2]
    assert b"Accept-Encoding: gzip\r\n" in head
    stream = answer("Transfer-Encoding: chunked", SSE) + chunks(*PLAIN)
    proxy.upstream().says(stream)
    assert proxy.sent().endswith(chunks(*PLAIN))
    assert proxy.sent().count(b"HTTP/1.1") == 1
    assert len(settled) == 1
    assert tally(proxy) == (1, 1)
    proxy.send(sent)
    assert not proxy.upstream().wire.sent.endswith(ASKS + b"}")
    assert proxy.upstream().wire.sent.endswith(body)
    proxy.upstream().says(stream)
    assert tally(proxy) == (1, 1)
    proxy.send(request(model="another"))
    assert proxy.upstream().wire.sent.endswith(ASKS + b"}")
    assert tally(proxy) == (2, 1)


def test_a_request_that_is_bad_anyway_is_the_clients(proxy: Proxy, settled: list[Answer]) -> None:
    """It gets the refusal of its own request, and the next one is asked again (D-1)."""
    proxy.send(request())
    proxy.upstream().says(ok(b"first", status="400 Bad Request"))
    proxy.loop.turn(3)
    proxy.upstream().says(ok(b"second", status="400 Bad Request"))
    [(status, body, _)] = read_replies(proxy.sent())
    assert (status, body) == (400, b"second")
    assert [given.status for given in settled] == [400]
    assert tally(proxy) == (1, 0)
    proxy.send(request())
    assert proxy.upstream().wire.sent.endswith(ASKS + b"}")


def test_a_large_refused_request_is_sent_again_whole(proxy: Proxy) -> None:
    """It is kept until the answer begins, and then no longer (D-1)."""
    sent = request(messages=[user("x" * 200_000)])
    proxy.send(sent)
    asked = proxy.upstream()
    asked.says(ok(b"no", status="400 Bad Request"))
    proxy.loop.turn(3)
    assert asked.wire.aborted
    assert got(proxy)[1] == sent.partition(b"\r\n\r\n")[2]
    proxy.upstream().says(answer("Transfer-Encoding: chunked", SSE), *map(chunked, PLAIN))
    assert proxy.sent().endswith(b"".join(map(chunked, PLAIN)))


def test_other_failures_are_passed_on(proxy: Proxy) -> None:
    """Whoever is busy or broken is not asked twice (D-1)."""
    for status in ("429 Too Many Requests", "500 Oh", "401 Unauthorized"):
        before = len(proxy.sent())
        proxy.send(request())
        proxy.upstream().says(ok(b"no", status=status))
        [(code, body, _)] = read_replies(proxy.sent()[before:])
        assert (code, body) == (int(status[:3]), b"no")
    assert tally(proxy) == (3, 0)
