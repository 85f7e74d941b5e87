"""The real `openai` package through the real `breakloop serve`, when the upstream fails and when an agent loops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import openai
import pytest
import zstandard
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion

from breakloop.testing import ThreadedLLM, call_tool, cut, fail, say
from tests.e2e.openai_calls import (
    LOOP,
    MODEL,
    SOON,
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
    """Status, body, Retry-After and request id arrive, and the SDK tries again as it does without us (D-1)."""
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
    """An upstream that fails twice before each answer is not the agent's fault; the answers are what counts (LD-6)."""
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
    """The SDK's own error with our words, after its retries; none of them counts as a loop (D-1)."""
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
    """Before its answer a 502; after the head of a whole answer a connection error, never half of it (D-1)."""
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
    """The SDK's own RateLimitError with our words, after exactly one HTTP request (A-1, A-3, LD-2)."""
    for _ in range(5):
        WAYS[way](client)
    with pytest.raises(openai.RateLimitError) as caught:
        WAYS[way](client)
    assert_loop(caught.value)
    assert (len(caller.seen), len(caller.made)) == (5, 6)


def test_embeddings_are_not_blocked(client: OpenAI, caller: Caller) -> None:
    """They do nothing that an agent could loop on (LD-2)."""
    for _ in range(8):
        client.embeddings.create(model=MODEL, input="again")
    assert len(caller.seen) == 8


@pytest.mark.parametrize("way", ASYNC_WAYS)
def test_the_sixth_identical_request_async(served: Served, caller: Caller, way: str) -> None:
    """The same with the asynchronous client (A-1, A-3, LD-2)."""

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
    """The SDK hangs up at [DONE], perhaps before the upstream has ended its answer; it was an answer (LD-2)."""
    caller.next(*[say("One two.").stall(6)] * 5)
    for _ in range(5):
        assert "".join(map(text_of, ask_streamed(client))) == "One two."
        assert caller.wait_freed().outcome == "aborted"
    with pytest.raises(openai.RateLimitError) as caught:
        list(ask_streamed(client))
    assert_loop(caught.value)


def test_what_differs_is_no_loop(served: Served, client: OpenAI, caller: Caller) -> None:
    """Other models, other agents in the path and other texts have counters of their own (LD-6, D-2)."""
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
    """Many of the same at once count as one (LD-6)."""
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
    """As Codex sends them; the upstream gets the very bytes (C-9)."""
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
    assert [status for status, _, _ in answers] == [200] * 5 + [400]  # which ends a run of Codex
    assert "response.completed" in answers[0][2]
    assert json.loads(answers[5][2])["error"]["code"] == LOOP
    assert [seen.body for seen in caller.seen] == [packed] * 5
    assert {seen.header("content-encoding") for seen in caller.seen} == {"zstd"}


# -- conversations that the provider keeps -------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kept", ["previous_response_id", "conversation"])
def test_loops_in_conversations_that_the_provider_keeps(
    client: OpenAI, caller: Caller, kept: str, streamed: bool
) -> None:
    """Requests have only results; the calls were in the answers. Healthy work of the same length passes (LD-4)."""
    caller.next(*[call_tool("list_orders", {"page": number}) for number in range(12)], *[call_tool("look")] * 12)
    before = {"conversation": f"conv_{caller.key}"} if kept == "conversation" else {}
    with pytest.raises(openai.APIStatusError) as caught:
        work(client, before, turns=24, streamed=streamed)
    assert caught.value.code == LOOP
    assert "`look` returned the same 4 bytes 5 times in a row" in str(caught.value)
    assert len(caller.seen) == 12 + 5


def work(client: OpenAI, before: dict[str, str], turns: int, *, streamed: bool) -> None:
    sent: Any = "Sort the orders."
    for _ in range(turns):
        if streamed:
            with client.responses.stream(model=MODEL, input=sent, **before) as stream:  # type: ignore[call-overload]
                answer: Any = stream.get_final_response()
        else:
            answer = client.responses.create(model=MODEL, input=sent, **before)  # type: ignore[call-overload]
        if "conversation" not in before:
            before["previous_response_id"] = answer.id
        (made,) = answer.output
        sent = [{"type": "function_call_output", "call_id": made.call_id, "output": "done"}]
