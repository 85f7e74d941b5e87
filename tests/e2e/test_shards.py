"""Two real instances on a real cluster that spread one project over its nodes (`shard_by: agent`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.builders import chat_body
from tests.e2e.served import KEY, Served, serving
from tests.redis_groups import Cluster
from tests.unit.engine.test_procedure import stuck

pytestmark = pytest.mark.e2e

POLICY = """
bundle_version: 1
policies:
  - id: spend
    spec:
      selector: {pathPrefix: /spend}
      rules:
        - name: all
          limit_keys: []
          algorithm: cost_based
          algorithm_config: {budget: 100, period: 1d, cost_key: fixed, fixed_cost: 1, staged_actions: [{threshold_percent: 100, action: reject}]}
        - name: own
          limit_keys: ["agent:id"]
          algorithm: cost_based
          algorithm_config: {budget: 70, period: 1d, cost_key: fixed, fixed_cost: 1, staged_actions: [{threshold_percent: 100, action: reject}]}
"""


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory, redis_cluster: Cluster) -> Iterator[list[Served]]:
    state = f"{redis_cluster.url}?time_budget_ms=5000"
    with ExitStack() as stack:
        made = []
        for _ in range(2):
            folder = tmp_path_factory.mktemp("instance")
            (folder / "policy.yaml").write_text(POLICY)
            arguments = ("--policy", "policy.yaml", "--state", state)
            made.append(stack.enter_context(serving(folder, *arguments, BREAKLOOP_SHARD_BY="agent")))
        yield made


def test_a_fleet_with_a_place_for_each_agent(pair: list[Served], redis_cluster: Cluster) -> None:
    """A loop that alternates between instances is found, in every agent's slot; two agents that share a budget spend
    exactly that, 64 at a time; and the cluster's nodes share the project (E-5, S-2, L-2)."""
    for agent in range(6):
        headers = {"Authorization": f"Bearer {KEY}{agent}", "Content_Type": "application/json"}
        headers["X_Agent_Id"] = f"agent-{agent}"
        body = [chat_body(*stuck(turn)).decode() for turn in range(8)]
        found = [pair[turn % 2].decide("/v1/chat/completions", body[turn], **headers)[0] for turn in range(8)]
        assert (found[:3], 429 in found) == ([200] * 3, True), found
    agents = ["a" if number % 4 else "b" for number in range(400)]

    def spend(number: int) -> int:
        return pair[number % 2].decide("/spend", X_Agent_Id=agents[number])[0]

    with ThreadPoolExecutor(64) as clients:
        statuses = list(clients.map(spend, range(400)))
    passed = Counter(agent for agent, status in zip(agents, statuses, strict=True) if status == 200)
    assert passed.total() == 100
    assert max(passed.values()) <= 70
    assert [one.ready()["degraded"] for one in pair] == [False, False]
    keys = [node.client().keys("bl:{default|*") for node in redis_cluster.nodes]
    assert all(keys), keys
