"""The real `openai` package streams through a gateway that needs the count of tokens and is not told: it asks for it,
settles by it, and the client sees nothing of it. Over real sockets; that a policy wants it is said by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import uvloop
from openai import AsyncOpenAI

from breakloop.model.call import CLIENT_LEFT, Usage
from breakloop.pricing.tokens import answer_tokens
from breakloop.testing import Answer, StandInLLM, ThreadedLLM, call_tool, fail, say
from tests.builders import decide_with
from tests.deadlines import DEADLINE_S
from tests.e2e.openai_calls import MODEL
from tests.e2e.stage import Gateway, gateway, turns_until

pytestmark = pytest.mark.e2e

ASKED = {"include_usage": True}
WHAT = call_tool("read_file", {"path": "ä.txt"}, text='Let me see: "usage":null.').with_usage(120, 7, cached=64)

Act = Callable[[Gateway, AsyncOpenAI, ThreadedLLM], Awaitable[None]]


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    decide_with(monkeypatch, wants_usage=True)


def play(folder: Path, act: Act, *answers: Answer) -> None:
    """One act, with a stand-in of its own: so the same traffic gets the same bytes."""

    async def run() -> None:
        with StandInLLM.in_thread() as llm:
            llm.next(*answers)
            async with gateway(folder, llm.port) as server:
                base = f"http://127.0.0.1:{server.port}/v1"
                async with AsyncOpenAI(api_key="sk-x", base_url=base, timeout=DEADLINE_S, max_retries=0) as client:
                    await act(server, client, llm)

    uvloop.run(run())


async def streamed(client: AsyncOpenAI) -> list[str]:
    """What the SDK makes of a stream: each chunk as it has understood it."""
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Why?"}], stream=True
    )
    return [chunk.to_json(indent=None) async for chunk in stream]


def test_it_settles_from_the_final_chunk_and_the_client_sees_nothing(tmp_path: Path, wanted: None) -> None:
    """It settles from the final chunk and the client sees nothing: chat (L-3, D-1)."""

    async def act(server: Gateway, client: AsyncOpenAI, llm: ThreadedLLM) -> None:
        chunks = await streamed(client)
        assert '"usage":' not in "".join(chunks).replace('\\"usage\\":null', "")
        assert '"choices":[]' not in "".join(chunks).replace(" ", "")
        (seen,) = llm.requests
        assert seen.json()["stream_options"] == ASKED
        (settled,) = server.settled
        assert settled.usage == Usage(120, 7, 64)
        assert (settled.finish, settled.complete) == ("tool_calls", True)

    play(tmp_path, act, WHAT)


def test_completions_too(tmp_path: Path, wanted: None) -> None:
    """The older API (L-3, D-1)."""

    async def act(server: Gateway, client: AsyncOpenAI, llm: ThreadedLLM) -> None:
        stream = await client.completions.create(model=MODEL, prompt="Tell.", stream=True)
        pieces = [piece async for piece in stream]
        assert "".join(piece.choices[0].text for piece in pieces) == "Once upon."
        assert {piece.usage for piece in pieces} == {None}
        assert llm.requests[0].json()["stream_options"] == ASKED
        assert server.settled[0].usage == Usage(5, 2)

    play(tmp_path, act, say("Once upon.").with_usage(5, 2))


def raw(folder: Path, *answers: Answer) -> bytes:
    """The body of a stream, as its bytes."""
    got: list[bytes] = []

    async def act(server: Gateway, _client: AsyncOpenAI, _llm: ThreadedLLM) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}], "stream": True}
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body)
            got.append(answer.content)

    play(folder, act, *answers)
    return got[0]


@pytest.mark.parametrize("answer", [WHAT, WHAT.compressed("gzip"), say("One two.").then_fail(2, "Overloaded")])
def test_the_bytes_are_those_of_a_stream_that_nobody_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    """The same request with and without; also where the stream fails in the middle (D-1)."""
    plain = raw(tmp_path / "plain", answer)
    decide_with(monkeypatch, wants_usage=True)
    assert raw(tmp_path / "asked", answer) == plain
    assert plain.count(b"data: ") > 2


def test_an_upstream_that_does_not_know_the_question(tmp_path: Path, wanted: None) -> None:
    """The client notices nothing, and the upstream is asked no more (D-1)."""

    async def act(server: Gateway, client: AsyncOpenAI, llm: ThreadedLLM) -> None:
        for _ in range(2):
            assert len(await streamed(client)) == 4
        options = [seen.json().get("stream_options") for seen in llm.requests]
        assert options == [ASKED, None, None]
        assert [settled.usage for settled in server.settled] == [None, None]

    refusal = fail(400, "Unknown parameter: 'stream_options'.", code="unknown_parameter")
    play(tmp_path, act, refusal, say("One two."), say("One two."))


def test_a_cancelled_stream_settles_by_what_passed(tmp_path: Path, wanted: None) -> None:
    """No count came, but a text did (L-3)."""

    async def act(server: Gateway, client: AsyncOpenAI, _llm: ThreadedLLM) -> None:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Count."}], stream=True
        )
        for _ in range(3):
            await anext(stream)
        await stream.close()
        async with asyncio.timeout(DEADLINE_S):
            while not await turns_until(lambda: bool(server.settled)):
                pass
        (settled,) = server.settled
        assert (settled.status, settled.text, settled.usage) == (CLIENT_LEFT, "One two", None)
        assert answer_tokens(settled.text, settled.calls) == 2

    play(tmp_path, act, say(chunks=["One", " two", " three"]).stall(3))
