"""The real `anthropic` package as the tests of it use it: its clients, and the questions they ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anthropic
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent

from breakloop.testing import ThreadedLLM
from tests.deadlines import DEADLINE_S
from tests.e2e.served import Caller, Served, refusing, serving

MODEL = "claude-sonnet-5"
MAX_TOKENS = 512
LOOP = "recursive_loop_detected"
SOON = {"retry-after-ms": "5"}  # what makes an SDK try again without waiting long


@contextmanager
def gateway(llm: ThreadedLLM, folder: Path) -> Iterator[Served]:
    """The real command. Its default upstream refuses connections: what works has found `anthropic` by its path."""
    with (
        refusing() as down,
        serving(folder, "--upstream", f"openai={down}", "--upstream", f"anthropic={llm.url}") as served,
    ):
        yield served


@contextmanager
def client_of(served: Served, caller: Caller) -> Iterator[Anthropic]:
    """As anybody would make it, but for a hook that counts what it sends."""
    http = anthropic.DefaultHttpxClient(event_hooks={"request": [caller.note]})
    with Anthropic(api_key=caller.key, base_url=served.url, timeout=DEADLINE_S, http_client=http) as made:
        assert made.max_retries == 2
        yield made


@asynccontextmanager
async def async_client(served: Served, caller: Caller) -> AsyncIterator[AsyncAnthropic]:
    http = anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [caller.note_async]})
    async with AsyncAnthropic(api_key=caller.key, base_url=served.url, timeout=DEADLINE_S, http_client=http) as made:
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
