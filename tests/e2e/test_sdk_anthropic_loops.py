"""The real `anthropic` package through the real `breakloop serve`, when the upstream fails and when an agent loops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from breakloop.testing import ThreadedLLM, cut, fail, say
from tests.e2e.anthropic_calls import (
    LOOP,
    MAX_TOKENS,
    MODEL,
    SOON,
    ask,
    ask_async_streamed,
    ask_streamed,
    async_client,
    client_of,
    gateway,
    said,
)
from tests.e2e.served import Caller, Served

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with gateway(llm, tmp_path_factory.mktemp("anthropic")) as running:
        yield running


@pytest.fixture
def client(served: Served, caller: Caller) -> Iterator[Anthropic]:
    with client_of(served, caller) as made:
        yield made


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
    """Status, body, Retry-After and request id arrive, and the SDK tries again as it does without us (D-1)."""
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
    """An upstream that fails twice before each answer is not the agent's fault; the answers are what counts (LD-6)."""
    failure = fail(status, headers=SOON)
    for number in range(5):
        caller.next(failure, failure, say(f"Answer {number}."))
        assert said(ask(client)) == f"Answer {number}."
    assert len(caller.seen) == 15
    with pytest.raises(anthropic.RateLimitError, match=LOOP):
        ask(client)
    assert (len(caller.seen), len(caller.made)) == (15, 16)


def test_upstream_that_is_down(served: Served, client: Anthropic, caller: Caller) -> None:
    """The SDK's own error with our words, after its retries; none of them counts as a loop (D-1)."""
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
    """Before its answer a 502; after the head of a whole answer a connection error, never half of it (D-1)."""
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
    """The SDK's own RateLimitError with our words, after exactly one HTTP request (A-1, A-3, LD-2)."""
    for _ in range(5):
        WAYS[way](client)
    with pytest.raises(anthropic.RateLimitError) as caught:
        WAYS[way](client)
    assert_loop(caught.value)
    assert (len(caller.seen), len(caller.made)) == (5, 6)


@pytest.mark.parametrize("way", ASYNC_WAYS)
def test_the_sixth_identical_request_async(served: Served, caller: Caller, way: str) -> None:
    """The same with the asynchronous client (A-1, A-3, LD-2)."""

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
    """Other agents in the path and other texts have counters of their own (LD-6, D-2)."""
    for number in range(12):
        assert said(ask(client, f"Part {number}?"))
    for agent in ("planner", "coder"):
        other = client.with_options(base_url=f"{served.url}/agents/{agent}")
        for _ in range(5):
            assert said(ask(other))
    assert {seen.path for seen in caller.seen} == {"/v1/messages"}
    assert len(caller.seen) == 22
