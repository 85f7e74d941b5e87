"""Streams that are longer than a rule lets them: when they are cut, what client, upstream and limits see of it, and that
it does not matter where their bytes are split."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breakloop.engine.engine import Engine
from breakloop.engine.metering import Meter
from breakloop.gateway.connection import Phase
from breakloop.model.call import Answer
from tests.builders import Json, bundle, chat_body, policy, tail, user
from tests.unit.dialects.recorded.shape import dump, named
from tests.unit.gateway.fake_client import get, read_replies
from tests.unit.gateway.fake_upstream import Proxy, answer
from tests.unit.gateway.repeating import CHUNKED_HEAD, DONE, SSE, UNIT, UNTIL_CLOSE_HEAD, chat, chunked, payloads, said

TEN = "one thing after another, forty letters. "  # ten tokens
assert len(TEN) == 40


def capped(tokens: int = 100, name: str = "t", **more: Any) -> Json:
    """A rule that ends streams."""
    config = {"tokens_per_minute": 6000, "max_completion_tokens": tokens, "enforce_mid_stream": True, **more}
    return {"name": name, "limit_keys": [], "algorithm": "token_bucket_llm", "algorithm_config": config}


def made(*rules: Json, loop: Json | None = None, **spec: Any) -> Json:
    return bundle(policy("p", *(rules or (capped(),)), loop=loop or tail(max_hits=1_000_000), **spec))


def streams(
    proxy: Proxy, *contents: bytes, head: bytes = CHUNKED_HEAD, path: str = "/v1/chat/completions", **body: Any
) -> bytes:
    """Ask for a stream, and let the upstream say each of these for as long as it is listened to."""
    before = len(proxy.sent())
    sent = chat_body(user("Go on"), stream=True, **body)
    proxy.send(get(path, f"Content-Length: {len(sent)}", "Authorization: Bearer k", method="POST") + sent)
    upstream = proxy.upstream(name="anthropic" if path == "/v1/messages" else "up")
    upstream.says(head)
    for content in contents:
        if not upstream.wire.closed:
            upstream.says(chunked(content) if head == CHUNKED_HEAD else content)
    return proxy.sent()[before:]


def got(data: bytes) -> list[Any]:
    ((status, body, _),) = read_replies(data)
    assert status == 200
    return payloads(body)


def left(proxy: Proxy) -> int:
    """What the next request finds, which takes nothing."""
    sent = chat_body(user(""), max_tokens=0)
    reply = proxy.exchange(
        get("/v1/chat/completions", f"Content-Length: {len(sent)}", "Authorization: Bearer k", method="POST") + sent
    )
    (fields,) = [fields for _, _, fields in read_replies(reply)]
    return int(fields[b"ratelimit-remaining"])


def told(proxy: Proxy, name: str = "limit.exceeded") -> list[Any]:
    return [dict(data) for data in proxy.world.named(name)]


CUT = {"policy": "p", "rule": "t", "reason": "max_completion_tokens", "action": "cut"}


def test_a_stream_ends_where_it_is_too_long(settled: list[Answer]) -> None:
    """100 tokens pass, the event that brings more passes too, and then the dialect's own end (L-3)."""
    with Proxy(made()) as proxy:
        found = got(streams(proxy, *[chat(TEN)] * 50))
        assert said(found[:-2] + found[-1:]) == TEN * 11
        (choice,) = found[-2]["choices"]
        assert (choice["index"], choice["finish_reason"], found[-1]) == (0, "length", "[DONE]")
        assert proxy.upstream().wire.aborted
        assert proxy.phase() is Phase.IDLE
        tally = proxy.world.engine.tally
        assert (tally.cut_long, tally.cut, tally.faults) == (1, 0, 0)
        assert told(proxy) == [CUT]
        (given_back,) = settled
        assert (given_back.finish, given_back.complete, given_back.text) == ("length", True, TEN * 11)


def test_it_settles_by_what_passed() -> None:
    """2 tokens asked, 110 passed; the reservation of 102 is corrected by one (L-3)."""
    with Proxy(made()) as proxy:
        streams(proxy, *[chat(TEN)] * 50)
        assert left(proxy) == 6000 - 2 - 110


def test_exactly_as_much_passes(settled: list[Answer]) -> None:
    """Up to the last character (L-3)."""
    with Proxy(made()) as proxy:
        end = [chat("", delta={}, finish_reason="stop"), DONE]
        assert streams(proxy, *[chat(TEN)] * 10, *end).endswith(chunked(DONE))
        proxy.upstream().says(b"0\r\n\r\n")
        assert (proxy.world.engine.tally.cut_long, settled[0].finish, told(proxy)) == (0, "stop", [])


@pytest.mark.parametrize("rule", [capped(enforce_mid_stream=False), capped(20)])
def test_who_does_not_ask_is_not_cut(rule: Json) -> None:
    """The maximum alone only bounds what is reserved (L-3)."""
    asks = rule["algorithm_config"]["enforce_mid_stream"]
    with Proxy(made(rule)) as proxy:
        streams(proxy, *[chat(TEN)] * 50)
        assert proxy.world.engine.tally.cut_long == int(asks)
        assert proxy.upstream().wire.closed is asks


def test_in_shadow_it_is_told_once(settled: list[Answer]) -> None:
    """What would have been done (L-3, E-1)."""
    with Proxy(made(mode="shadow")) as proxy:
        sent = [*[chat(TEN)] * 50, chat("", delta={}, finish_reason="stop"), DONE]
        assert streams(proxy, *sent).endswith(chunked(DONE))
        proxy.upstream().says(b"0\r\n\r\n")
        assert told(proxy) == []
        shadow = {"policy": "p", "rule": "t", "reason": "max_completion_tokens"}
        assert told(proxy, "shadow.would_reject") == [shadow]
        assert (proxy.world.engine.tally.cut_long, settled[0].finish) == (0, "stop")


def test_the_lowest_of_several_caps_cuts() -> None:
    """Whichever rule it is of (L-3)."""
    with Proxy(made(capped(200, "high"), capped(50, "low"))) as proxy:
        found = got(streams(proxy, *[chat(TEN)] * 50))
        assert said(found[:-2] + found[-1:]) == TEN * 6
        assert told(proxy) == [CUT | {"rule": "low"}]


@pytest.mark.parametrize("framing", ["length", "gzip"])
def test_what_cannot_be_cut_is_told(framing: str) -> None:
    """The client knows the length already, or waits for the end of what was packed (L-3)."""
    sent = [*[chat(TEN)] * 50, DONE]
    if framing == "length":
        head, pieces = answer(f"Content-Length: {sum(map(len, sent))}", SSE), sent
    else:
        packer = zlib.compressobj(wbits=31)
        head = answer("Transfer-Encoding: chunked", SSE, "Content-Encoding: gzip")
        pieces = [chunked(packer.compress(one) + packer.flush(zlib.Z_SYNC_FLUSH)) for one in sent] + [b"0\r\n\r\n"]
    # The client asks for the count itself: an answer that is rewritten would be neither.
    with Proxy(made()) as proxy:
        data = streams(proxy, *pieces, head=head, stream_options={"include_usage": True})
        assert data.endswith(b"".join(pieces))
        assert (proxy.world.engine.tally.cut_long, told(proxy)) == (0, [CUT | {"action": "warn"}])


# -- what counts


def test_thoughts_count_and_are_charged(settled: list[Answer]) -> None:
    """Nobody keeps them, but they are paid for (L-3)."""
    with Proxy(made()) as proxy:
        thinking = [chat("", delta={"reasoning_content": TEN})] * 50
        found = got(streams(proxy, *thinking))
        assert (found[-2]["choices"][0]["finish_reason"], len(found)) == ("length", 13)
        assert (settled[0].text, settled[0].unkept_chars) == ("", 440)
        assert left(proxy) == 6000 - 2 - 110


def test_arguments_of_calls_count() -> None:
    """A file that is written without end is one call (L-3)."""
    call: Json = {"index": 0, "id": "c-1", "type": "function", "function": {"name": "write", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": TEN}}
    sent = [chat("", delta={"tool_calls": [one]}) for one in (call, *[more] * 50)]
    with Proxy(made()) as proxy:
        found = got(streams(proxy, *sent))
        assert (found[-2]["choices"][0]["finish_reason"], len(found)) == ("length", 14)


def test_several_answers_share_what_they_may_have() -> None:
    """Two answers, twice as much; each that is open gets its end (L-3)."""
    both = [piece for _ in range(25) for piece in (chat(TEN), chat(TEN, 1))]
    with Proxy(made()) as proxy:
        found = got(streams(proxy, *both, n=2))
        assert [(one["index"], one["finish_reason"]) for one in found[-2]["choices"]] == [(0, "length"), (1, "length")]
        assert len(found) == 21 + 2


ANTHROPIC = [
    named({"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"input_tokens": 9}, "content": []}}),
    named({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "w", "input": {}}}),
    *[
        named({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": TEN}})
        for _ in range(50)
    ],
]


def test_anthropic(settled: list[Answer]) -> None:
    """A block of any kind is stopped, and the tokens are guessed, because nobody counted them (L-3)."""
    with Proxy(made()) as proxy:
        found = got(streams(proxy, *ANTHROPIC, path="/v1/messages", max_tokens=500))
        assert [event["type"] for event in found[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
        assert (found[-2]["delta"]["stop_reason"], found[-2]["usage"]["output_tokens"]) == ("max_tokens", 110)
        usage = settled[0].usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (9, 110)


# -- with others on the same stream


@pytest.mark.parametrize(("tokens", "cut", "cut_long"), [(100, 0, 1), (4000, 1, 0)])
def test_with_the_stream_guard(tokens: int, cut: int, cut_long: int) -> None:
    """Whichever comes first (L-3, LD-8)."""
    with Proxy(made(capped(tokens), loop={"similarity": "steps"})) as proxy:
        found = got(streams(proxy, *[chat(UNIT)] * 40))
        assert found[-2]["choices"][0]["finish_reason"] == "length"
        tally = proxy.world.engine.tally
        assert (tally.cut, tally.cut_long) == (cut, cut_long)


def test_with_the_count_that_we_asked_for() -> None:
    """What the question brought into the stream is not in what the client gets (L-3, D-1)."""
    piece = chat(TEN).replace(b"}\n\n", b',"usage":null}\n\n')
    assert piece.endswith(b',"usage":null}\n\n')
    with Proxy(made()) as proxy:
        data = streams(proxy, *[piece] * 50)
        assert proxy.world.engine.tally.asked_usage == 1
        assert b"usage" not in data.partition(b"\r\n\r\n")[2]
        found = got(data)
        assert (said(found[:-2] + found[-1:]), found[-1]) == (TEN * 11, "[DONE]")


# -- wherever it is split


def cut_in(pieces: Sequence[bytes], head: bytes = CHUNKED_HEAD) -> bytes:
    """Let the upstream send this, one piece after the other; returns the body that the client got."""
    with Proxy(made()) as proxy:
        data = streams(proxy, head=head, stream_options={"include_usage": True})
        for piece in pieces:
            if not proxy.upstream().wire.closed:
                proxy.upstream().says(piece)
        assert proxy.upstream().wire.aborted
        assert proxy.world.engine.tally.cut_long == 1
        ((_, body, _),) = read_replies(data + proxy.sent()[len(data) :])
        return body


def check(body: bytes) -> None:
    found = payloads(body)
    assert (found[-1], found[-2]["choices"][0]["finish_reason"]) == ("[DONE]", "length")
    passed = len(found) - 2
    assert passed >= 11
    assert body.startswith(chat(TEN) * passed)


EVENT = len(chat(TEN))
CONTENT = chat(TEN) * 30


@pytest.mark.slow
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_split_at_every_byte(line_end: bytes) -> None:
    """Around the place of the cut (L-3, D-1)."""
    sent = chunked(*[chat(TEN).replace(b"\n", line_end)] * 30)
    each = len(sent) // 30
    for at in range(10 * each - 3, 11 * each + 3):
        check(cut_in([sent[:at], sent[at : at + 1], sent[at + 1 :]]).replace(line_end, b"\n"))


def test_byte_by_byte() -> None:
    """Then it is cut as soon as can be (L-3)."""
    sent = chunked(CONTENT)
    body = cut_in([sent[at : at + 1] for at in range(len(sent))])
    check(body)
    assert body.count(b"forty") == 11


@given(
    st.lists(st.integers(1, len(CONTENT) - 1), max_size=30),
    st.lists(st.integers(1, len(CONTENT) - 1), max_size=30),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
def test_any_chunks_in_any_pieces(in_chunks: list[int], in_pieces: list[int], framed: bool) -> None:
    """For both framings (L-3, D-1)."""

    def split(data: bytes, places: list[int]) -> list[bytes]:
        ends = sorted({0, len(data), *[place for place in places if place < len(data)]})
        return [data[start:stop] for start, stop in itertools.pairwise(ends)]

    sent = chunked(*split(CONTENT, in_chunks)) if framed else CONTENT
    check(
        cut_in(
            [*split(sent, in_pieces), chunked(CONTENT) if framed else CONTENT], [UNTIL_CLOSE_HEAD, CHUNKED_HEAD][framed]
        )
    )


# -- faults


def test_a_fault_in_telling_of_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is cut all the same (L-3)."""

    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(Meter, "capped", broken)
    with Proxy(made()) as proxy:
        assert got(streams(proxy, *[chat(TEN)] * 50))[-1] == "[DONE]"
        engine: Engine = proxy.world.engine
        assert (engine.tally.faults, engine.tally.cut_long) == (1, 1)


def test_other_answers_are_not_watched() -> None:
    """Only streams have a middle (L-3)."""
    body = dump({"choices": [{"message": {"content": TEN * 50}}]})
    with Proxy(made()) as proxy:
        data = streams(proxy, body, head=answer("Content-Type: application/json"))
        assert body in data
        proxy.upstream().ends()
        assert (proxy.world.engine.tally.cut_long, told(proxy)) == (0, [])
