"""Two real instances on one Redis: the agents of a tree have one budget, also after `kill -9` of one of them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from breakloop.testing import StandInLLM
from tests.builders import chat_body, user
from tests.e2e.served import KEY, Served, serving
from tests.redis_servers import Server

pytestmark = pytest.mark.e2e

COST = 2000  # tokens that a request may use: a prompt of 1,000 and an answer of 1,000
LEFT = "x-breakloop-tree-tokens-left"
POLICY = f"""
bundle_version: 1
policies: []
agents:
  "*": {{max_tokens_per_tree: {60 * COST}, tell_tree_budget: true}}
"""


def ask(one: Served, agent: int, *, forward: bool = False) -> tuple[int, dict[str, str], str]:
    headers = {
        "Authorization": f"Bearer {KEY}tree",
        "Content_Type": "application/json",
        "X_Agent_Session": f"s-{agent}",
    }
    if agent:
        headers["X_Agent_Parent"] = "s-0"
    body = chat_body(user(f"{agent}".ljust(4000, "x")), max_tokens=1000).decode()
    if forward:
        return one.ask("/v1/chat/completions", "POST", body, **headers)
    return one.decide("/v1/chat/completions", body, **headers)


def test_what_a_killed_instance_has_charged_stays_charged(tmp_path: Path, redis_server: Server) -> None:
    """64 agents ask two instances at once, and some of the answers are reported. One instance is killed. The other one
    knows every charge and every correction, and passes exactly what is left (G-6)."""
    state = f"{redis_server.url}?time_budget_ms=30000"
    made: list[Served] = []
    try:
        for number in range(2):
            folder = tmp_path / f"instance{number}"
            (folder / "home").mkdir(parents=True)
            (folder / "policy.yaml").write_text(POLICY)
            served = Served(folder, "--port", "0", "--policy", "policy.yaml", "--state", state)
            made.append(served)
            served.wait_ready()
        with ThreadPoolExecutor(16) as clients:
            first = list(clients.map(lambda agent: ask(made[agent % 2], agent), range(40)))
        assert [status for status, _, _ in first] == [200] * 40
        usage = {"status": 200, "usage": {"input_tokens": 500, "output_tokens": 500}}
        for agent in range(0, 40, 4):  # of the instance that is killed
            path = f"/v1/decision/{first[agent][1]['x-breakloop-result-id']}/result"
            assert made[0].ask(path, "POST", json.dumps(usage), Content_Type="application/json")[0] == 204
        assert ask(made[0], 40)[0] == 200  # what was sent before on the same connection to Redis is done
        made[0].process.kill()
        made[0].process.wait()
        left = 60 * COST - 41 * COST + 10 * (COST - 1000)
        status, headers, _ = ask(made[1], 41)
        assert (status, int(headers[LEFT])) == (200, left - COST)
        with ThreadPoolExecutor(16) as clients:
            last = list(clients.map(lambda agent: ask(made[1], agent), range(64)))
        assert sum(status == 200 for status, _, _ in last) == (left - COST) // COST
        denied = [(status, headers) for status, headers, _ in last if status != 200]
        assert {(status, one["x-breakloop-reason"], one[LEFT]) for status, one in denied} == {
            (429, "tree_budget_exceeded", "0")
        }
    finally:
        for served in made:
            served.end()


def test_the_model_is_told_what_is_left(tmp_path: Path) -> None:
    """The sentence is at the end of the conversation that the upstream gets; the client sees the header fields (G-6)."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    with ExitStack() as stack:
        llm = stack.enter_context(StandInLLM.in_thread())
        served = stack.enter_context(serving(tmp_path, "--policy", "policy.yaml", "--upstream", f"openai={llm.url}"))
        status, headers, _ = ask(served, 0, forward=True)
        assert (status, headers[LEFT]) == (200, str(59 * COST))
        assert "x-breakloop-note" not in headers
        sent = json.loads(llm.requests[-1].body)["messages"]
        assert f"Budget: {59 * COST} tokens left" in json.dumps(sent[-1])
        _, headers, _ = ask(served, 1)
        assert headers["x-breakloop-note"].startswith("Budget: ")
