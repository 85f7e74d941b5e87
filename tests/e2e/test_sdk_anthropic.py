"""The real `anthropic` package through the real `breakloop serve`: nothing but the base URL changes. What it gets when
the upstream fails, or when it loops, is `test_sdk_anthropic_loops`' business."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import anthropic
import brotli  # type: ignore[import-untyped]
import httpx2
import pytest
from anthropic import Anthropic
from pydantic import BaseModel

from breakloop.testing import Answer, ThreadedLLM, Usage, call_tool, say, stall
from tests.e2e.anthropic_calls import (
    MAX_TOKENS,
    MODEL,
    ask,
    ask_async_streamed,
    ask_streamed,
    async_client,
    client_of,
    gateway,
    said,
    text_of,
)
from tests.e2e.served import Caller, Served

pytestmark = pytest.mark.e2e

# What the SDK raises for a stream that breaks: as of 2.8 it leaves the errors of its HTTP client as they are.
BROKEN = (anthropic.APIConnectionError, httpx2.TransportError)


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with gateway(llm, tmp_path_factory.mktemp("anthropic")) as running:
        yield running


@pytest.fixture
def client(served: Served, caller: Caller) -> Iterator[Anthropic]:
    with client_of(served, caller) as made:
        yield made


class Weather(BaseModel):
    city: str
    degrees: int


# -- every endpoint ------------------------------------------------------------------------------------------------


def test_one_line_in_the_environment(served: Served, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """The banner's line is all it needs; what the client sends arrives as it is, and so does the answer (D-1, D-2)."""
    (line,) = [line for line in served.banner if "ANTHROPIC_BASE_URL" in line]
    monkeypatch.setenv("ANTHROPIC_BASE_URL", line.partition("=")[2])
    monkeypatch.setenv("ANTHROPIC_API_KEY", caller.key)
    caller.next(say("A missing file.").with_usage(120, 7, cached=64))
    with Anthropic() as client:
        done = ask(client)
    assert said(done) == "A missing file."
    assert (done.stop_reason, done.model) == ("end_turn", MODEL)
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.cache_read_input_tokens) == (56, 7, 64)
    (seen,) = caller.seen
    assert (seen.method, seen.target) == ("POST", "/v1/messages")
    assert seen.json() == {
        "model": MODEL,
        "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": "Why does the build fail?"}],
    }
    assert done._request_id == f"req_{seen.number:08d}"


def test_tool_use(client: Anthropic, caller: Caller) -> None:
    """A call, its result, and the end, as an agent does it; streamed calls are put together by the SDK (D-1)."""
    caller.next(
        call_tool("read_file", {"path": "build.log"}, text="Let me look."),
        call_tool("read_file", {"path": "Makefile"}).with_tool("list", {"of": ["src", "tests"]}),
        say("Done."),
    )
    first = ask(client)
    assert first.stop_reason == "tool_use"
    use = first.content[-1]
    assert use.type == "tool_use"
    assert (said(first), use.name, use.input) == ("Let me look.", "read_file", {"path": "build.log"})
    with client.messages.stream(
        model=MODEL,
        max_tokens=MAX_TOKENS,
        messages=[
            {"role": "user", "content": "Why does the build fail?"},
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "no such file"}]},
        ],
    ) as stream:
        second = stream.get_final_message()
    made = [(block.name, block.input) for block in second.content if block.type == "tool_use"]
    assert made == [("read_file", {"path": "Makefile"}), ("list", {"of": ["src", "tests"]})]
    assert said(ask(client)) == "Done."


def test_helpers(client: Anthropic, caller: Caller) -> None:
    """`stream` with its text and final message, and `parse` (D-1)."""
    caller.next(say("One two three.").with_usage(10, 3), say('{"city":"Oslo","degrees":-3}'))
    with client.messages.stream(
        model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "Count."}]
    ) as stream:
        assert list(stream.text_stream) == ["One", " two", " three."]
        final = stream.get_final_message()
    assert (final.usage.input_tokens, final.usage.output_tokens, final.stop_reason) == (10, 3, "end_turn")
    parsed = client.messages.parse(
        model=MODEL,
        max_tokens=MAX_TOKENS,
        messages=[{"role": "user", "content": "weather"}],
        output_format=Weather,
    )
    assert parsed.parsed_output == Weather(city="Oslo", degrees=-3)


def test_the_other_endpoints(served: Served, client: Anthropic, caller: Caller) -> None:
    """Counting tokens and the beta path are below /v1/messages; models need the upstream's name in the URL
    (D-1, D-2)."""
    caller.next(say().with_usage(42, 0), say("Beta."))
    counted = client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "How long?"}])
    assert counted.input_tokens == 42
    beta = client.beta.messages.create(
        model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "?"}], betas=["context-1m-2025-08-07"]
    )
    assert beta.content[0].type == "text"
    assert caller.seen[-1].path == "/v1/messages"
    assert caller.seen[-1].header("anthropic-beta") == "context-1m-2025-08-07"
    named = client.with_options(base_url=f"{served.url}/anthropic")
    assert [model.id for model in named.models.list()] == ["stand-in", "stand-in-mini"]
    assert said(ask(named))
    assert [seen.path for seen in caller.seen[-2:]] == ["/v1/models", "/v1/messages"]


def test_counting_tokens_is_no_step(client: Anthropic, caller: Caller) -> None:
    """It costs nothing and changes nothing; clients do it before each request, and as often as they like (LD-2)."""
    for _ in range(12):
        client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "Why does the build fail?"}])
    for _ in range(5):
        ask(client)
    assert len(caller.seen) == 17


def test_async_endpoints(served: Served, caller: Caller) -> None:
    """The same with the asynchronous client (D-1)."""

    async def run() -> None:
        async with async_client(served, caller) as client:
            done = await client.messages.create(
                model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "a"}]
            )
            assert said(done) == "This is a stand-in, not a model."
            async with client.messages.stream(
                model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "b"}]
            ) as stream:
                assert "".join([text async for text in stream.text_stream]) == "This is a stand-in, not a model."
                assert (await stream.get_final_message()).usage.output_tokens == 8
            counted = await client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "c"}])
            assert counted.input_tokens > 0

    asyncio.run(run())
    assert len(caller.seen) == len(caller.made) == 3


# -- streams -------------------------------------------------------------------------------------------------------


def test_each_chunk_comes_before_the_next_is_sent(client: Anthropic, caller: Caller) -> None:
    """The upstream lets one event out at a time; the client has it before the next, pings included (D-1)."""
    gate = caller.stepped(say(chunks=["One", " two"]).with_usage(10, 3))
    stream = ask_streamed(client)
    got = []
    for kind in ["message_start", "content_block_start", "ping", "content_block_delta", "content_block_delta"]:
        gate.release()
        if kind != "ping":  # the SDK keeps these to itself
            event = next(stream)
            assert event.type == kind
            got.append(text_of(event))
    assert got == ["", "", "One", " two"]
    gate.finish()
    _, end, last = stream
    assert end.type == "message_delta"
    assert (end.usage.input_tokens, end.usage.output_tokens, end.delta.stop_reason) == (10, 3, "end_turn")
    assert last.type == "message_stop"


def test_each_chunk_comes_before_the_next_is_sent_async(served: Served, caller: Caller) -> None:
    """The same with the asynchronous client and its helper (D-1)."""
    gate = caller.stepped(say(chunks=["One", " two"]))

    async def run() -> list[str]:
        async with (
            async_client(served, caller) as client,
            client.messages.stream(
                model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "Count."}]
            ) as stream,
        ):
            await asyncio.to_thread(gate.release, 3)
            texts = stream.text_stream
            got = []
            for _ in range(2):
                await asyncio.to_thread(gate.release)
                got.append(await anext(texts))
            gate.finish()
            return got + [text async for text in texts]

    assert asyncio.run(run()) == ["One", " two"]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(say(chunks=["One", " two", " three"]).cut(5), id="between chunks"),
        pytest.param(say(chunks=["One", " two", " three"]).cut(5, mid_chunk=True), id="inside a chunk"),
        pytest.param(say(chunks=["One", " two", " three"]).cut(5, reset=True), id="reset"),
    ],
)
def test_a_cut_stream_never_ends_cleanly(served: Served, client: Anthropic, caller: Caller, broken: Answer) -> None:
    """What came before arrives, and then an error of the connection, synchronous or not (D-1)."""
    caller.next(broken, broken)
    got: list[str] = []
    with pytest.raises(BROKEN):
        got.extend(map(text_of, ask_streamed(client)))
    assert "".join(got) == "One two"

    async def run() -> None:
        async with async_client(served, caller) as other:
            async for event in await ask_async_streamed(other):
                got.append(text_of(event))  # noqa: PERF401 - what came before the error matters

    with pytest.raises(BROKEN):
        asyncio.run(run())
    assert "".join(got) == "One two" * 2


@pytest.mark.parametrize("packed", [False, True])
def test_an_error_inside_a_stream(client: Anthropic, caller: Caller, packed: bool) -> None:
    """It is the SDK's error, as without us; we have read it too: trying again after it is no loop (D-1, LD-6, C-9)."""
    broken = say("One two three.").then_fail(2, "Overloaded", kind="overloaded_error")
    for _ in range(7):
        caller.next(broken.compressed("gzip") if packed else broken)
        with pytest.raises(anthropic.APIStatusError, match="Overloaded") as caught:
            list(ask_streamed(client))
        assert caught.value.type == "overloaded_error"


def test_closing_a_stream_frees_the_upstream(client: Anthropic, caller: Caller) -> None:
    """Within 1 s, by `close` and by leaving the helper's block (D-1)."""
    gate = caller.stepped(say("One two three."))
    stream = ask_streamed(client)
    gate.release()
    next(stream)
    stream.close()
    assert caller.wait_freed().outcome == "aborted"
    gate = caller.stepped(say("One two three."))
    with client.messages.stream(
        model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "Count."}]
    ) as helper:
        gate.release(4)
        assert next(iter(helper.text_stream)) == "One"
    assert caller.wait_freed().outcome == "aborted"


@pytest.mark.parametrize("chunks", [0, 2])
def test_cancelling_a_task_frees_the_upstream(served: Served, caller: Caller, chunks: int) -> None:
    """The same for a task that is cancelled, before the answer has begun or in the middle of it (D-1)."""
    caller.next(say("One two three.").stall(chunks or "start"))

    async def run() -> None:
        async with async_client(served, caller) as client:
            came = asyncio.Semaphore(0)

            async def consume() -> None:
                async for _ in await ask_async_streamed(client):
                    came.release()

            task = asyncio.create_task(consume())
            for _ in range(chunks):
                await came.acquire()
            await asyncio.to_thread(caller.wait_seen)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert (await asyncio.to_thread(caller.wait_freed)).outcome == "aborted"

    asyncio.run(run())


def test_a_client_that_waits_no_longer_frees_the_upstream(client: Anthropic, caller: Caller) -> None:
    """The SDK's time-out is its own error; the upstream's connection goes with it (D-1)."""
    caller.next(stall())
    with pytest.raises(anthropic.APITimeoutError):
        ask(client.with_options(timeout=0.2, max_retries=0))
    assert caller.wait_freed().outcome == "aborted"


# -- headers and codings -------------------------------------------------------------------------------------------


def test_headers_pass_both_ways(client: Anthropic, caller: Caller) -> None:
    """Those of Anthropic, unknown ones and the request id; prompt caching marks and counts pass untouched (D-1)."""
    sent = {
        "X-Custom": "a, b; c=1",
        "anthropic-beta": "prompt-caching-2024-07-31,extended-cache-ttl-2025-04-11",
        "Idempotency-Key": "once",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    back = {"anthropic-ratelimit-tokens-remaining": "17", "anthropic-organization-id": "org", "x-odd": "a,b;c=1"}
    answer = say("x", usage=Usage(2000, 5, cached_tokens=1500, cache_write_tokens=400)).realistic()
    caller.next(answer.with_headers(*back.items()))
    raw = client.messages.with_raw_response.create(
        model=MODEL,
        max_tokens=MAX_TOKENS,
        system=[{"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        messages=[{"role": "user", "content": "Headers?"}],
        extra_headers=sent,
    )
    (seen,) = caller.seen
    assert {name: seen.header(name) for name in sent} == sent
    assert seen.header("anthropic-version") == client.default_headers["anthropic-version"]
    assert seen.json()["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert {name: raw.headers[name] for name in back} == back
    assert raw.headers["request-id"] == raw.request_id == f"req_{seen.number:08d}"
    assert raw.headers["x-breakloop-request-id"]
    usage = raw.parse().usage
    counts = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    assert counts == (100, 1500, 400)


@pytest.mark.parametrize(("coding", "packed_by"), [("gzip", None), ("deflate", None), ("br", brotli.compress)])
def test_compressed_answers(
    client: Anthropic, caller: Caller, coding: str, packed_by: Callable[[bytes], bytes] | None
) -> None:
    """The upstream hears what the client takes, and answers pass packed, whole or streamed (D-1)."""
    packed = say("Packed well.").compressed(coding, packed_by=packed_by)
    caller.next(packed, packed)
    raw = client.messages.with_raw_response.create(
        model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "?"}]
    )
    assert raw.headers["content-encoding"] == coding
    assert said(raw.parse()) == "Packed well."
    stream = ask_streamed(client)
    assert stream.response.headers["content-encoding"] == coding
    assert "".join(map(text_of, stream)) == "Packed well."
