"""Agents as people write them, with the plain `openai` package and no header of ours, through the real gateway with its
built-in protection: the retry loop that everybody writes is stopped, honest work is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from breakloop.testing import Answer, SeenRequest, StandInLLM, ThreadedLLM, call_tool, say
from tests.e2e.served import Served, serving

pytestmark = pytest.mark.e2e

Plan = list[tuple[str, dict[str, Any]]]  # the calls that the model makes, in order
NAMED = pytest.mark.parametrize("named", [False, True], ids=["no session named", "session named"])


def planned(seen: SeenRequest) -> Answer:
    """The model follows the plan that its first message holds; without one it talks."""
    messages = seen.json()["messages"]
    first = messages[0]["content"]
    if not first.startswith("["):
        return say("Sure! Here is your JSON: {broken")
    plan: Plan = json.loads(first)
    done = sum(1 for message in messages if message["role"] == "assistant")
    return call_tool(plan[done][0], plan[done][1]) if done < len(plan) else say("Done.")


@pytest.fixture(scope="module")
def llm() -> Iterator[ThreadedLLM]:
    """The model."""
    with StandInLLM.in_thread(respond=planned) as running:
        yield running


@pytest.fixture(scope="module")
def served(llm: ThreadedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The gateway, as `make serve` starts it: no policy, no setting."""
    folder: Path = tmp_path_factory.mktemp("gateway")
    with serving(folder, "--upstream", f"openai={llm.url}") as running:
        yield running


def client(served: Served, key: str, *, named: bool) -> openai.OpenAI:
    headers = {"X-Agent-Session": key} if named else None
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=f"sk-{key}-{named}", default_headers=headers)


def work(agent: openai.OpenAI, plan: Plan, use: Callable[[str, dict[str, Any]], str]) -> list[str]:
    """Run an agent to its end: the warnings that its answers carried."""
    messages: list[Any] = [{"role": "user", "content": json.dumps(plan)}]
    warnings = []
    while True:
        raw = agent.chat.completions.with_raw_response.create(model="m", messages=messages)
        warnings.append(raw.headers.get("x-breakloop-warning", ""))
        answer = raw.parse().choices[0].message
        if not answer.tool_calls:
            return [one for one in warnings if one]
        messages.append(answer.model_dump(exclude_none=True))
        for called in answer.tool_calls:
            assert called.type == "function"
            content = use(called.function.name, json.loads(called.function.arguments))
            messages.append({"role": "tool", "tool_call_id": called.id, "content": content})


@NAMED
def test_the_retry_loop_of_the_seed_is_stopped(served: Served, llm: ThreadedLLM, named: bool) -> None:
    """Each retry wraps the previous prompt; the sixth request is not sent any more: `nested` (LD-4, C20)."""
    sent = 0
    before = len(llm.requests)
    with client(served, "retry", named=named) as agent:

        def retry(prompt: str) -> None:
            nonlocal sent
            while sent < 20:
                sent += 1
                agent.chat.completions.create(model="m", messages=[{"role": "user", "content": prompt}])
                prompt = f"That wasn't valid JSON. Try again: {prompt}"

        with pytest.raises(openai.RateLimitError) as raised:
            retry("List the three largest cities of Portugal as a JSON array of strings.")
    assert sent <= 6
    assert len(llm.requests) - before == sent - 1
    assert "recursive_loop_detected" in str(raised.value)
    assert "each prompt contains the previous one" in str(raised.value)


@NAMED
def test_a_healthy_run_of_fifty_steps_is_untouched(served: Served, named: bool) -> None:
    """Constant tools and prompt, a new result each time (C26)."""
    plan: Plan = [("read_file", {"path": f"src/part_{number}.py"}) for number in range(50)]

    def use(_tool: str, arguments: dict[str, Any]) -> str:
        return "\n".join(f"def {arguments['path'][4:-3]}_{line}(): return {line}" for line in range(12))

    with client(served, "fifty", named=named) as agent:
        assert work(agent, plan, use) == []


@NAMED
def test_a_poller_is_untouched(served: Served, named: bool) -> None:
    """The same call again and again, until the job is done (C2, C8)."""
    plan: Plan = [("job_status", {"job": 7})] * 30
    calls = iter(range(100))
    with client(served, "poller", named=named) as agent:
        assert work(agent, plan, lambda *_: f'{{"state": "running", "done": {next(calls)}}}') == []


@NAMED
def test_a_paging_batch_is_untouched(served: Served, named: bool) -> None:
    """The next page is another call (C19)."""
    plan: Plan = [("list_orders", {"page": number}) for number in range(40)]

    def use(_tool: str, arguments: dict[str, Any]) -> str:
        return "\n".join(f"order {40 * arguments['page'] + line}: shipped" for line in range(20))

    with client(served, "paging", named=named) as agent:
        assert work(agent, plan, use) == []


@NAMED
def test_two_passes_over_fifteen_files_are_untouched(served: Served, named: bool) -> None:
    """A second look is legitimate (C10)."""
    plan: Plan = [("read_file", {"path": f"docs/{number}.md"}) for number in range(15)] * 2

    def use(_tool: str, arguments: dict[str, Any]) -> str:
        return "\n".join(f"{arguments['path']}: paragraph {line} says something of its own" for line in range(10))

    with client(served, "passes", named=named) as agent:
        assert work(agent, plan, use) == []
