"""`kill -9` at random moments under load (S-1): at most a second of counters is lost, and no quarantine that
anybody was told of."""

from __future__ import annotations

import http.client
import itertools
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest

from tests.deadlines import DEADLINE_S
from tests.e2e.served import KEY, Served

pytestmark = pytest.mark.e2e

CRASHES: Final = 20
SEED: Final = 8
ROUND_S: Final = (0.05, 1.9, 0.05)  # how long one lives: from, to, most often
SAVED_S: Final = 1.0  # S-1
ROUND_OF_SAVING_S: Final = 0.3  # a save takes its time, and is begun a second after the last has ended
BUDGET: Final = 10_000_000
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
  - id: killing
    spec:
      selector: {{pathPrefix: /killing}}
      loop_detection: {{enabled: true, window_seconds: 600, threshold_identical_requests: 2, action: kill}}
  - id: blocking
    spec:
      selector: {{pathPrefix: /blocking}}
      loop_detection: {{enabled: true, window_seconds: 600, threshold_identical_requests: 2, action: reject}}
"""

Answer = tuple[int, dict[str, str]]


class Client:
    """A connection that ends with the process at its other end."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)

    def decide(self, path: str, **headers: str) -> Answer:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("POST", "/v1/decision", headers={"X-Original-URI": path, **fields})
        answer = self._connection.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}

    def close(self) -> None:
        self._connection.close()


def spent(answer: Answer) -> int:
    """How much of the budget is used, in the words of an answer."""
    return BUDGET - int(answer[1]["ratelimit-remaining"])


class Acknowledged:
    """What clients were told, and when."""

    def __init__(self) -> None:
        self.spent: list[tuple[float, int]] = []
        self.killed: list[str] = []
        self.blocked: list[tuple[float, str]] = []
        self._names = itertools.count()
        self._stop = Event()

    def spend(self, client: Client) -> None:
        answer = client.decide("/spend", X_Team="all")
        self.spent.append((time.monotonic(), spent(answer)))

    def kill(self, client: Client) -> None:
        """A new agent loops, and is quarantined."""
        key = f"Bearer {KEY}{next(self._names)}"
        if [client.decide("/killing", Authorization=key)[0] for _ in range(2)] == [200, 429]:
            self.killed.append(key)

    def block(self, client: Client) -> None:
        """A new loop is blocked; nobody is quarantined."""
        path = f"/blocking/{next(self._names)}"
        if [client.decide(path)[0] for _ in range(2)] == [200, 429]:
            self.blocked.append((time.monotonic(), path))

    @contextmanager
    def load(self, port: int) -> Iterator[None]:
        """Two clients spend, one loops, one is stuck, for as long as this lasts or the server lives."""
        jobs = (self.spend, self.spend, self.kill, self.block)

        def work(job: int) -> None:
            client = Client(port)
            with suppress(OSError, http.client.HTTPException):
                while not self._stop.is_set():
                    jobs[job](client)
                    self._stop.wait(0.005)
            client.close()

        self._stop.clear()
        threads = [Thread(target=work, args=(number,)) for number in range(len(jobs))]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def stalled_s(self, since: float, until: float) -> float:
        """The longest time in which nobody was told anything: the machine had other things to do."""
        times = [since, *(at for at, _ in self.spent if since < at < until), until]
        return max(after - before for before, after in itertools.pairwise(times))


def start(folder: Path) -> Served:
    served = Served(folder, "--port", "0", "--policy", str(folder / "policy.yaml"), "--data-dir", str(folder / "data"))
    return served.wait_ready()


def lost_s(told: Acknowledged, now_spent: int, killed_at: float) -> float:
    """How long before the end the oldest thing was told that is not known any more."""
    forgotten = [at for at, amount in told.spent if amount > now_spent]
    return max(0.0, killed_at - min(forgotten)) if forgotten else 0.0


def test_killed_20_times(tmp_path: Path) -> None:
    """Counters of all but the last second, loops that were blocked before, and every quarantine (S-1)."""
    moments = random.Random(SEED)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "home").mkdir()
    told = Acknowledged()
    losses: list[float] = []
    kept: list[str] = []  # paths that are blocked, and saved
    served = start(tmp_path)
    try:
        for _ in range(CRASHES):
            killed, told.blocked, began_at = len(told.killed), [], time.monotonic()
            with told.load(served.port):
                Event().wait(moments.triangular(*ROUND_S))
                killed_at = time.monotonic()
                served.process.kill()
            served.end()
            allowed_s = SAVED_S + ROUND_OF_SAVING_S + told.stalled_s(max(began_at, killed_at - 2), killed_at)
            kept += [path for at, path in told.blocked if killed_at - at > allowed_s]
            served = start(tmp_path)
            client = Client(served.port)
            now_spent = spent(client.decide("/spend", X_Team="all")) - 1
            losses.append(lost_s(told, now_spent, killed_at))
            assert losses[-1] <= allowed_s
            told.spent = [(at, amount) for at, amount in told.spent if amount <= now_spent]
            released = [key for key in told.killed[killed:] if client.decide("/other", Authorization=key)[0] != 429]
            assert released == []
            client.close()
        check_all(served, told, kept)
    finally:
        served.end()
    print(  # noqa: T201 - what was seen, for whoever runs it with -s
        f"\n{len(told.spent)} charges, {len(told.killed)} quarantines, {len(kept)} loops; lost at most {max(losses):.2f} s"
    )


def check_all(served: Served, told: Acknowledged, kept: list[str]) -> None:
    """After the last crash everything of all rounds is there."""
    client = Client(served.port)
    assert {client.decide("/other", Authorization=key)[1]["x-breakloop-reason"] for key in told.killed} == {
        "agent_quarantined"
    }
    assert {client.decide(path)[0] for path in kept} == {429}
    client.close()
    assert not [line for line in served.log() if line["level"] in {"error", "critical"}]
    assert served.log("state.problem") == []
