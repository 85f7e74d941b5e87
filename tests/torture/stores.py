"""Redis, Redis Cluster, Sentinel and PostgreSQL that go away and come back, under load."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import redis

from breakloop.testing import StandInLLM
from tests import postgres_servers
from tests.e2e.incident import Incident, incident
from tests.e2e.served import eventually
from tests.redis_groups import Cluster, cluster, watched
from tests.redis_servers import Server, running, until
from tests.torture.bodies import packed_lists
from tests.torture.gateway import Gateway, Rig, bystanders, chat, expect_alive, gateway, post, send, send_all, told
from tests.torture.table import Row
from tests.torture.upstream import upstream

BUDGET: Final = 20
POLICY: Final = f"""
bundle_version: 1
policies:
  - id: spend
    spec:
      selector: {{pathPrefix: /spend}}
      rules:
        - name: budget
          limit_keys: ["header:x-team"]
          algorithm: cost_based
          algorithm_config:
            {{budget: {BUDGET}, period: 1d, cost_key: fixed, fixed_cost: 1,
              staged_actions: [{{threshold_percent: 100, action: reject}}]}}
"""
_CALM: Final = 100


def _patient(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}time_budget_ms=1000"


def _spend(gate: Gateway, count: int) -> int:
    """Spend as much as is allowed in so many requests; returns how many passed."""
    return Counter(gate.decide("/spend", X_Team="a")[0] for _ in range(count))[200]


def _degraded(gate: Gateway) -> bool:
    return bool(gate.ready()["degraded"])


def budgets(rig: Rig, row: Row) -> None:
    row.done = f"a budget of {BUDGET} of which 15 are spent; Redis is killed, and comes back empty"
    with (
        upstream() as url,
        running() as server,
        gateway(url, "--state", _patient(server.url), policy=POLICY) as gate,
    ):
        first = _spend(gate, 15)
        server.kill()
        eventually(lambda: (gate.decide("/other"), _degraded(gate))[1], "the end of Redis is noticed")
        during = _spend(gate, BUDGET)
        server.restart(empty=True)
        eventually(lambda: (gate.decide("/other"), not _degraded(gate))[1], "Redis is used again")
        after = _spend(gate, BUDGET)
        seen = f"{first} before, {during} without Redis, {after} with the empty one"
        row.expect(f"no more than {BUDGET} pass", first == 15 and first + during + after <= BUDGET, seen)
        expect_alive(row, gate)


def stall(rig: Rig, row: Row) -> None:
    count = rig.size(2, 8)
    row.done = f"a budget of {BUDGET} is spent; then {count} bodies of 10 MB in gzip at once keep the process busy"
    hostile = [post(packed_lists(), "Content-Encoding: gzip")] * count
    with upstream() as url, running() as server, gateway(url, "--state", server.url, policy=POLICY) as gate:
        first = _spend(gate, BUDGET + 2)
        with bystanders(gate.port) as others, others.watch(_CALM):
            statuses = send_all(gate.port, hostile)
            more = _spend(gate, BUDGET)
        row.expect(f"no more than {BUDGET} pass", (first, more) == (BUDGET, 0), f"{first}, then {more}")
        row.expect("the bodies are answered", 0 not in statuses, told(statuses))
        others.judge(row)
        expect_alive(row, gate)


def _incident(row: Row, here: Incident, fault: Callable[[], object], mend: Callable[[], object]) -> None:
    """Everything of `incident` holds, or it raises."""
    here.before()
    here.begin(fault)
    here.during(0)
    here.end(mend)
    here.after(kept=True)
    saw = here.finish()
    row.expect("every request succeeds", True, f"{len(saw.seen)} requests")
    row.expect("limits and loops are enforced meanwhile, by the instance itself", True, "they are")
    row.expect(
        "the new master is used, with what it has", True, f"{here.recovered - here.mended:.1f} s after it is elected"
    )


@contextmanager
def _with_load(state: str) -> Iterator[Incident]:
    with (
        StandInLLM.in_thread() as llm,
        tempfile.TemporaryDirectory(prefix="torture-") as name,
        incident(Path(name), _patient(state), llm) as here,
    ):
        yield here


def _holder(made: Cluster) -> Server:
    """The master that has the state."""
    return next(node for node in made.nodes[: made.masters] if node.client().dbsize())


def cluster_failover(rig: Rig, row: Row) -> None:
    row.done = "the Redis Cluster node that holds the state is killed under load; its replica takes over"
    with cluster(replicas=True) as made, _with_load(made.url) as here:
        nodes: list[Server] = []

        def fault() -> None:
            nodes.append(_holder(made))
            with nodes[0].client() as client:
                client.wait(1, 1000)
            nodes[0].kill()

        def mended() -> bool:
            with suppress(redis.RedisError):
                return any(
                    node is not nodes[0] and node.client().dbsize() and node.client().role()[0] == b"master"
                    for node in made.nodes[made.masters :]
                )
            return False

        _incident(row, here, fault, lambda: until(mended, "a new master"))


def sentinel_failover(rig: Rig, row: Row) -> None:
    row.done = "the Redis master that Sentinels watch is killed under load; its replica takes over"
    with watched() as made, _with_load(made.url) as here:
        master, replica = made.master, made.replica

        def fault() -> None:
            with master.client() as client:
                client.wait(1, 1000)
            master.kill()

        def mended() -> bool:
            with replica.client() as client:
                return bool(client.role()[0] == b"master")

        _incident(row, here, fault, lambda: until(mended, "a new master"))


def postgres(rig: Rig, row: Row) -> None:
    row.done = "the PostgreSQL of the history is stopped under load and started again"
    with (
        upstream() as url,
        postgres_servers.running() as server,
        gateway(url, env={"BREAKLOOP_HISTORY": server.url}) as gate,
    ):

        def incidents() -> int:
            status, found = gate.api("/api/v1/events?most=1")
            return len(found["events"]) if status == 200 else -status

        with bystanders(gate.port) as others, others.watch(_CALM):
            gate.api("/api/v1/agents/before/kill", {"reason": "before"})
            eventually(lambda: incidents() > 0, "events are kept")
            server.stop()
            eventually(lambda: incidents() <= 0, "the end of PostgreSQL is noticed")
            gone = gate.api("/api/v1/events?most=1")[0]
            code = gate.api("/api/v1/agents/during/kill", {"reason": "during"})[1]["error"]["code"]
            killed = send(gate.port, chat("Go on.", "X-Agent-Id: during"))
            server.start()
            eventually(lambda: incidents() > 0, "events are kept again")
        row.expect("the admin API says that there is no history", gone == 503, gone)
        row.expect("an agent can be stopped meanwhile", killed == 429, f"its next request: {killed}")
        row.expect("the response says that the audit log lacks it", code == "not_audited", code)
        row.expect("events are stored again", True, "they are")
        others.judge(row)
        expect_alive(row, gate)


SCENARIOS: Final[dict[str, Callable[[Rig, Row], None]]] = {
    "redis-gone-then-empty": budgets,
    "busy-process-with-redis": stall,
    "redis-cluster-failover": cluster_failover,
    "redis-sentinel-failover": sentinel_failover,
    "postgresql-gone": postgres,
}
