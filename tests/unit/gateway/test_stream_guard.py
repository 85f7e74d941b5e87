"""The stream guard in the gateway: when an answer is cut, and what client, upstream and engine see of it. How it is cut
wherever the upstream's bytes are split is in test_cutting_splits."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from breakloop.detect.stream import MAX_PROBED_CHOICES, RepetitionWatch
from breakloop.dialects import registry
from breakloop.dialects.answers import ListeningReader, PassingAnswer, StreamReader
from breakloop.engine.engine import Engine
from breakloop.gateway.connection import Phase
from breakloop.gateway.exchange import GuardedAnswer, read_response
from breakloop.gateway.http_response import RECHUNKED, ResponseHead
from breakloop.model.call import Answer, Chat
from tests.builders import decide_with
from tests.unit.dialects.recorded.shape import events, named
from tests.unit.gateway.fake_client import read_replies
from tests.unit.gateway.fake_upstream import FakeConnection, Proxy, answer, chunks
from tests.unit.gateway.repeating import (
    BLOCKS,
    CHUNKED_HEAD,
    DONE,
    LOOP,
    LOOPED,
    POLICY,
    PROSE,
    SSE,
    UNIT,
    UNTIL_CLOSE_HEAD,
    asked,
    chat,
    check_cut,
    chunked,
    finished,
    payloads,
    said,
)


def test_a_guarded_stream_has_one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is made only to be thrown away (Q-1)."""
    made: list[StreamReader] = []
    init = StreamReader.__init__

    def counted(self: StreamReader, *args: Any, **more: Any) -> None:
        made.append(self)
        init(self, *args, **more)

    monkeypatch.setattr(StreamReader, "__init__", counted)
    head = ResponseHead(200, b"HTTP/1.1 200 OK\r\n", b"", {"content-type": b"text/event-stream"}, -1, b"", True)
    asked_for = Chat("openai_chat", "m", (), 1, stream=True)
    reading = read_response(asked_for, head, lambda _why: None, lambda _can_cut: RepetitionWatch(lambda *_: None))
    assert isinstance(reading, GuardedAnswer)
    assert len(made) == 1


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Guard every answer: 1 cuts, 2 only tells."""
    return lambda value: decide_with(monkeypatch, guards_stream=value)


@pytest.fixture
def proxy(guards: Callable[[int], None]) -> Iterator[Proxy]:
    guards(1)
    with Proxy(POLICY) as made:
        yield made


def streams(proxy: Proxy, *contents: bytes, head: bytes = CHUNKED_HEAD, path: str = "/v1/chat/completions") -> bytes:
    """Ask, and let the upstream say each of these in a chunk of its own, for as long as it is listened to."""
    before = len(proxy.sent())
    proxy.send(asked(path))
    upstream = proxy.upstream(name="anthropic" if path == "/v1/messages" else "up")
    upstream.says(head)
    for content in contents:
        if not upstream.wire.closed:
            upstream.says(chunked(content) if head == CHUNKED_HEAD else content)
    return proxy.sent()[before:]


def told(proxy: Proxy) -> list[tuple[object, ...]]:
    fields = ("kind", "action", "shadow", "hit_count", "evidence", "model")
    return [tuple(data[field] for field in fields) for data in proxy.world.named("loop.detected")]


# -- the cut


def test_an_answer_that_repeats_itself_is_ended(proxy: Proxy, settled: list[Answer]) -> None:
    """With a proper end for the client, and none for the upstream (LD-8)."""
    got = streams(proxy, *LOOP)
    [(status, body, fields)] = read_replies(got)
    assert (status, fields[b"transfer-encoding"]) == (200, b"chunked")
    check_cut(body, b"".join(LOOP))
    assert proxy.upstream().wire.aborted
    assert proxy.phase() is Phase.IDLE
    assert not proxy.closed()
    assert proxy.world.engine.tally.cut == 1
    (given,) = settled
    assert (given.status, given.complete, given.failed, given.finish) == (200, True, False, "length")
    assert given.text == UNIT * (len(given.text) // len(UNIT))


def test_what_is_told_of_it(proxy: Proxy) -> None:
    """Kind, action and exact evidence; nothing of the text (LD-8, G-2)."""
    body = read_replies(streams(proxy, *LOOP))[0][1]
    times = said(payloads(body)).count(UNIT)
    evidence = f"the same {len(UNIT)} characters {times} times in one answer"
    assert told(proxy) == [("stream", "cut", False, times, evidence, "gpt-x")]
    (data,) = proxy.world.named("loop.detected")
    assert "configuration" not in str(dict(data))


def test_the_connection_lives_on_and_the_upstreams_does_not(proxy: Proxy) -> None:
    """The next request of the client is answered, on another connection to the upstream (D-1)."""
    streams(proxy, *LOOP)
    check_cut(read_replies(streams(proxy, *LOOP))[0][1], b"".join(LOOP))
    assert read_replies(proxy.exchange())[0][:2] == (200, b"fine")
    assert proxy.pools["up"].opened == 3
    assert proxy.world.engine.tally.cut == 2


def test_what_comes_after_the_cut_reaches_nobody(proxy: Proxy) -> None:
    """Bytes that were on their way already (LD-8)."""
    before = streams(proxy, *LOOP)
    upstream = proxy.upstream()
    upstream._queued_reads += 1
    upstream.process(chunked(chat("more")))
    upstream.goes()
    assert proxy.sent() == before


def test_without_the_guard_everything_passes(guards: Callable[[int], None], settled: list[Answer]) -> None:
    """It is a policy's to switch on (LD-8)."""
    guards(0)
    with Proxy(POLICY) as proxy:
        got = streams(proxy, *LOOP, finished(), DONE)
        proxy.upstream().says(b"0\r\n\r\n")
        assert got.endswith(chunked(DONE))
        assert (proxy.world.engine.tally.cut, told(proxy)) == (0, [])
        assert settled[0].finish == "stop"
        assert proxy.pools["up"].take() is not None


def test_in_shadow_it_is_told_once_and_everything_passes(guards: Callable[[int], None], settled: list[Answer]) -> None:
    """What would have been done (LD-8, E-1)."""
    guards(2)
    with Proxy(POLICY) as proxy:
        sent = [*LOOP, *LOOP, finished(), DONE]
        got = streams(proxy, *sent)
        proxy.upstream().says(b"0\r\n\r\n")
        assert got.endswith(chunked(*sent))
        assert proxy.world.engine.tally.cut == 0
        ((kind, action, shadow, *_),) = told(proxy)
        assert (kind, action, shadow) == ("stream", "cut", True)
        assert settled[0].finish == "stop"


# -- where the answer has no end of ours


@pytest.mark.parametrize("framing", ["length", "gzip"])
def test_what_cannot_be_cut_is_told(proxy: Proxy, framing: str) -> None:
    """The client knows the length already, or waits for the end of what was packed (LD-8)."""
    sent = [*LOOP, finished(), DONE]
    if framing == "length":
        head, pieces = answer(f"Content-Length: {sum(map(len, sent))}", SSE), sent
    else:
        packer = zlib.compressobj(wbits=31)
        head = answer("Transfer-Encoding: chunked", SSE, "Content-Encoding: gzip")
        pieces = [chunked(packer.compress(one) + packer.flush(zlib.Z_SYNC_FLUSH)) for one in sent] + [b"0\r\n\r\n"]
    proxy.send(asked())
    proxy.upstream().says(head, *pieces)
    assert proxy.sent().endswith(b"\r\n\r\n" + b"".join(pieces))
    assert proxy.phase() is Phase.IDLE
    assert proxy.world.engine.tally.cut == 0
    ((kind, action, shadow, *_),) = told(proxy)
    assert (kind, action, shadow) == ("stream", "warn", False)


def test_an_answer_that_is_no_stream_is_left_alone(proxy: Proxy) -> None:
    """Inside one streamed answer (LD-8)."""
    body = chat(UNIT * 40).removeprefix(b"data: ").replace(b'"delta"', b'"message"')
    got = streams(proxy, body, head=answer("Content-Type: application/json"))
    assert got.endswith(chunked(body))
    proxy.upstream().ends()
    assert told(proxy) == []


@pytest.mark.parametrize(
    ("dialect", "kind", "guarded"),
    [
        ("openai_chat", b"text/event-stream", True),
        ("openai_chat", b"Text/Event-Stream; charset=utf-8", True),
        ("openai_chat", b"", True),  # then what was asked for counts
        ("openai_chat", b"application/json", False),
        ("mcp", b"text/event-stream", False),
        ("openai_embeddings", b"text/event-stream", False),
    ],
)
def test_which_answers_are_watched(dialect: str, kind: bytes, guarded: bool) -> None:
    """Event streams of dialects that have an end (LD-8)."""
    head = ResponseHead(200, b"", b"", {"content-type": kind} if kind else {}, -1, b"", True)
    asked_for = Chat(dialect, "m", (), 1, stream=True)
    reading = read_response(asked_for, head, lambda _why: None, lambda _can_cut: RepetitionWatch(lambda *_: None))
    assert isinstance(reading, GuardedAnswer) is guarded
    assert reading is not None


def test_an_answer_until_the_end_of_the_connection(proxy: Proxy) -> None:
    """An HTTP/1.1 client gets chunks of ours, and the last of them (LD-8)."""
    got = streams(proxy, *LOOP, head=UNTIL_CLOSE_HEAD)
    check_cut(read_replies(got)[0][1], b"".join(LOOP))
    assert (proxy.upstream().wire.aborted, proxy.closed()) == (True, False)


@pytest.mark.parametrize("head", [CHUNKED_HEAD, UNTIL_CLOSE_HEAD])
def test_http_1_0_clients(proxy: Proxy, head: bytes) -> None:
    """The end of the connection is the end of the answer, and a proper one (LD-8, D-1)."""
    proxy.send(asked(version="1.0"))
    proxy.upstream().says(head, *[chunked(one) if head == CHUNKED_HEAD else one for one in LOOP[:18]])
    check_cut(proxy.sent().partition(b"\r\n\r\n")[2], b"".join(LOOP))
    assert (proxy.closed(), proxy.transport.aborted) == (True, False)


def test_a_chunk_without_end_is_waited_for(proxy: Proxy) -> None:
    """A chunk that promises megabytes cannot be filled up; the answer is cut when little of it is left (LD-8)."""
    proxy.send(asked())
    proxy.upstream().says(CHUNKED_HEAD, b"%x\r\n" % 200_000)
    sent = 0
    while not proxy.upstream().wire.closed:
        proxy.upstream().says(LOOP[0])
        sent += len(LOOP[0])
        assert sent < 200_000
    assert 200_000 - 64 * 1024 <= sent < 200_000 - 64 * 1024 + len(LOOP[0])
    body = read_replies(proxy.sent())[0][1]
    assert len(body) == 200_000
    assert payloads(body)[-2]["choices"][0]["finish_reason"] == "length"


def test_a_chunk_that_is_never_small_enough(proxy: Proxy, settled: list[Answer]) -> None:
    """Then it is told at the end (LD-8)."""
    body = b"".join([*LOOP, finished(), DONE])
    tail = b":" + b"x" * 100_000
    got = streams(proxy, body[: -len(DONE) - len(finished())])
    assert proxy.world.engine.tally.cut == 1
    proxy.send(asked())
    proxy.upstream().says(CHUNKED_HEAD, b"%x\r\n" % (len(body) + len(tail)), *LOOP, finished(), DONE, tail, b"\r\n")
    assert proxy.world.engine.tally.cut == 1
    proxy.upstream().says(b"0\r\n\r\n")
    proxy.loop.turn(20)  # it is read in pieces
    assert read_replies(proxy.sent()[len(got) :])[0][1] == body + tail
    assert len(told(proxy)) == 1  # it came to its own end
    assert settled[-1].finish == "stop"
    proxy.send(asked())
    proxy.upstream().says(CHUNKED_HEAD, b"%x\r\n" % 10**9, *LOOP)
    proxy.upstream().goes()
    assert [one[1] for one in told(proxy)] == ["cut", "warn"]


# -- the same moment


def test_an_answer_that_ends_by_itself_is_not_cut(proxy: Proxy, settled: list[Answer]) -> None:
    """The last piece brings the repetition and the end (LD-8)."""
    got = streams(proxy, b"".join([*LOOP, finished()]), DONE)
    proxy.upstream().says(b"0\r\n\r\n")
    assert got.endswith(chunked(DONE))
    assert (told(proxy), settled[0].finish) == ([], "stop")
    assert proxy.pools["up"].take() is not None


def test_the_last_chunk_comes_with_the_repetition(proxy: Proxy) -> None:
    """HTTP says that this is all: nothing is added (LD-8)."""
    sent = chunks(*LOOP)
    got = streams(proxy, head=CHUNKED_HEAD + sent)
    assert got.endswith(sent)
    assert (proxy.world.engine.tally.cut, [one[1] for one in told(proxy)]) == (0, ["warn"])
    assert not proxy.upstream().wire.closed


def test_an_upstream_that_ends_while_a_place_is_waited_for(proxy: Proxy) -> None:
    """Half an event, and then the connection is gone: the client is aborted as ever (D-1)."""
    proxy.send(asked())
    proxy.upstream().says(CHUNKED_HEAD, chunked(b"".join(LOOP) + LOOP[0][:10]))
    assert not proxy.upstream().wire.closed
    proxy.upstream().goes()
    assert proxy.transport.aborted
    assert [one[1] for one in told(proxy)] == ["warn"]


def test_nonsense_while_a_place_is_waited_for(proxy: Proxy) -> None:
    """The framing is as strict as ever up to the cut (Y-3)."""
    proxy.send(asked())
    proxy.upstream().says(CHUNKED_HEAD, chunked(b"".join(LOOP) + LOOP[0][:10]), b"nonsense\r\n")
    assert proxy.transport.aborted


def test_nonsense_behind_the_cut_is_not_looked_at(proxy: Proxy) -> None:
    """The rest of the same piece is thrown away (LD-8)."""
    proxy.send(asked())
    proxy.upstream().says(CHUNKED_HEAD, chunked(b"".join(LOOP) + LOOP[0][:10]))
    proxy.upstream().says(chunked(LOOP[0][10:]) + b"nonsense\r\n" * 3)
    check_cut(read_replies(proxy.sent())[0][1], b"".join([*LOOP, LOOP[0]]))
    assert not proxy.closed()


def test_an_answer_that_ends_while_a_place_is_waited_for(proxy: Proxy, settled: list[Answer]) -> None:
    """Line by line to its own end, after which the connection is as good as any (LD-8)."""
    proxy.send(asked())
    proxy.upstream().says(CHUNKED_HEAD, chunked(b"".join(LOOP) + finished()[:10]))
    proxy.upstream().says(chunked(finished()[10:], DONE) + b"0\r\nT: 1\r\n\r\n")
    assert proxy.sent().endswith(b"0\r\nT: 1\r\n\r\n")
    assert (told(proxy), settled[0].finish, proxy.phase()) == ([], "stop", Phase.IDLE)
    assert read_replies(proxy.exchange())[0][:2] == (200, b"fine")
    assert (proxy.pools["up"].opened, proxy.upstream().by_line) == (1, False)


def test_bytes_behind_an_answer_that_was_taken_by_line(proxy: Proxy) -> None:
    """A connection with something behind the answer is not used again (D-1)."""
    proxy.send(asked())
    proxy.upstream().says(CHUNKED_HEAD, chunked(b"".join(LOOP) + finished()[:10]))
    proxy.upstream().says(chunked(finished()[10:], DONE) + b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")
    assert proxy.upstream().wire.aborted
    assert proxy.phase() is Phase.IDLE


# -- slow clients, clients that leave


def test_a_client_that_does_not_read_while_it_is_cut(proxy: Proxy) -> None:
    """Back-pressure holds until the answer is through, and the next one is not held up by it (D-1)."""
    proxy.send(asked())
    upstream = proxy.upstream()
    upstream.says(CHUNKED_HEAD, chunked(*LOOP[:5]))
    proxy.connection.pause_writing()
    assert not upstream.wire.reading
    upstream.says(chunked(*LOOP[5:]))  # was received before that
    assert upstream.wire.aborted
    proxy.connection.resume_writing()
    check_cut(read_replies(proxy.sent())[0][1], b"".join(LOOP))
    assert read_replies(proxy.exchange())[0][:2] == (200, b"fine")
    assert proxy.upstream().wire.reading


def test_a_client_that_leaves_while_a_place_is_waited_for(proxy: Proxy, settled: list[Answer]) -> None:
    """Its upstream is freed at once (D-1)."""
    proxy.send(asked())
    upstream = proxy.upstream()
    upstream.says(CHUNKED_HEAD, chunked(b"".join(LOOP) + LOOP[0][:10]))
    proxy.connection.connection_lost(None)
    assert upstream.wire.aborted
    assert [given.status for given in settled] == [499]
    upstream.goes()
    assert len(settled) == 1


def test_a_client_that_left_before_the_piece_that_cuts(proxy: Proxy, settled: list[Answer]) -> None:
    """Nothing is written to it, and nothing fails (D-1)."""
    proxy.send(asked())
    proxy.upstream().says(CHUNKED_HEAD, chunked(*LOOP[:5]))
    proxy.transport.closed = True
    before = proxy.sent()
    proxy.upstream().says(chunked(*LOOP[5:]))
    assert (proxy.sent(), len(settled), proxy.upstream().wire.aborted) == (before, 1, True)


def test_requests_that_wait_behind_a_stream_that_is_cut(proxy: Proxy) -> None:
    """They get their answers, in order (D-1)."""
    proxy.send(asked() + asked())
    first: FakeConnection = proxy.upstream()
    first.says(CHUNKED_HEAD, *[chunked(one) for one in LOOP[:17]])
    proxy.loop.turn(3)
    assert first.wire.aborted
    proxy.upstream().says(CHUNKED_HEAD, chunks(chat("Fine."), finished(), DONE))
    first_body, second_body = [body for _, body, _ in read_replies(proxy.sent())]
    check_cut(first_body, b"".join(LOOP))
    assert said(payloads(second_body)) == "Fine."


# -- other dialects, several answers


def test_anthropic(proxy: Proxy, settled: list[Answer]) -> None:
    """The block and the message are ended; tokens are guessed, for nobody counted them (LD-8)."""
    found = payloads(read_replies(streams(proxy, *BLOCKS, path="/v1/messages"))[0][1])
    assert [event["type"] for event in found[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    tokens = len(UNIT) * (len(found) - 5) // 4
    assert found[-2]["delta"]["stop_reason"] == "max_tokens"
    assert found[-2]["usage"]["output_tokens"] == tokens
    usage = settled[0].usage
    assert usage is not None
    assert (settled[0].finish, usage.input_tokens, usage.output_tokens) == ("max_tokens", 9, tokens)


def test_thoughts_that_repeat_themselves_are_cut(proxy: Proxy, settled: list[Answer]) -> None:
    """Models repeat themselves there most of all; the answer's text is none of it (LD-8)."""
    thinking = [chat("", delta={"reasoning_content": UNIT})] * LOOPED
    found = payloads(read_replies(streams(proxy, *thinking))[0][1])
    assert found[-2]["choices"][0]["finish_reason"] == "length"
    assert (settled[0].text, proxy.world.engine.tally.cut) == ("", 1)


def test_thoughts_and_text_are_looked_at_apart(proxy: Proxy) -> None:
    """Half a loop in each is none (LD-8)."""
    half = LOOPED // 2
    sent = [chat("", delta={"reasoning_content": UNIT})] * half + [chat(UNIT)] * half + [finished(), DONE]
    assert streams(proxy, *sent).endswith(chunked(DONE))
    assert told(proxy) == []


def test_one_of_several_answers_repeats_itself(proxy: Proxy) -> None:
    """The others are worth waiting for; when they have ended, the rest is cut (LD-8)."""
    healthy = [chat(PROSE.format(number), 1) for number in range(2 * LOOPED)]
    both = [piece for pair in zip(LOOP + LOOP, healthy, strict=True) for piece in pair]
    got = streams(proxy, *both, finished(1), chat(UNIT))
    body = read_replies(got)[0][1]
    assert body.startswith(b"".join(both) + finished(1))
    (choice,) = payloads(body)[-2]["choices"]
    assert (choice["index"], choice["finish_reason"]) == (0, "length")


def test_several_answers_that_all_repeat_themselves(proxy: Proxy) -> None:
    """Each gets its end (LD-8)."""
    both = [piece for pair in zip(LOOP, [chat(UNIT, 1)] * LOOPED, strict=True) for piece in pair]
    found = payloads(read_replies(streams(proxy, *both))[0][1])
    assert [(one["index"], one["finish_reason"]) for one in found[-2]["choices"]] == [(0, "length"), (1, "length")]


def test_more_answers_than_anybody_looks_at(proxy: Proxy) -> None:
    """What is kept is bounded, and what is not looked at is not cut (Y-2)."""
    crowd = [chat(UNIT, index) for _ in range(LOOPED) for index in range(MAX_PROBED_CHOICES + 1)]
    assert streams(proxy, *crowd, DONE).endswith(chunked(DONE))
    assert told(proxy) == []


# -- faults of ours


def test_a_fault_in_ending_a_stream_lets_it_pass(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had looked (D-1)."""

    def broken(*_: object) -> bytes:
        raise KeyError("x")

    monkeypatch.setattr(ListeningReader, "ending", broken)
    assert streams(proxy, *LOOP, finished(), DONE).endswith(chunked(DONE))
    proxy.upstream().says(b"0\r\n\r\n")
    assert proxy.phase() is Phase.IDLE
    assert proxy.world.engine.tally.not_read == {"fault": 1}


def test_a_fault_in_telling_of_it_is_counted(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is cut all the same (LD-8)."""

    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(Engine, "repeated", broken)
    check_cut(read_replies(streams(proxy, *LOOP))[0][1], b"".join(LOOP))
    assert proxy.world.engine.tally.faults == 1


def test_a_response_that_is_only_read_is_never_cut() -> None:
    watch = RepetitionWatch(lambda *_: None)
    reading = PassingAnswer(ListeningReader(registry.DIALECTS["openai_chat"], watch), None, lambda _why: None)
    assert not reading.feed(LOOP)
    assert watch.found


def _chat_calls(number: int, given: str) -> list[bytes]:
    def delta(**call: Any) -> bytes:
        return chat("", delta={"tool_calls": [{"index": number, **call}]})

    opened = delta(id=f"call_{number}", type="function", function={"name": "list_files", "arguments": ""})
    return [opened, delta(function={"arguments": given[:5]}), delta(function={"arguments": given[5:]})]


def _block_calls(number: int, given: str) -> list[bytes]:
    block = {"type": "tool_use", "id": f"toolu_{number}", "name": "list_files", "input": {}}
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in (given[:5], given[5:])]
    return [
        named({"type": "content_block_start", "index": number, "content_block": block}),
        *[named({"type": "content_block_delta", "index": number, "delta": piece}) for piece in pieces],
        named({"type": "content_block_stop", "index": number}),
    ]


def _response_calls(number: int, given: str) -> list[bytes]:
    item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "list_files"}
    at = {"output_index": number, "item_id": f"fc_{number}", "sequence_number": number}
    return [
        named({"type": "response.output_item.added", "item": item | {"arguments": ""}, **at}),
        *[
            named({"type": "response.function_call_arguments.delta", "delta": piece, **at})
            for piece in (given[:5], given[5:])
        ],
        named({"type": "response.function_call_arguments.done", "arguments": given, **at}),
        named({"type": "response.output_item.done", "item": item | {"arguments": given}, **at}),
    ]


def _gemini_calls(_number: int, given: str) -> list[bytes]:
    part = {"functionCall": {"name": "list_files", "args": json.loads(given)}}
    return [events({"candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}}]})]


_CALLS = {
    "openai_chat": ([chat("")], _chat_calls),
    "anthropic_messages": (BLOCKS[:1], _block_calls),
    "openai_responses": (
        [named({"type": "response.created", "response": {"id": "resp_1"}, "sequence_number": 0})],
        _response_calls,
    ),
    "gemini": ([], _gemini_calls),
}


@pytest.mark.parametrize("dialect", _CALLS)
def test_the_eighth_equal_call_of_an_answer_ends_it(dialect: str) -> None:
    """As soon as its arguments are complete, so that no call is cut in its middle; other arguments pass (LD-8)."""
    opening, calls = _CALLS[dialect]

    def called(given: Callable[[int], str]) -> int:
        """Return the number of the call after which the stream is cut; 0 for none."""
        guarded = GuardedAnswer(registry.DIALECTS[dialect], None, pytest.fail, RepetitionWatch(lambda *_: None))
        guarded.feed(opening)
        for number in range(20):
            for event in calls(number, given(number)):
                if guarded.feed([event]):
                    assert guarded.end(RECHUNKED, None)
                    return number + 1
        return 0

    assert called(lambda _: '{"path": "src"}') == 8
    assert called(lambda number: f'{{"path": "{number % 2}"}}') in (15, 16)  # some are complete when the next begins
    assert called(lambda number: f'{{"path": "{number}"}}') == 0
