"""What is asked of an instance while its Redis is in trouble, and what everybody must have seen when it is over."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from breakloop.testing import ThreadedLLM
from tests.builders import chat_body
from tests.e2e.served import KEY, Served, eventually, serving
from tests.e2e.steady_load import Load, Saw, steady
from tests.unit.engine.test_procedure import stuck

LOOP_MAX: Final = 3
SPEND_MAX: Final = 10
SPENT_BEFORE: Final = 7
STUCK_MAX: Final = 7  # turns of a stuck agent, the last of which is not let through
POLICY: Final = f"""
bundle_version: 1
policies:
  - id: tasks
    spec:
      selector: {{pathPrefix: /tasks}}
      rules:
        - name: plenty
          limit_keys: ["header:x-team"]
          algorithm: token_bucket
          algorithm_config: {{tokens_per_second: 100000, burst: 100000}}
      loop_detection: {{enabled: true, window_seconds: 60, threshold_identical_requests: 5, action: reject}}
  - id: loop
    spec:
      selector: {{pathPrefix: /loop}}
      loop_detection: {{enabled: true, window_seconds: 600, threshold_identical_requests: {LOOP_MAX}, action: reject}}
  - id: spend
    spec:
      selector: {{pathPrefix: /spend}}
      rules:
        - name: budget
          limit_keys: ["header:x-team"]
          algorithm: cost_based
          algorithm_config:
            {{budget: {SPEND_MAX}, period: 1d, cost_key: fixed, fixed_cost: 1,
              staged_actions: [{{threshold_percent: 100, action: reject}}]}}
  - id: guarded
    spec:
      selector: {{pathPrefix: /guarded}}
      on_store_error: deny
      rules:
        - name: plenty
          limit_keys: ["header:x-team"]
          algorithm: token_bucket
          algorithm_config: {{tokens_per_second: 100000, burst: 100000}}
"""


@dataclass
class Incident:
    """An instance under load, and agents that misbehave."""

    served: Served
    load: Load
    names: Iterator[int] = field(default_factory=itertools.count)
    turn: int = 0
    began: float = 0.0
    mended: float = 0.0
    recovered: float = 0.0
    spent_alone: bool = False

    def statuses(self, count: int, path: str, **headers: str) -> list[int]:
        """What the same decision gets, over and over."""
        return [self.served.decide(path, **headers)[0] for _ in range(count)]

    def stuck_turns(self, count: int) -> list[int]:
        """What the next turns of the stuck agent get, through the proxy."""
        headers = {"Authorization": f"Bearer {KEY}stuck", "Content_Type": "application/json"}
        turns = range(self.turn, self.turn + count)
        self.turn += count
        bodies = [chat_body(*stuck(turn)) for turn in turns]
        return [self.served.ask("/v1/chat/completions", "POST", body, **headers)[0] for body in bodies]

    def degraded(self) -> bool:
        """What `/readyz` says."""
        return bool(self.served.ready()["degraded"])

    def before(self) -> None:
        """All is well: a loop is blocked, another one has begun, and a stuck agent is about to be noticed."""
        self.load.answers(100)
        eventually(lambda: 429 in self.statuses(1, "/loop/blocked"), "a loop is blocked")
        assert self.statuses(1, "/loop/running") == [200]
        assert self.stuck_turns(3) == [200] * 3
        eventually(lambda: self.statuses(1, "/guarded", X_Team="a") == [200], "Redis is used")
        assert self.statuses(SPENT_BEFORE, "/spend", X_Team="half") == [200] * SPENT_BEFORE

    def begin(self, fault: Callable[[], object]) -> None:
        """Let it happen; the load meets it first."""
        self.began = time.monotonic()
        fault()
        eventually(self.degraded, "the instance goes on by itself")

    def during(self, answers: int) -> None:
        """State is enforced by the instance itself, and whoever does not want that is refused."""
        assert self.statuses(1, "/loop/blocked") == [429]
        assert self.statuses(LOOP_MAX, "/loop/running")[-1] == 429
        assert self.stuck_turns(STUCK_MAX - 3)[-1] == 429
        spent = self.statuses(SPEND_MAX + 3, "/spend", X_Team=f"during-{next(self.names)}")
        assert spent == [200] * SPEND_MAX + [429] * 3
        assert self.statuses(4, "/spend", X_Team="half") == [200] * (SPEND_MAX - SPENT_BEFORE) + [429]
        self.spent_alone = True
        status, _, body = self.served.decide("/guarded", X_Team="a")
        assert (status, json.loads(body)["detail"]["error"]) == (429, "store_unavailable")
        self.load.answers(answers)
        assert self.degraded()

    def end(self, mend: Callable[[], object]) -> None:
        """Make Redis well again, and see that it is used again."""
        mend()
        self.mended = time.monotonic()
        eventually(lambda: not self.degraded(), "the store is used again")
        self.recovered = time.monotonic()
        self.load.answers(100)

    def after(self, *, kept: bool) -> None:
        """Decisions are made with Redis again; where it `kept` its data, with what it had."""
        eventually(lambda: self.statuses(1, "/guarded", X_Team="a") == [200], "Redis is used again")
        if kept:
            assert self.statuses(1, "/loop/blocked") == [429]
        if self.spent_alone:  # what was used before and meanwhile is still used, also where Redis has lost it
            assert self.statuses(1, "/spend", X_Team="half") == [429]

    def finish(self) -> Saw:
        """Nobody saw an error, nor waited for as long as a client waits. The times are printed and not judged."""
        saw = self.load.finish()
        assert set(saw.statuses) == {200}, saw.statuses
        worst_ms, own_ms = saw.worst_ms(self.began, self.recovered)
        calm_ms, _ = saw.worst_ms(0.0, self.began)
        back_s = self.recovered - self.mended
        print(  # noqa: T201 - what was seen, for whoever runs it with -s
            f"\n{len(saw.seen)} requests, worst decision {worst_ms:.0f} ms ({own_ms:.0f} ms without the machine's own, "
            f"{calm_ms:.0f} ms before), {saw.stalls} stalls, recovered after {back_s:.2f} s"
        )
        return saw


@contextmanager
def incident(folder: Path, state: str, llm: ThreadedLLM) -> Iterator[Incident]:
    """Run an instance with this state, under load."""
    (folder / "policy.yaml").write_text(POLICY)
    arguments = ("--policy", str(folder / "policy.yaml"), "--state", state, "--upstream", f"openai={llm.url}")
    with serving(folder, *arguments) as served, steady(served.port) as load:
        yield Incident(served, load)


def told(served: Served, name: str) -> int:
    """How often an event happened: a line of the log stands for itself and for what was left out."""
    return sum(1 + int(line.get("left_out", 0)) for line in served.log(name))


def told_once(served: Served, saw: Saw) -> None:
    """One incident, one word that it began and one that it ended; but a machine that stalls makes some of its own."""
    for name in ("store.degraded", "store.recovered"):
        assert 1 <= told(served, name) <= 1 + saw.stalls, served.log()
