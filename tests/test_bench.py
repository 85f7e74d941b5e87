"""Benchmarks: what they compare with their targets, without measuring anything."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import agent_calls, instructions, proxy, runs
from bench.agents import STEPS, Conversations
from bench.contenders import DIRECT, GUARD, NGINX, OURS
from bench.load import Burst
from bench.measure import Sample
from bench.proxy import Taken


def taken(p99_us: int) -> Taken:
    burst = Burst(requests=1000, duration_us=1_000_000, refused=0, broken=0, p50_us=200, p99_us=p99_us, cpu_s=0.5)
    return Taken(burst, burst, Sample(100.0, burst, 50_000_000, others=0.0, load=0.5, load_others=0.0))


def test_added_latency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench --check` fails if a call of 20 KB takes over 1 ms longer at p99 than without a proxy (Q-4)."""

    def check(p99_us: int) -> None:
        found = {DIRECT: [taken(300)], NGINX: [taken(350)], **{name: [taken(p99_us)] for name in OURS}}
        monkeypatch.setitem(bench.BENCHMARKS, "proxy", lambda _options: proxy._report({(20, False): found}))
        bench.main(["proxy"])

    monkeypatch.setattr("sys.argv", ["bench", "--check", "--json", str(tmp_path / "proxy.json")])
    check(1_200)
    with pytest.raises(SystemExit, match="1"):
        check(1_400)


@pytest.mark.parametrize("case", instructions.cases(), ids=lambda case: case.name)
def test_requests_that_are_counted_get_the_expected_replies(case: instructions.Case, tmp_path: Path) -> None:
    async def decide() -> None:
        subject = instructions._Subject(case, tmp_path / "service")
        first, *others = instructions.exchanges_of(case, range(2 * STEPS))
        subject.decide([first], allowed=True)
        for exchange in others:
            subject.decide([exchange], allowed=case.allowed)

    asyncio.run(decide())


@pytest.mark.parametrize("size_kb", [2, 20, 200])
@pytest.mark.parametrize("anthropic", [False, True])
def test_conversations_of_agents_grow(size_kb: int, anthropic: bool) -> None:
    """Each request of a session has what the last one had, its answer and a result. The size is about the given one."""
    agent = Conversations(size_kb * 1024, anthropic=anthropic)
    bodies = [json.loads(agent.request(number).partition(b"\r\n\r\n")[2]) for number in range(STEPS + 1)]
    for number in range(STEPS - 1):
        before, after = bodies[number]["messages"], bodies[number + 1]["messages"]
        answer = json.loads(agent.answer(number).partition(b"\r\n\r\n")[2])
        said = {"role": "assistant", "content": answer["content"]} if anthropic else answer["choices"][0]["message"]
        assert after[:-1] == [*before, said]
    assert bodies[STEPS]["messages"] != bodies[0]["messages"]
    middle = len(agent.request(STEPS // 2))
    assert 0.7 * size_kb * 1024 < middle < 1.3 * size_kb * 1024 + 1024


@pytest.mark.parametrize("api", runs.PATHS)
def test_runs_of_agents_grow_by_the_call_that_was_answered(api: str) -> None:
    """Each request holds the call that the response to the one before it has made."""
    of_agents = runs.AgentRuns(api, 20_000)
    requests = of_agents.requests(7)
    sizes = [len(request) for request in requests]
    assert sizes == sorted(sizes)
    assert sizes[0] > 10_000
    assert sizes[-1] < 40_000
    for before, after in pairwise(requests):
        at = before.index(runs.ANSWER_FIELD) + len(runs.ANSWER_FIELD)
        call = re.search(rb"call_7_\d+", runs.answer(before[at : before.index(b"\r", at)]))
        assert call is not None
        assert call[0] + b'"' in after
        assert call[0] + b'"' not in before
    packed = runs.AgentRuns(api, 20_000, runs.GZIP).requests(7)[0]
    assert gzip.decompress(packed.partition(b"\r\n\r\n")[2]) == requests[0].partition(b"\r\n\r\n")[2]


def test_the_report_of_agents_compares_with_nginx() -> None:
    """Targets are ratios, and a missing Envoy is told."""
    sample = taken(500).sample
    assert sample is not None
    dear = replace(sample, cpu_us=900.0)
    report = agent_calls.report_of({"chat, 2 KB": {NGINX: [sample], GUARD: [dear]}}, [0.9])
    assert [(target.value, target.met) for target in report.targets] == [(9.0, False), (0.9, False)]
    assert any("Envoy" in warning for warning in report.warnings)
