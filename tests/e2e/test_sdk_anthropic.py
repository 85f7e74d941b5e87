"""The real `anthropic` package through the real `breakloop serve`: nothing but the base URL changes, until it loops.

The default upstream refuses connections here, so that whatever works has found its way to `anthropic` by its path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anthropic
import brotli  # type: ignore[import-untyped]
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel

from breakloop.testing import Answer, StandInLLM, ThreadedLLM, Usage, call_tool, cut, fail, say, stall
from tests.e2e.served import Caller, Served, refusing, serving

pytestmark = pytest.mark.e2e

MODEL = "claude-sonnet-5"
MAX_TOKENS = 512
LOOP = "recursive_loop_detected"
SOON = {"retry-after-ms": "5"}  # what makes an SDK try again without waiting long
# What the SDK raises for a stream that breaks: as of 2.8 it leaves the errors of its HTTP client as they are.
BROKEN = (anthropic.APIConnectionError, httpx2.TransportError)


@pytest.fixture(scope="module")
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread() as running:
        yield running


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with (
        refusing() as down,
        serving(
            tmp_path_factory.mktemp("anthropic"), "--upstream", f"openai={down}", "--upstream", f"anthropic={llm.url}"
        ) as running,
    ):
        yield running


@pytest.fixture
def caller(llm: ThreadedLLM, request: pytest.FixtureRequest) -> Caller:
    return Caller(llm, request.node.name)


@pytest.fixture
def client(served: Served, caller: Caller) -> Iterator[Anthropic]:
    """As anybody would make it, but for a hook that counts what it sends."""
    http = anthropic.DefaultHttpxClient(event_hooks={"request": [caller.note]})
    with Anthropic(api_key=caller.key, base_url=served.url, timeout=5, http_client=http) as made:
        assert made.max_retries == 2
        yield made


@asynccontextmanager
async def async_client(served: Served, caller: Caller) -> AsyncIterator[AsyncAnthropic]:
    http = anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [caller.note_async]})
    async with AsyncAnthropic(api_key=caller.key, base_url=served.url, timeout=5, http_client=http) as made:
        yield made


def ask(client: Anthropic, text: str = "Why does the build fail?") -> Message:
    return client.messages.create(model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": text}])


def ask_streamed(client: Anthropic) -> anthropic.Stream[RawMessageStreamEvent]:
    return client.messages.create(
        model=MODEL,
        max_tokens=MAX_TOKENS,
        messages=[{"role": "user", "content": "Why does the build fail?"}],
        stream=True,
    )


async def ask_async_streamed(client: AsyncAnthropic) -> anthropic.AsyncStream[RawMessageStreamEvent]:
    return await client.messages.create(
        model=MODEL,
        max_tokens=MAX_TOKENS,
        messages=[{"role": "user", "content": "Why does the build fail?"}],
        stream=True,
    )


def text_of(event: RawMessageStreamEvent) -> str:
    return event.delta.text if event.type == "content_block_delta" and event.delta.type == "text_delta" else ""


def said(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


class Weather(BaseModel):
    city: str
    degrees: int


# -- every endpoint ------------------------------------------------------------------------------------------------


def test_one_line_in_the_environment(served: Served, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-1, D-2: the banner's line is all it needs; what the client sends arrives as it is, and so does the answer."""
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
    """D-1: a call, its result, and the end, as an agent does it; streamed calls are put together by the SDK."""
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
    """D-1: `stream` with its text and final message, and `parse`."""
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
    """D-1, D-2: counting tokens and the beta path are below /v1/messages; models need the upstream's name in the URL."""
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
    """LD-2: it costs nothing and changes nothing; clients do it before each request, and as often as they like."""
    for _ in range(12):
        client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "Why does the build fail?"}])
    for _ in range(5):
        ask(client)
    assert len(caller.seen) == 17


def test_async_endpoints(served: Served, caller: Caller) -> None:
    """D-1: the same with the asynchronous client."""

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
    """D-1: the upstream lets one event out at a time; the client has it before the next, pings included."""
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
    """D-1: the same with the asynchronous client and its helper."""
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
    """D-1: what came before arrives, and then an error of the connection, synchronous or not."""
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
    """D-1, LD-6, C-9: it is the SDK's error, as without us; we have read it too: trying again after it is no loop."""
    broken = say("One two three.").then_fail(2, "Overloaded", kind="overloaded_error")
    for _ in range(7):
        caller.next(broken.compressed("gzip") if packed else broken)
        with pytest.raises(anthropic.APIStatusError, match="Overloaded") as caught:
            list(ask_streamed(client))
        assert caught.value.type == "overloaded_error"


def test_closing_a_stream_frees_the_upstream(client: Anthropic, caller: Caller) -> None:
    """D-1: within 1 s, by `close` and by leaving the helper's block."""
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
    """D-1: the same for a task that is cancelled, before the answer has begun or in the middle of it."""
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
    """D-1: the SDK's time-out is its own error; the upstream's connection goes with it."""
    caller.next(stall())
    with pytest.raises(anthropic.APITimeoutError):
        ask(client.with_options(timeout=0.2, max_retries=0))
    assert caller.wait_freed().outcome == "aborted"


# -- headers and codings -------------------------------------------------------------------------------------------


def test_headers_pass_both_ways(client: Anthropic, caller: Caller) -> None:
    """D-1: those of Anthropic, unknown ones and the request id; prompt caching marks and counts pass untouched."""
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
    """D-1: the upstream hears what the client takes, and answers pass packed, whole or streamed."""
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


# -- errors of the upstream ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "requests"),
    [
        (400, anthropic.BadRequestError, 1),
        (401, anthropic.AuthenticationError, 1),
        (429, anthropic.RateLimitError, 3),
        (500, anthropic.InternalServerError, 3),
        (529, anthropic.InternalServerError, 3),
    ],
)
def test_errors_of_the_upstream_are_its_own(
    client: Anthropic, caller: Caller, status: int, error: type[anthropic.APIStatusError], requests: int
) -> None:
    """D-1: status, body, Retry-After and request id arrive, and the SDK tries again as it does without us."""
    caller.next(*[fail(status, "not now", retry_after=7, headers=SOON)] * 3)
    with pytest.raises(error, match="not now") as caught:
        ask(client)
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error", 500: "api_error"}
    assert (caught.value.status_code, caught.value.type) == (status, kinds.get(status, "overloaded_error"))
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.request_id == f"req_{caller.seen[-1].number:08d}"
    assert "x-should-retry" not in caught.value.response.headers
    assert len(caller.made) == len(caller.seen) == requests


@pytest.mark.parametrize("status", [429, 500, 529])
def test_retries_after_failures_are_no_loop(client: Anthropic, caller: Caller, status: int) -> None:
    """LD-6: an upstream that fails twice before each answer is not the agent's fault; the answers are what counts."""
    failure = fail(status, headers=SOON)
    for number in range(5):
        caller.next(failure, failure, say(f"Answer {number}."))
        assert said(ask(client)) == f"Answer {number}."
    assert len(caller.seen) == 15
    with pytest.raises(anthropic.RateLimitError, match=LOOP):
        ask(client)
    assert (len(caller.seen), len(caller.made)) == (15, 16)


def test_upstream_that_is_down(served: Served, client: Anthropic, caller: Caller) -> None:
    """D-1: the SDK's own error with our words, after its retries; none of them counts as a loop."""
    other = client.with_options(base_url=f"{served.url}/openai")
    with pytest.raises(anthropic.InternalServerError) as caught:
        ask(other)
    assert caught.value.status_code == 502
    assert caught.value.type == "api_error"
    assert caught.value.api_message == "The upstream openai refused the connection. (upstream_failed)"
    body = caught.value.response.json()
    assert body["request_id"] == caught.value.response.headers["x-breakloop-request-id"]
    assert len(caller.made) == 3
    for _ in range(6):
        with pytest.raises(anthropic.InternalServerError):
            ask(other.with_options(max_retries=0))


@pytest.mark.parametrize("at", ["start", "head"])
def test_upstream_that_hangs_up(client: Anthropic, caller: Caller, at: Any) -> None:
    """D-1: before its answer a 502; after the head of a whole answer a connection error, never half of it."""
    caller.next(cut(at), cut(at))
    error = anthropic.InternalServerError if at == "start" else anthropic.APIConnectionError
    with pytest.raises(error) as caught:
        ask(client.with_options(max_retries=0))
    assert not isinstance(caught.value, anthropic.APITimeoutError)


# -- loops ---------------------------------------------------------------------------------------------------------


def _helper(client: Anthropic) -> None:
    with client.messages.stream(
        model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "again"}]
    ) as stream:
        stream.until_done()


WAYS: dict[str, Callable[[Anthropic], object]] = {
    "create": ask,
    "streamed": lambda client: list(ask_streamed(client)),
    "helper": _helper,
    "raw": lambda client: client.messages.with_raw_response.create(
        model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "again"}]
    ),
    "beta": lambda client: client.beta.messages.create(
        model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "again"}]
    ),
}


async def _async_create(client: AsyncAnthropic) -> None:
    await client.messages.create(model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "again"}])


async def _async_streamed(client: AsyncAnthropic) -> None:
    async for _ in await ask_async_streamed(client):
        pass


async def _async_helper(client: AsyncAnthropic) -> None:
    async with client.messages.stream(
        model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": "again"}]
    ) as stream:
        await stream.until_done()


ASYNC_WAYS: dict[str, Callable[[AsyncAnthropic], Awaitable[None]]] = {
    "create": _async_create,
    "streamed": _async_streamed,
    "helper": _async_helper,
}


def assert_loop(error: anthropic.RateLimitError) -> None:
    assert type(error) is anthropic.RateLimitError
    assert (error.status_code, error.type) == (429, "rate_limit_error")
    assert error.api_message is not None
    assert error.api_message.startswith("Blocked: identical request sent 6 times in 60 seconds.")
    assert LOOP in error.api_message
    assert LOOP in str(error)
    assert error.response.headers["x-should-retry"] == "false"
    assert error.response.headers["x-breakloop-reason"] == "loop_detected"
    detail = error.response.json()["detail"]
    assert (detail["error"], detail["hit_count"], detail["cooldown_seconds"]) == (LOOP, 6, 30)


@pytest.mark.parametrize("way", WAYS)
def test_the_sixth_identical_request(client: Anthropic, caller: Caller, way: str) -> None:
    """A-1, A-3, LD-2: the SDK's own RateLimitError with our words, after exactly one HTTP request."""
    for _ in range(5):
        WAYS[way](client)
    with pytest.raises(anthropic.RateLimitError) as caught:
        WAYS[way](client)
    assert_loop(caught.value)
    assert (len(caller.seen), len(caller.made)) == (5, 6)


@pytest.mark.parametrize("way", ASYNC_WAYS)
def test_the_sixth_identical_request_async(served: Served, caller: Caller, way: str) -> None:
    """A-1, A-3, LD-2: the same with the asynchronous client."""

    async def run() -> None:
        async with async_client(served, caller) as client:
            for _ in range(5):
                await ASYNC_WAYS[way](client)
            await ASYNC_WAYS[way](client)

    with pytest.raises(anthropic.RateLimitError) as caught:
        asyncio.run(run())
    assert_loop(caught.value)
    assert (len(caller.seen), len(caller.made)) == (5, 6)


def test_what_differs_is_no_loop(served: Served, client: Anthropic, caller: Caller) -> None:
    """LD-6, D-2: other agents in the path and other texts have counters of their own."""
    for number in range(12):
        assert said(ask(client, f"Part {number}?"))
    for agent in ("planner", "coder"):
        other = client.with_options(base_url=f"{served.url}/agents/{agent}")
        for _ in range(5):
            assert said(ask(other))
    assert {seen.path for seen in caller.seen} == {"/v1/messages"}
    assert len(caller.seen) == 22
