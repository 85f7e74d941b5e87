"""The real `openai` package through the real `breakloop serve`: nothing but the base URL changes. What it gets when the
upstream fails, or when it loops, is `test_sdk_openai_loops`' business."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress

import brotli  # type: ignore[import-untyped]
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from breakloop.testing import Answer, ThreadedLLM, body, call_tool, say, stall
from tests.e2e.openai_calls import (
    LOOP,
    MODEL,
    ask,
    ask_async_streamed,
    ask_streamed,
    async_client,
    client_of,
    gateway,
    text_of,
)
from tests.e2e.served import Caller, Served

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with gateway(llm, tmp_path_factory.mktemp("openai")) as running:
        yield running


@pytest.fixture
def client(served: Served, caller: Caller) -> Iterator[OpenAI]:
    with client_of(served, caller) as made:
        yield made


class Weather(BaseModel):
    city: str
    degrees: int


WEATHER = '{"city":"Oslo","degrees":-3}'


# -- every endpoint ------------------------------------------------------------------------------------------------


def test_one_line_in_the_environment(served: Served, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """The banner's line is all it needs; what the client sends arrives as it is, and so does the answer (D-1)."""
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
    """A tool call, its result, and the end, as an agent does it; streamed calls are put together by the SDK (D-1)."""
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
    """`parse` and `stream`, with their typed results and events (D-1)."""
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
    """Whole, streamed, with a tool call, and by the helpers (D-1)."""
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
    """Completions, embeddings (base64 on the wire), models, an upload and a download (D-1)."""
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
    """The same with the asynchronous client (D-1)."""

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
    """The paths and the key header of Azure's client are OpenAI dialect, loops included (D-2)."""
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
    """The upstream lets one chunk out at a time; the client has it before the next, and the usage at the end (D-1)."""
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
    """The same with the asynchronous client, in Responses' events (D-1)."""
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
    """What came before arrives, and then the SDK's own connection error, synchronous or not (D-1)."""
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
    """It is the SDK's error, as without us; we have read it too: trying again after it is no loop (D-1, LD-6, C-9)."""
    broken = say("One two three.").then_fail(2, "Overloaded")
    for _ in range(7):
        caller.next(broken.compressed("gzip") if packed else broken)
        with pytest.raises(openai.APIError, match="Overloaded") as caught:
            list(ask_streamed(client))
        assert not isinstance(caught.value, openai.APIStatusError)


def test_closing_a_stream_frees_the_upstream(client: OpenAI, caller: Caller) -> None:
    """Closing a stream frees the upstream: within 1 s (D-1)."""
    gate = caller.stepped(say("One two three."))
    stream = ask_streamed(client)
    gate.release()
    next(stream)
    stream.close()
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


def test_a_client_that_waits_no_longer_frees_the_upstream(client: OpenAI, caller: Caller) -> None:
    """The SDK's time-out is its own error; the upstream's connection goes with it (D-1)."""
    caller.next(stall())
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.2, max_retries=0))
    assert caller.wait_freed().outcome == "aborted"


# -- headers and codings -------------------------------------------------------------------------------------------


def test_headers_pass_both_ways(client: OpenAI, caller: Caller) -> None:
    """Unknown ones too; the answer carries the provider's request id beside ours (D-1)."""
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
    """The upstream hears what the client takes, and answers pass packed, whole or streamed (D-1)."""
    packed = say("Packed well.").compressed(coding, packed_by=packed_by)
    caller.next(packed, packed)
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=[{"role": "user", "content": "?"}])
    assert raw.headers["content-encoding"] == coding
    assert raw.parse().choices[0].message.content == "Packed well."
    stream = ask_streamed(client)
    assert stream.response.headers["content-encoding"] == coding
    assert "".join(map(text_of, stream)) == "Packed well."
