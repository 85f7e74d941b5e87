"""Pydantic AI, the real package, against the stand-in LLM: an agent that loops is told, then stopped; one that works is
left alone, byte for byte; one that is landed ends with an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from breakloop import DeniedError, Guard, LoopDetectedError
from breakloop.integrations.pydantic_ai import GuardCapability
from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, call_tool, limit_policy, say
from tests.e2e.served import refusing
from tests.e2e.test_land import ignores_choices

pytestmark = pytest.mark.e2e

TASK = "Find our refund policy."
NOTE = "[breakloop] You repeat yourself: `search` returned the same"
STUCK = call_tool("search", {"query": "refunds"})
LAND = {
    "bundle_version": 1,
    "policies": [],
    "defaults": {"loop_detection": {"similarity": "steps", "ladder": {"block": "land"}}},
}
ran: list[str] = []


def search(query: str) -> str:
    """Look something up."""
    ran.append(query)
    return "no results"


def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: it was night number {page * 7919}."


@pytest.fixture
def llm() -> Iterator[ThreadedLLM]:
    ran.clear()
    with StandInLLM.in_thread(respond=lambda _: STUCK) as running:
        yield running


async def runs(llm: ThreadedLLM, *capabilities: Any, stream: bool = False, output: type[Any] = str, **more: Any) -> Any:
    async with httpx2.AsyncClient() as http:
        provider = OpenAIProvider(api_key="k", base_url=f"{llm.url}/v1", http_client=http)
        model = OpenAIChatModel("gpt-5", provider=provider)
        agent = Agent(
            model, tools=[search, read], capabilities=capabilities, output_type=output, instructions="You help."
        )
        if stream:
            async with agent.run_stream(TASK, **more) as streamed:
                return await streamed.get_output()
        return (await agent.run(TASK, **more)).output


def bodies(llm: ThreadedLLM) -> list[Any]:
    return [seen.json() for seen in llm.requests]


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_is_told_then_stopped(llm: ThreadedLLM, stream: bool) -> None:
    """Told at the third and the fourth, and then our error ends the run: neither model nor tool is called again (P-3,
    LD-4, LD-5)."""
    guarded = GuardCapability()
    with pytest.raises(LoopDetectedError) as caught:
        asyncio.run(runs(llm, guarded, stream=stream))
    assert str(caught.value).startswith("Blocked: `search` returned the same 10 bytes 5 times in a row.")
    assert (caught.value.kind, caught.value.stop_reason) == ("repeat", "loop")
    assert [NOTE in str(body["messages"][-1]) for body in bodies(llm)] == [False, False, False, True, True]
    assert (len(llm.requests), len(ran), guarded.guard.faults) == (5, 5, 0)


def test_thirty_steps_pass_byte_for_byte(llm: ThreadedLLM) -> None:
    """The same requests as without the capability (P-3)."""
    steps = [call_tool("read", {"page": page}, tool_id=f"call_{page}") for page in range(30)]
    sent = []
    for guarded in ([], [GuardCapability()]):
        before = len(llm.requests)
        llm.next(*steps, say("All read."))
        assert asyncio.run(runs(llm, *guarded)) == "All read."
        sent.append([seen.body for seen in llm.requests[before:]])
    assert len(sent[0]) == 31
    assert sent[0] == sent[1]


def lands(seen: SeenRequest) -> Answer:
    return say("There is none.") if seen.json().get("tool_choice") == "none" else STUCK


@pytest.mark.parametrize("stream", [False, True])
def test_it_lands_with_an_answer(llm: ThreadedLLM, stream: bool) -> None:
    """The sixth request has tools switched off and the note, and is the last (LD-10, P-3)."""
    llm.llm.respond = lands
    assert asyncio.run(runs(llm, GuardCapability(Guard(LAND)), stream=stream)) == "There is none."
    last = bodies(llm)[-1]
    assert (len(llm.requests), len(ran), [one["function"]["name"] for one in last["tools"]]) == (
        6,
        5,
        ["search", "read"],
    )
    assert "tools are switched off" in last["messages"][-1]["content"]


class Finding(BaseModel):
    """What was found."""

    summary: str


def finds(seen: SeenRequest) -> Answer:
    names = [one["function"]["name"] for one in seen.json()["tools"]]
    choice = seen.json()["tool_choice"]
    called = isinstance(choice, dict) or "search" not in names
    return call_tool("final_result", {"summary": "nothing"}) if called else STUCK


def test_it_lands_with_a_structured_output(llm: ThreadedLLM) -> None:
    """Output tools stay on (LD-10)."""
    llm.llm.respond = finds
    assert asyncio.run(runs(llm, GuardCapability(Guard(LAND)), output=Finding)) == Finding(summary="nothing")
    assert (len(llm.requests), len(ran)) == (6, 5)


def test_calls_of_a_server_that_ignores_the_choice_are_removed(llm: ThreadedLLM) -> None:
    """The run ends with why (LD-10)."""
    llm.llm.respond = ignores_choices
    said = asyncio.run(runs(llm, GuardCapability(Guard(LAND))))
    assert said.startswith("You repeat yourself: `search` returned the same")
    assert (len(llm.requests), len(ran)) == (6, 5)


def test_limits_and_budgets_hold(llm: ThreadedLLM) -> None:
    """The third request is one too many (P-3)."""
    policy = {"bundle_version": 1, "policies": [limit_policy(rate=0.001, burst=2)]}
    with pytest.raises(DeniedError) as caught:
        asyncio.run(runs(llm, GuardCapability(Guard(policy))))
    assert (caught.value.reason, len(llm.requests)) == ("token_bucket_exceeded", 2)


def test_a_service_that_is_not_there_stops_nobody(llm: ThreadedLLM) -> None:
    """Fail open, counted (D-4)."""
    llm.next(STUCK, say("Done."))
    with refusing() as absent:
        guarded = GuardCapability(Guard(url=absent))
        assert asyncio.run(runs(llm, guarded)) == "Done."
    assert guarded.guard.faults == 2


def test_dollars_are_counted(llm: ThreadedLLM) -> None:
    """By the tokens of the answers (P-3, L-2)."""

    def reads(seen: SeenRequest) -> Answer:
        return call_tool("read", {"page": len(seen.json()["messages"])}).with_usage(100_000, 10_000)

    llm.llm.respond = reads
    policy = {"bundle_version": 1, "agents": {"*": {"max_usd_per_run": 1.0}}, "policies": []}
    with pytest.raises(DeniedError) as caught:
        asyncio.run(runs(llm, GuardCapability(Guard(policy), agent="reader")))
    assert caught.value.stop_reason == "budget"
    assert 2 <= len(llm.requests) <= 10
