"""The demonstration's agents: they do what the model says, and only what they do tells them apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from breakloop.cli.demo_run import FILES, HEALTHY, LOOPING, SYSTEM, TASKS, DemoAgent, DemoClient, DemoResponse
from breakloop.testing import Answer, StandInLLM, call_tool, fail, say


def _talk(name: str, *answers: Answer) -> tuple[list[DemoResponse], list[dict[str, Any]]]:
    """One agent and a model that answers so; returns what the agent made of it, and the bodies that it sent."""

    async def talk() -> tuple[list[DemoResponse], list[dict[str, Any]]]:
        async with StandInLLM() as llm:
            llm.next(*answers)
            client = DemoClient(llm.port)
            agent = DemoAgent(name, client)
            answered = [await agent.turn(2 * number) for number in range(len(answers))]
            client.close()
            return answered, [seen.json() for seen in llm.requests]

    return asyncio.run(talk())


def test_a_tool_call_is_made_and_its_result_goes_back() -> None:
    """As an agent does: the next request carries the call and what came of it (X-4)."""
    answered, sent = _talk(HEALTHY, call_tool("read", {"path": "cart.py"}), say("That is all."))
    assert [one.did for one in answered] == ["read(cart.py) -> 31 lines", "answers: done"]
    assert [one.finished for one in answered] == [False, True]
    assert [one.at_s for one in answered] == [0, 2]
    asked, call, result = sent[1]["messages"][1:]
    assert asked["content"] == TASKS[HEALTHY]
    assert call["tool_calls"][0]["function"]["name"] == "read"
    assert result == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": FILES["cart.py"]}


def test_a_missing_file_is_an_error_each_time() -> None:
    """The conversation grows, and ends in the same messages but for the ids of the calls (LD-2)."""
    missing = call_tool("read", {"path": "config.yml"}, text="I need it.")
    answered, sent = _talk(LOOPING, *[missing] * 4)
    assert {one.did for one in answered} == {"read(config.yml) -> error"}

    def tail(body: dict[str, Any]) -> list[tuple[str, str]]:
        return [(message["role"], message["content"]) for message in body["messages"][-3:]]

    assert len(sent[3]["messages"]) > len(sent[2]["messages"])
    assert tail(sent[3]) == tail(sent[2]) != tail(sent[1])
    assert tail(sent[3])[-1] == ("tool", "Error: there is no file config.yml")


def test_usage_is_what_the_answer_says() -> None:
    """Tokens are read from the answer (X-4)."""
    answered, _ = _talk(HEALTHY, say("Done.").with_usage(1234, 56))
    assert (answered[0].tokens_in, answered[0].tokens_out) == (1234, 56)


def test_a_refused_agent_sends_the_same_again() -> None:
    """It has learnt nothing; status, wait, code and message are those of the answer (X-4)."""
    no = fail(429, "No.", code="x", headers={"X-Breakloop-Reason": "loop_detected", "Retry-After": "30"})
    answered, sent = _talk(LOOPING, no, no)
    assert sent[0] == sent[1]
    assert answered[0] == DemoResponse(
        LOOPING, 0, 429, reason="loop_detected", retry_after_s=30, code="x", message="No."
    )
    assert answered[0].blocked
    assert answered[0].outcome == "loop_detected, wait 30 s"


def test_an_error_that_is_no_verdict_is_not_called_blocked() -> None:
    """Nothing is claimed that the gateway has not said (X-4)."""
    answered, _ = _talk(LOOPING, fail(502, "Gone."))
    assert (answered[0].passed, answered[0].blocked, answered[0].outcome) == (False, False, "failed")


@pytest.mark.parametrize("name", [LOOPING, HEALTHY])
def test_what_they_send_at_first(name: str) -> None:
    """Both carry the same project, and declare the tools that they have."""
    _, sent = _talk(name, say("Hm."))
    assert sent[0]["messages"][0] == {"role": "system", "content": SYSTEM}
    assert [tool["function"]["name"] for tool in sent[0]["tools"]] == ["list", "read"]
    assert "config.yml" not in FILES
    assert len(set(FILES.values())) == len(FILES) == 26
