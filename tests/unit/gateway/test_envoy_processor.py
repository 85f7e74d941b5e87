"""Envoy's `ext_proc`: what each message of a stream is answered with, and how a call is settled. That the messages are
Envoy's is shown by the real one, in tests/e2e/test_gateways.py."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.gateway.envoy_grpc import PROCESSOR
from breakloop.gateway.envoy_messages import (
    REQUEST_BODY,
    REQUEST_HEADERS,
    REQUEST_TRAILERS,
    RESPONSE_BODY,
    RESPONSE_HEADERS,
    fields,
    numbers,
    parse_processing,
    part,
)
from breakloop.gateway.envoy_processor import EnvoyProcessor, NoDecisionError
from breakloop.gateway.http_request import RequestLimits
from breakloop.model.call import CLIENT_LEFT, Answer
from breakloop.policy.client import CallerKeys
from breakloop.policy.descriptors import ContextSettings
from tests.builders import SECRET, World, bucket, bundle, chat_body, decide_with, exact, policy, tail, user, world
from tests.unit.gateway.repeating import LOOP, POLICY, check_cut
from tests.unit.gateway.test_envoy_grpc import serving

TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
USED = b'{"choices": [{"message": {"content": "Done."}}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'
MODES = {"NONE": 0, "STREAMED": 1, "BUFFERED": 2}


def head(kind: int, named: dict[str, str], *, last: bool = False) -> bytes:
    pairs = b"".join(part(1, part(1, name.encode()) + part(3, text.encode())) for name, text in named.items())
    return part(kind, part(1, pairs) + (b"\x18\x01" if last else b""))


def asked(path: str = "/v1/chat/completions", *, last: bool = False, peer: str = "", **named: str) -> bytes:
    """The head of a request, as Envoy sends it."""
    method = "GET" if last else "POST"
    attributes = part(1, part(1, b"source.address") + part(2, part(3, peer.encode())))
    given = part(9, part(1, b"envoy.filters.http.ext_proc") + part(2, attributes)) if peer else b""
    pseudo = {":method": method, ":path": path, ":authority": "api.test"}
    spelled = {name.replace("_", "-"): text for name, text in named.items()}
    return head(REQUEST_HEADERS, {**pseudo, **spelled}, last=last) + given + part(11, b"\x08\x02\x10\x01")


def body(content: bytes, kind: int = REQUEST_BODY, *, last: bool = True) -> bytes:
    return part(kind, part(1, content) + (b"\x10\x01" if last else b""))


def answered(status: int = 200, kind: str = "application/json", *, last: bool = False) -> bytes:
    return head(RESPONSE_HEADERS, {":status": str(status), "content-type": kind}, last=last)


class Reply(NamedTuple):
    """A `ProcessingResponse`, as Envoy reads it."""

    kind: int  # the field; 7: an immediate response
    status: int
    headers: dict[str, str]
    removed: list[str]
    body: bytes | None  # None: as it is


def read(data: bytes) -> Reply:
    ((kind, content),) = fields(data)
    parts = dict(fields(content))
    if kind == 7:
        return Reply(kind, numbers(parts[1])[1], _set(parts.get(2, b"")), [], parts.get(3, b""))
    common = dict(fields(parts.get(1, b"")))
    change = common.get(2, b"")
    removed = [name.decode() for number, name in fields(change) if number == 2]
    new: bytes | None = None
    if 3 in common:
        new = dict(fields(common[3])).get(1, b"")
        assert new or numbers(common[3]) == {2: 1}, "an empty body is spelled clear_body"
    return Reply(kind, 0, _set(change), removed, new)


def _set(change: bytes) -> dict[str, str]:
    found = [dict(fields(dict(fields(option))[1])) for number, option in fields(change) if number == 1]
    return {pair[1].decode().lower(): pair[3].decode() for pair in found}


def processor(here: World) -> EnvoyProcessor:
    return EnvoyProcessor(here.door._admission, RequestLimits())


def process(here: World, *messages: bytes, key: bytes = b"") -> list[Reply]:
    """What Envoy is told in one stream."""

    async def run() -> list[Reply]:
        async def sent() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        return [read(reply) async for reply in processor(here).process(sent(), key)]

    return asyncio.run(run())


def conversation(**more: Any) -> bytes:
    return chat_body(user("Read the file."), tools=[TOOL], **more)


def test_a_request_and_its_response_pass() -> None:
    """Each message is answered in kind, unchanged; our fields are added to the head of the response (D-3)."""
    here = world(bundle(policy("p", bucket(rate=100, burst=100))))
    got = process(here, asked(), body(conversation()), answered(), body(USED, RESPONSE_BODY))
    assert [reply.kind for reply in got] == [1, 3, 2, 4]
    assert [reply.body for reply in got] == [None] * 4
    assert got[2].headers["ratelimit-remaining"] == "99"
    assert got[0].headers == got[1].headers == got[3].headers == {}


def test_a_loop_is_denied_before_it_is_forwarded() -> None:
    """In the dialect of the client, with the status, and the stream is over (LD-1, LD-5)."""
    here = world(bundle(policy("p", loop=tail(max_hits=2))))
    got = [process(here, asked(), body(conversation()), answered()) for _ in range(3)]
    assert [len(one) for one in got] == [3, 3, 2]
    denied = got[2][-1]
    assert (denied.kind, denied.status) == (7, 429)
    assert denied.headers["x-breakloop-reason"] == "loop_detected"
    assert denied.body is not None
    assert json.loads(denied.body)["error"]["code"] == "recursive_loop_detected"


def test_requests_without_a_body() -> None:
    """Are decided by their head (LD-1)."""
    here = world(bundle(policy("p", loop=exact(3))))
    got = [process(here, asked("/x", last=True)) for _ in range(3)]
    assert [one[0].kind for one in got] == [1, 1, 7]


def test_clients_are_told_apart() -> None:
    """By the address that Envoy states, without its port (C-4)."""
    here = world(bundle(policy("p", loop=exact(2))))
    peers = ["198.51.100.7:1", "[2001:db8::1]:1", "198.51.100.7:2", "[2001:db8::1]:2"]
    got = [process(here, asked("/x", last=True, peer=peer))[0].kind for peer in peers]
    assert got == [1, 1, 7, 7]


@pytest.mark.parametrize("packed", [False, True])
def test_an_agent_is_steered(*, packed: bool) -> None:
    """The note is in the body that Envoy forwards, which is not compressed (LD-5)."""
    here = world(bundle(policy("p", loop=tail(max_hits=1, action="steer"))))
    sent = gzip.compress(conversation()) if packed else conversation()
    question = asked(content_encoding="gzip") if packed else asked()
    process(here, question, body(sent))
    steered = process(here, question, body(sent))[1]
    assert steered.body is not None
    assert "without progress" in json.loads(steered.body)["messages"][-1]["content"]
    assert (steered.removed, steered.headers) == (["content-encoding"], {"content-length": str(len(steered.body))})
    assert here.engine.tally.steered == 1


def test_an_agent_is_landed() -> None:
    """Tools are switched off in the body that Envoy forwards, and the client sees the action (LD-10)."""
    here = world(bundle(policy("p", loop=tail(max_hits=1, action="land"))))
    process(here, asked(), body(conversation()))
    landed = process(here, asked(), body(conversation()), answered())
    assert landed[1].body is not None
    assert json.loads(landed[1].body)["tool_choice"] == "none"
    assert landed[2].headers["x-breakloop-action"] == "land"
    assert here.engine.tally.landed == 1


def test_a_call_is_settled_by_its_response(settled: list[Answer]) -> None:
    """With what it used, whatever the pieces that it arrives in (C-9)."""
    here = world(POLICY)
    pieces = [body(USED[:30], RESPONSE_BODY, last=False), body(USED[30:], RESPONSE_BODY)]
    process(here, asked(), body(conversation()), answered(), *pieces)
    (given,) = settled
    assert (given.status, given.complete, given.text) == (200, True, "Done.")
    assert given.usage is not None
    assert (given.usage.input_tokens, given.usage.output_tokens) == (7, 3)


@pytest.mark.parametrize(
    ("messages", "status", "complete"),
    [
        ((answered(500), body(b"no", RESPONSE_BODY)), 500, True),
        ((answered(204, last=True),), 204, True),
        ((answered(), body(USED[:30], RESPONSE_BODY, last=False)), CLIENT_LEFT, False),
        ((), CLIENT_LEFT, False),
    ],
    ids=["failed", "empty", "cut-off", "none"],
)
def test_every_call_is_settled_once(
    messages: tuple[bytes, ...], status: int, complete: bool, settled: list[Answer]
) -> None:
    """Also if the response is an error, has no body, or never ends (C-9)."""
    process(world(POLICY), asked(), body(conversation()), *messages)
    assert [(given.status, given.complete) for given in settled] == [(status, complete)]


@pytest.mark.parametrize("split", [1, 7, 4096])
def test_a_stream_that_repeats_itself_is_ended(
    split: int, monkeypatch: pytest.MonkeyPatch, settled: list[Answer]
) -> None:
    """In the piece that repeats, with the dialect's own end; nothing after it reaches the client (LD-8)."""
    decide_with(monkeypatch, guards_stream=1)
    here, stream = world(POLICY), b"".join(LOOP)
    pieces = [stream[at : at + split] for at in range(0, len(stream), split)]
    sent = [body(piece, RESPONSE_BODY, last=False) for piece in pieces]
    got = process(here, asked(), body(conversation(stream=True)), answered(kind="text/event-stream"), *sent)[3:]
    arrived = b"".join(piece if reply.body is None else reply.body for piece, reply in zip(pieces, got, strict=True))
    check_cut(arrived, stream)
    assert here.engine.tally.cut == 1
    assert [given.status for given in settled] == [200]


def test_trailers_pass() -> None:
    """Envoy sends them if it is told to."""
    here = world(bundle(policy("p")))
    got = process(here, asked(), body(conversation()), part(REQUEST_TRAILERS, b""))
    assert [reply.kind for reply in got] == [1, 3, 5]


def test_responses_of_envoy_itself_pass() -> None:
    """Such as a 413: the request was never complete, so nothing was decided or is settled."""
    got = process(world(bundle(policy("p"))), asked(), answered(413), body(b"too large", RESPONSE_BODY))
    assert [reply.kind for reply in got] == [1, 2, 4]


@pytest.mark.parametrize("mode", ["NONE", "STREAMED"])
def test_bodies_that_do_not_come_whole_are_refused(mode: str) -> None:
    """A piece of a conversation would be taken for a loop. The message names the field of Envoy's file (Y-2)."""
    message = head(REQUEST_HEADERS, {":path": "/x"}) + part(11, b"\x08%c" % MODES[mode])
    with pytest.raises(ValueError, match="request_body_mode of Envoy's ext_proc filter must be BUFFERED"):
        process(world(bundle(policy("p"))), message)


def test_a_second_body_is_refused() -> None:
    """From an Envoy that does not state how it sends bodies (Y-2)."""
    with pytest.raises(ValueError, match="must be BUFFERED"):
        process(world(bundle(policy("p"))), asked(), body(conversation(), last=False), body(b"more"))


def test_without_a_bundle_there_is_no_decision() -> None:
    """Envoy then acts as configured for failures (P-4)."""
    with pytest.raises(NoDecisionError, match="no_bundle_loaded"):
        process(world(load=False), asked("/x", last=True))


def test_callers_are_checked() -> None:
    """Envoy's own key admits its calls; a request without any key is refused (Y-6)."""
    keys = CallerKeys([f"envoy={sha256(b'envoy-key').hexdigest()}"])
    here = world(bundle(policy("p")), settings=ContextSettings(secret=SECRET, callers=keys))
    assert process(here, asked("/x", last=True))[0].status == 401
    assert process(here, asked("/x", last=True), key=b"envoy-key")[0].kind == 1


def test_a_header_field_with_a_line_break_is_refused() -> None:
    """As everywhere: it would be another field (Y-2)."""
    (refused,) = process(world(bundle(policy("p"))), asked("/x", last=True, x="a\nb: c"))
    assert (refused.kind, refused.status) == (7, 400)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing but `ValueError` comes out of it (Y-2)."""
    with contextlib.suppress(ValueError):
        parse_processing(data)


def test_over_grpc(free_port: Callable[[], int]) -> None:
    """Faults of the messages end the stream with a status that Envoy treats as a failure (P-4)."""

    async def test() -> None:
        port = free_port()
        async with serving(lambda _request: None, port), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as link:
            stream = link.stream_stream(f"/{PROCESSOR}/Process")
            got = [read(reply) async for reply in stream(iter([asked("/x", last=True), answered()]))]
            assert [reply.kind for reply in got] == [1, 2]
            with pytest.raises(grpc.aio.AioRpcError) as error:
                _ = [reply async for reply in stream(iter([b"\xff"]))]
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(test())
