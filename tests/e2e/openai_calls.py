"""The real `openai` package as the tests of it use it: its clients, and the questions they ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import openai
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from breakloop.testing import ThreadedLLM
from tests.deadlines import DEADLINE_S
from tests.e2e.served import Caller, Served, refusing, serving

MODEL = "gpt-5"
LOOP = "recursive_loop_detected"
SOON = {"retry-after-ms": "5"}  # what makes an SDK try again without waiting long


@contextmanager
def gateway(llm: ThreadedLLM, folder: Path) -> Iterator[Served]:
    """The real command, in front of the stand-in and of an upstream that refuses connections."""
    with (
        refusing() as down,
        serving(folder, "--upstream", f"openai={llm.url}", "--upstream", f"down={down}") as served,
    ):
        yield served


@contextmanager
def client_of(served: Served, caller: Caller) -> Iterator[OpenAI]:
    """As anybody would make it, but for a hook that counts what it sends."""
    http = openai.DefaultHttpxClient(event_hooks={"request": [caller.note]})
    with OpenAI(api_key=caller.key, base_url=f"{served.url}/v1", timeout=DEADLINE_S, http_client=http) as made:
        assert made.max_retries == 2
        yield made


@asynccontextmanager
async def async_client(served: Served, caller: Caller) -> AsyncIterator[AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [caller.note_async]})
    async with AsyncOpenAI(
        api_key=caller.key, base_url=f"{served.url}/v1", timeout=DEADLINE_S, http_client=http
    ) as made:
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
