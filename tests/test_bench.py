"""Benchmarks: what they compare with their targets, without measuring anything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import instructions, proxy
from bench.contenders import DIRECT, NGINX, OURS
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
        subject.decide([case.request(0)], allowed=True)
        for number in range(1, 2 * instructions.STEPS):
            subject.decide([case.request(number)], allowed=case.allowed)

    asyncio.run(decide())
