"""Two instances behind nginx act as one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from breakloop.testing import ThreadedLLM
from tests.builders import chat_body, user
from tests.e2e.instances import Instances, instances
from tests.e2e.served import serving
from tests.redis_servers import Server
from tests.unit.engine.test_procedure import stuck

pytestmark = pytest.mark.e2e

POLICY = """
bundle_version: 1
policies:
  - id: spend
    spec:
      selector: {pathPrefix: /spend}
      rules:
        - name: budget
          limit_keys: ["header:x-team"]
          algorithm: cost_based
          algorithm_config: {budget: 100, period: 1d, cost_key: fixed, fixed_cost: 1, staged_actions: [{threshold_percent: 100, action: reject}]}
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, llm: ThreadedLLM, _redis_session: Server) -> Iterator[Instances]:
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "policy.yaml").write_text(POLICY)
    arguments = ("--policy", str(folder / "policy.yaml"), "--upstream", f"openai={llm.url}")
    # What is shared is looked at here, not how quickly: a machine that is busy must not let them go on without Redis.
    with instances(folder, f"{_redis_session.url}?time_budget_ms=5000", *arguments) as running:
        yield running


def turns(ask: object, key: str, count: int) -> list[int]:
    """What each turn of a stuck agent gets."""
    assert callable(ask)
    headers = {"Authorization": f"Bearer {key}", "Content_Type": "application/json"}
    return [ask("/v1/chat/completions", chat_body(*stuck(turn)), **headers)[0] for turn in range(count)]


def test_a_loop_that_alternates_is_stopped_at_the_same_request_as_on_one(
    pair: Instances, llm: ThreadedLLM, tmp_path: Path
) -> None:
    """The history grows with each turn, so only what is remembered of the session can tell (S-2, E-7)."""
    shared = turns(pair.ask, "sk-canary-fleet-loop", 8)
    with serving(tmp_path, "--upstream", f"openai={llm.url}") as alone:
        single = turns(lambda path, body, **headers: alone.ask(path, "POST", body, **headers), "sk-canary-loop", 8)
    assert shared == single
    assert 429 in shared
    seen = [one.port for one in pair.served]
    assert len(set(seen)) == 2


def test_requests_alike_are_counted_together(pair: Instances) -> None:
    """Five pass, the sixth is blocked, wherever each arrives (LD-2, S-2).

    Asked of the decision service: who forwards may still have the news of an answer on its way to Redis when the client
    asks again elsewhere, and that request would join the one before instead of being counted (LD-6).
    """
    headers = {"Authorization": "Bearer sk-canary-fleet-alike", "Content_Type": "application/json"}
    headers |= {"X_Original_URI": "/v1/chat/completions", "X_Original_Method": "POST"}
    body = chat_body(user("the very same thing"))
    answers = [pair.ask("/v1/decision", body, **headers) for _ in range(7)]
    assert [status for status, _, _ in answers] == [200] * 5 + [429] * 2
    detail = json.loads(answers[5][2])["detail"]
    assert (detail["error"], detail["hit_count"]) == ("recursive_loop_detected", 6)


def test_64_clients_never_overspend_across_instances(pair: Instances) -> None:
    """A budget of 100, 64 at a time on two instances: exactly 100 pass (E-5, L-2)."""
    with ThreadPoolExecutor(64) as clients:
        asked = [
            clients.submit(lambda: pair.ask("/v1/decision", X_Original_URI="/spend", X_Team="blue")[0])
            for _ in range(400)
        ]
        statuses = [one.result() for one in asked]
    assert sorted(set(statuses)) == [200, 429]
    assert statuses.count(200) == 100


def test_both_took_part(pair: Instances) -> None:
    """Or the tests above would prove nothing: nginx gives each its turn, and both have the same secret."""
    ready = [one.ready() for one in pair.served]
    assert [(found["state"], found["degraded"]) for found in ready] == [("redis", False)] * 2
    logs = [one.log("loop.detected") for one in pair.served]
    assert sum(map(len, logs)) >= 2
