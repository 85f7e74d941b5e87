"""The real `openai` package through the real `breakloop serve`: nothing but the base URL changes, until an agent loops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import brotli  # type: ignore[import-untyped]
import openai
import pytest
import zstandard
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from breakloop.testing import Answer, StandInLLM, ThreadedLLM, body, call_tool, cut, fail, say, stall
from tests.e2e.served import Caller, Served, refusing, serving

pytestmark = pytest.mark.e2e

MODEL = "gpt-5"
LOOP = "recursive_loop_detected"
SOON = {"retry-after-ms": "5"}  # what makes an SDK try again without waiting long


@pytest.fixture(scope="module")
def llm() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread() as running:
        yield running


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    upstreams = ["--upstream", f"openai={llm.url}", "--upstream"]
    with refusing() as down, serving(tmp_path_factory.mktemp("openai"), *upstreams, f"down={down}") as running:
        yield running


@pytest.fixture
def caller(llm: ThreadedLLM, request: pytest.FixtureRequest) -> Caller:
    return Caller(llm, request.node.name)


@pytest.fixture
def client(served: Served, caller: Caller) -> Iterator[OpenAI]:
    """As anybody would make it, but for a hook that counts what it sends."""
    http = openai.DefaultHttpxClient(event_hooks={"request": [caller.note]})
    with OpenAI(api_key=caller.key, base_url=f"{served.url}/v1", timeout=5, http_client=http) as made:
        assert made.max_retries == 2
        yield made


@asynccontextmanager
async def async_client(served: Served, caller: Caller) -> AsyncIterator[AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [caller.note_async]})
    async with AsyncOpenAI(api_key=caller.key, base_url=f"{served.url}/v1", timeout=5, http_client=http) as made:
        yield made


def ask(client: OpenAI, text: str = "Why does the build fail?") -> ChatCompletion:
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])


def ask_streamed(client: OpenAI, text: str = "Why does the build fail?") -> openai.Stream[ChatCompletionChunk]:
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        stream=True,
        stream_options={"include_usage": True},
    )


async def ask_async_streamed(client: AsyncOpenAI) -> openai.AsyncStream[ChatCompletionChunk]:
    return await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Why does the build fail?"}],
        stream=True,
        stream_options={"include_usage": True},
    )


def text_of(chunk: ChatCompletionChunk) -> str:
    return (chunk.choices[0].delta.content or "") if chunk.choices else ""


class Weather(BaseModel):
    city: str
    degrees: int


WEATHER = '{"city":"Oslo","degrees":-3}'


# -- every endpoint ------------------------------------------------------------------------------------------------


def test_one_line_in_the_environment(served: Served, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-1: the banner's line is all it needs; what the client sends arrives as it is, and so does the answer."""
    (line,) = [line for line in served.banner if "OPENAI_BASE_URL" in line]
    monkeypatch.setenv("OPENAI_BASE_URL", line.partition("=")[2])
    monkeypatch.setenv("OPENAI_API_KEY", caller.key)
    caller.next(say("A missing file.").with_usage(120, 7, cached=64, reasoning=2))
    with OpenAI() as client:
        done = ask(client)
    assert done.choices[0].message.content == "A missing file."
    assert done.choices[0].finish_reason == "stop"
    assert done.model == MODEL
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (120, 7, 127)
    assert done.usage.prompt_tokens_details is not None
    assert done.usage.prompt_tokens_details.cached_tokens == 64
    (seen,) = caller.seen
    assert (seen.method, seen.target) == ("POST", "/v1/chat/completions")
    assert seen.json() == {"model": MODEL, "messages": [{"role": "user", "content": "Why does the build fail?"}]}
    assert done._request_id == f"req_{seen.number:08d}"


def test_tool_calls(client: OpenAI, caller: Caller) -> None:
    """D-1: a tool call, its result, and the end, as an agent does it; streamed calls are put together by the SDK."""
    caller.next(
        call_tool("read_file", {"path": "build.log"}, text="Let me look."),
        call_tool("read_file", {"path": "Makefile"}).with_tool("list", {"of": ["src", "tests"]}),
        say("Done."),
    )
    first = ask(client).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.content == "Let me look."
    assert first.message.tool_calls is not None
    call = first.message.tool_calls[0]
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("read_file", {"path": "build.log"})
    with client.chat.completions.stream(
        model=MODEL,
        messages=[
            {"role": "user", "content": "Why does the build fail?"},
            {"role": "assistant", "tool_calls": [call.to_dict()]},  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": call.id, "content": "no such file"},
        ],
    ) as stream:
        second = stream.get_final_completion().choices[0].message
    assert second.tool_calls is not None
    made = [(one.function.name, json.loads(one.function.arguments)) for one in second.tool_calls]
    assert made == [("read_file", {"path": "Makefile"}), ("list", {"of": ["src", "tests"]})]
    assert ask(client).choices[0].message.content == "Done."


def test_helpers_of_chat(client: OpenAI, caller: Caller) -> None:
    """D-1: `parse` and `stream`, with their typed results and events."""
    caller.next(say(WEATHER), say(WEATHER))
    parsed = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "weather"}], response_format=Weather
    )
    assert parsed.choices[0].message.parsed == Weather(city="Oslo", degrees=-3)
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "weather"}],
        response_format=Weather,
        stream_options={"include_usage": True},
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.parsed == Weather(city="Oslo", degrees=-3)
    assert final.usage is not None
    assert final.usage.completion_tokens > 0


def test_responses(client: OpenAI, caller: Caller) -> None:
    """D-1: whole, streamed, with a tool call, and by the helpers."""
    caller.next(say("Hi there.").with_usage(9, 3), call_tool("ls", {"path": "."}), say("In parts."), say(WEATHER))
    whole = client.responses.create(model=MODEL, input="Hello.")
    assert whole.output_text == "Hi there."
    assert whole.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (9, 3)
    called = client.responses.create(model=MODEL, input="List it.", previous_response_id=whole.id)
    assert [(item.type, getattr(item, "name", "")) for item in called.output] == [("function_call", "ls")]
    with client.responses.stream(model=MODEL, input="Once more.") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert (deltas, final.output_text) == (["In", " parts."], "In parts.")
    parsed = client.responses.parse(model=MODEL, input="weather", text_format=Weather)
    assert parsed.output_parsed == Weather(city="Oslo", degrees=-3)
    assert [seen.path for seen in caller.seen] == ["/v1/responses"] * 4


def test_the_other_endpoints(client: OpenAI, caller: Caller) -> None:
    """D-1: completions, embeddings (base64 on the wire), models, an upload and a download."""
    caller.next(say("Once upon a time."), say("In parts."))
    assert client.completions.create(model=MODEL, prompt="Tell.").choices[0].text == "Once upon a time."
    pieces = client.completions.create(model=MODEL, prompt="Tell more.", stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "In parts."
    found = client.embeddings.create(model=MODEL, input=["one", "two"])
    assert [vector.embedding.index(1.0) for vector in found.data] == [0, 1]
    assert [model.id for model in client.models.list()] == ["stand-in", "stand-in-mini"]
    assert client.models.retrieve("stand-in").owned_by == "stand-in"
    content = bytes(range(256)) * 4096
    client.files.create(file=("a.jsonl", content), purpose="batch")
    assert content in caller.seen[-1].body
    caller.next(body(content, content_type="application/octet-stream"))
    assert client.files.content("file-1").read() == content


def test_async_endpoints(served: Served, caller: Caller) -> None:
    """D-1: the same with the asynchronous client."""

    async def run() -> None:
        async with async_client(served, caller) as client:
            done = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}])
            assert done.choices[0].message.content == "This is a stand-in, not a model."
            assert (await client.responses.create(model=MODEL, input="b")).output_text.startswith("This is")
            async with client.responses.stream(model=MODEL, input="c") as stream:
                assert (await stream.get_final_response()).output_text.startswith("This is")
            pieces = await client.completions.create(model=MODEL, prompt="d", stream=True)
            assert "".join([piece.choices[0].text async for piece in pieces]).startswith("This is")
            assert len((await client.embeddings.create(model=MODEL, input="e")).data) == 1
            assert [model.id async for model in client.models.list()] == ["stand-in", "stand-in-mini"]

    asyncio.run(run())
    assert len(caller.seen) == len(caller.made) == 6


def test_azure(served: Served, caller: Caller) -> None:
    """D-2: the paths and the key header of Azure's client are OpenAI dialect, loops included."""
    with openai.AzureOpenAI(azure_endpoint=served.url, api_key=caller.key, api_version="2025-01-01") as client:
        for _ in range(5):
            assert ask(client).choices[0].message.content
        with pytest.raises(openai.RateLimitError) as caught:
            ask(client)
    assert caught.value.code == LOOP
    targets = {seen.target for seen in caller.seen}
    assert targets == {f"/openai/deployments/{MODEL}/chat/completions?api-version=2025-01-01"}


# -- streams -------------------------------------------------------------------------------------------------------


def test_each_chunk_comes_before_the_next_is_sent(client: OpenAI, caller: Caller) -> None:
    """D-1: the upstream lets one chunk out at a time; the client has it before the next, and the usage at the end."""
    gate = caller.stepped(say(chunks=["One", " two", " three"]).with_usage(10, 3))
    stream = ask_streamed(client)
    got = []
    for number in range(1, 5):
        assert gate.release() == number
        got.append(text_of(next(stream)))
    assert got == ["", "One", " two", " three"]
    gate.finish()
    *_, last = stream
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (10, 3)


def test_each_chunk_comes_before_the_next_is_sent_async(served: Served, caller: Caller) -> None:
    """D-1: the same with the asynchronous client, in Responses' events."""
    gate = caller.stepped(say(chunks=["One", " two"]).with_usage(10, 3))

    async def run() -> list[str]:
        async with async_client(served, caller) as client:
            stream = await client.responses.create(model=MODEL, input="Count.", stream=True)
            got: list[str] = []
            for number in range(1, 7):
                assert await asyncio.to_thread(gate.release) == number
                got.append((await anext(stream)).type)
            gate.finish()
            return got + [event.type async for event in stream]

    kinds = [kind.removeprefix("response.") for kind in asyncio.run(run())]
    assert kinds[:6] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
    ]  # fmt: skip
    assert kinds[-1] == "completed"


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(say(chunks=["One", " two", " three"]).cut(3), id="between chunks"),
        pytest.param(say(chunks=["One", " two", " three"]).cut(3, mid_chunk=True), id="inside a chunk"),
        pytest.param(say(chunks=["One", " two", " three"]).cut(3, reset=True), id="reset"),
    ],
)
def test_a_cut_stream_never_ends_cleanly(served: Served, client: OpenAI, caller: Caller, broken: Answer) -> None:
    """D-1: what came before arrives, and then the SDK's own connection error, synchronous or not."""
    caller.next(broken, broken)
    got: list[str] = []
    with pytest.raises(openai.APIConnectionError):
        got.extend(text_of(chunk) for chunk in ask_streamed(client))
    assert got == ["", "One", " two"]

    async def run() -> None:
        async with async_client(served, caller) as other:
            async for chunk in await ask_async_streamed(other):
                got.append(text_of(chunk))  # noqa: PERF401 - what came before the error matters

    with pytest.raises(openai.APIConnectionError):
        asyncio.run(run())
    assert got == ["", "One", " two"] * 2


@pytest.mark.parametrize("packed", [False, True])
def test_an_error_inside_a_stream(client: OpenAI, caller: Caller, packed: bool) -> None:
    """D-1, LD-6, C-9: it is the SDK's error, as without us; we have read it too: trying again after it is no loop."""
    broken = say("One two three.").then_fail(2, "Overloaded")
    for _ in range(7):
        caller.next(broken.compressed("gzip") if packed else broken)
        with pytest.raises(openai.APIError, match="Overloaded") as caught:
            list(ask_streamed(client))
        assert not isinstance(caught.value, openai.APIStatusError)


def test_closing_a_stream_frees_the_upstream(client: OpenAI, caller: Caller) -> None:
    """D-1: within 1 s."""
    gate = caller.stepped(say("One two three."))
    stream = ask_streamed(client)
    gate.release()
    next(stream)
    stream.close()
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


def test_a_client_that_waits_no_longer_frees_the_upstream(client: OpenAI, caller: Caller) -> None:
    """D-1: the SDK's time-out is its own error; the upstream's connection goes with it."""
    caller.next(stall())
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.2, max_retries=0))
    assert caller.wait_freed().outcome == "aborted"


# -- headers and codings -------------------------------------------------------------------------------------------


def test_headers_pass_both_ways(client: OpenAI, caller: Caller) -> None:
    """D-1: unknown ones too; the answer carries the provider's request id beside ours."""
    sent = {
        "X-Custom": "a, b; c=1",
        "OpenAI-Organization": "org-1",
        "OpenAI-Beta": "responses=v1",
        "Idempotency-Key": "once",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    limits = {"x-ratelimit-limit-requests": "500", "x-ratelimit-remaining-requests": "17", "openai-version": "2020"}
    caller.next(say("x").realistic().with_headers(*limits.items(), ("X-Odd", "a,b;c=1")))
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Headers?"}],
        extra_headers=sent,
        extra_query={"trace": "1"},
    )
    (seen,) = caller.seen
    assert seen.query == "trace=1"
    assert {name: seen.header(name) for name in sent} == sent
    assert (seen.header("user-agent") or "").startswith("OpenAI/Python")
    assert seen.header("x-stainless-lang") == "python"
    assert {name: raw.headers[name] for name in limits} == limits
    assert raw.headers["x-odd"] == "a,b;c=1"
    assert raw.headers["x-request-id"] == raw.request_id == f"req_{seen.number:08d}"
    assert raw.headers["x-breakloop-request-id"]
    assert raw.parse().choices[0].message.content == "x"


@pytest.mark.parametrize(("coding", "packed_by"), [("gzip", None), ("deflate", None), ("br", brotli.compress)])
def test_compressed_answers(
    client: OpenAI, caller: Caller, coding: str, packed_by: Callable[[bytes], bytes] | None
) -> None:
    """D-1: the upstream hears what the client takes, and answers pass packed, whole or streamed."""
    packed = say("Packed well.").compressed(coding, packed_by=packed_by)
    caller.next(packed, packed)
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=[{"role": "user", "content": "?"}])
    assert raw.headers["content-encoding"] == coding
    assert raw.parse().choices[0].message.content == "Packed well."
    stream = ask_streamed(client)
    assert stream.response.headers["content-encoding"] == coding
    assert "".join(map(text_of, stream)) == "Packed well."


# -- errors of the upstream ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "requests"),
    [
        (400, openai.BadRequestError, 1),
        (401, openai.AuthenticationError, 1),
        (404, openai.NotFoundError, 1),
        (422, openai.UnprocessableEntityError, 1),
        (429, openai.RateLimitError, 3),
        (500, openai.InternalServerError, 3),
        (503, openai.InternalServerError, 3),
    ],
)
def test_errors_of_the_upstream_are_its_own(
    client: OpenAI, caller: Caller, status: int, error: type[openai.APIStatusError], requests: int
) -> None:
    """D-1: status, body, Retry-After and request id arrive, and the SDK tries again as it does without us."""
    caller.next(*[fail(status, "not now", code="own_code", retry_after=7, headers=SOON)] * 3)
    with pytest.raises(error, match="not now") as caught:
        ask(client)
    assert type(caught.value) is error
    assert (caught.value.status_code, caught.value.code) == (status, "own_code")
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.request_id == f"req_{caller.seen[-1].number:08d}"
    assert "x-should-retry" not in caught.value.response.headers
    assert len(caller.made) == len(caller.seen) == requests


@pytest.mark.parametrize("status", [429, 500, 503])
def test_retries_after_failures_are_no_loop(client: OpenAI, caller: Caller, status: int) -> None:
    """LD-6: an upstream that fails twice before each answer is not the agent's fault; the answers are what counts."""
    failure = fail(status, headers=SOON)
    for number in range(5):
        caller.next(failure, failure, say(f"Answer {number}."))
        assert ask(client).choices[0].message.content == f"Answer {number}."
    assert len(caller.seen) == 15
    with pytest.raises(openai.RateLimitError) as caught:
        ask(client)
    assert caught.value.code == LOOP
    assert (len(caller.seen), len(caller.made)) == (15, 16)


def test_upstream_that_is_down(served: Served, caller: Caller, client: OpenAI) -> None:
    """D-1: the SDK's own error with our words, after its retries; none of them counts as a loop."""
    other = client.with_options(base_url=f"{served.url}/down/v1")
    with pytest.raises(openai.InternalServerError) as caught:
        ask(other)
    assert caught.value.status_code == 502
    assert caught.value.code == "upstream_failed"
    assert "The upstream down refused the connection." in caught.value.message
    assert caught.value.response.headers["x-breakloop-request-id"]
    assert len(caller.made) == 3
    for _ in range(6):
        with pytest.raises(openai.InternalServerError):
            ask(other.with_options(max_retries=0))


@pytest.mark.parametrize("at", ["start", "head"])
def test_upstream_that_hangs_up(client: OpenAI, caller: Caller, at: Any) -> None:
    """D-1: before its answer a 502; after the head of a whole answer a connection error, never half of it."""
    caller.next(cut(at), cut(at))
    error = openai.InternalServerError if at == "start" else openai.APIConnectionError
    with pytest.raises(error) as caught:
        ask(client.with_options(max_retries=0))
    assert not isinstance(caught.value, openai.APITimeoutError)


# -- loops ---------------------------------------------------------------------------------------------------------


def _stream_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=[{"role": "user", "content": "again"}]) as stream:
        stream.until_done()


def _responses_helper(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="again") as stream:
        stream.until_done()


WAYS: dict[str, Callable[[OpenAI], object]] = {
    "chat": ask,
    "chat streamed": lambda client: list(ask_streamed(client)),
    "chat helper": _stream_helper,
    "raw": lambda client: client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "again"}]
    ),
    "responses": lambda client: client.responses.create(model=MODEL, input="again"),
    "responses streamed": lambda client: list(client.responses.create(model=MODEL, input="again", stream=True)),
    "responses helper": _responses_helper,
    "completions": lambda client: client.completions.create(model=MODEL, prompt="again"),
    "embeddings": lambda client: client.embeddings.create(model=MODEL, input="again"),
}


async def _async_chat(client: AsyncOpenAI) -> None:
    await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "again"}])


async def _async_streamed(client: AsyncOpenAI) -> None:
    async for _ in await ask_async_streamed(client):
        pass


async def _async_responses(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="again") as stream:
        await stream.until_done()


ASYNC_WAYS: dict[str, Callable[[AsyncOpenAI], Awaitable[None]]] = {
    "chat": _async_chat,
    "chat streamed": _async_streamed,
    "responses helper": _async_responses,
}


def assert_loop(error: openai.RateLimitError) -> None:
    assert type(error) is openai.RateLimitError
    assert (error.status_code, error.code, error.type) == (429, LOOP, "rate_limit_error")
    assert "Blocked: identical request sent 6 times in 60 seconds." in error.message
    assert LOOP in str(error)
    assert error.response.headers["x-should-retry"] == "false"
    assert error.response.headers["x-breakloop-reason"] == "loop_detected"
    detail = error.response.json()["detail"]
    assert (detail["error"], detail["hit_count"], detail["cooldown_seconds"]) == (LOOP, 6, 30)


@pytest.mark.parametrize("way", WAYS)
def test_the_sixth_identical_request(client: OpenAI, caller: Caller, way: str) -> None:
    """A-1, A-3, LD-2: the SDK's own RateLimitError with our words, after exactly one HTTP request."""
    for _ in range(5):
        WAYS[way](client)
    with pytest.raises(openai.RateLimitError) as caught:
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

    with pytest.raises(openai.RateLimitError) as caught:
        asyncio.run(run())
    assert_loop(caught.value)
    assert (len(caller.seen), len(caller.made)) == (5, 6)


def test_a_client_that_leaves_at_the_last_event_is_counted(client: OpenAI, caller: Caller) -> None:
    """LD-2: the SDK hangs up at [DONE], perhaps before the upstream has ended its answer; it was an answer."""
    caller.next(*[say("One two.").stall(6)] * 5)
    for _ in range(5):
        assert "".join(map(text_of, ask_streamed(client))) == "One two."
        assert caller.wait_freed().outcome == "aborted"
    with pytest.raises(openai.RateLimitError) as caught:
        list(ask_streamed(client))
    assert_loop(caught.value)


def test_what_differs_is_no_loop(served: Served, client: OpenAI, caller: Caller) -> None:
    """LD-6, D-2: other models, other agents in the path and other texts have counters of their own."""
    for number in range(12):
        assert ask(client, f"Part {number}?").choices
    for agent in ("planner", "coder"):
        other = client.with_options(base_url=f"{served.url}/agents/{agent}/v1")
        for _ in range(5):
            assert ask(other).choices
    for _ in range(5):
        assert ask(client).choices
    assert {seen.path for seen in caller.seen} == {"/v1/chat/completions"}
    with pytest.raises(openai.RateLimitError):
        ask(client)


def test_sampling_is_no_loop(served: Served, caller: Caller) -> None:
    """LD-6: many of the same at once count as one."""
    caller.next(*[say("x").delayed(0.2)] * 12)

    async def run() -> list[ChatCompletion]:
        async with async_client(served, caller) as client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "again"}])
                    for _ in range(12)
                )
            )

    assert len(asyncio.run(run())) == len(caller.made) == 12


def test_compressed_requests_are_judged(served: Served, caller: Caller) -> None:
    """C-9: as Codex sends them; the upstream gets the very bytes."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix the build. " * 50}]}
    packed = zstandard.compress(json.dumps({"model": MODEL, "input": [item], "stream": True, "store": False}).encode())
    headers = {
        "Authorization": f"Bearer {caller.key}",
        "Content-Type": "application/json",
        "Content-Encoding": "zstd",
        "Accept": "text/event-stream",
        "originator": "codex_cli_rs",
        "User-Agent": "codex_cli_rs/0.63.0 (Linux; x86_64)",
    }
    answers = [served.ask("/v1/responses", "POST", packed, **headers) for _ in range(6)]
    assert [status for status, _, _ in answers] == [200] * 5 + [429]
    assert "response.completed" in answers[0][2]
    assert json.loads(answers[5][2])["error"]["code"] == LOOP
    assert [seen.body for seen in caller.seen] == [packed] * 5
    assert {seen.header("content-encoding") for seen in caller.seen} == {"zstd"}
