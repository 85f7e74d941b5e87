"""The decision service beside nginx: CPU time per request on one core, in rounds that take turns.

Every program gets the same head. The ratio of a round compares neighbours in time, so that what else the machine did
in that minute weighs on both; the table gives the median ratio and its spread. `python -m bench decision`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import programs, traffic
from bench.load import Burst, Shape, Wrk
from bench.report import Options, Report, Target, spread

PEER = "nginx return 204"
ONE_RULE = "1 rule"
COMPLEX = "5 rules, JWT, loops"
VERIFIED = "5 rules, verified JWT, loops"
TAIL = "the same + tail, 2 KB POST"
DENIED = "loop, all denied"
PEER_POST = "nginx return 204, 2 KB POST"
_TARGETS = {ONE_RULE: 2.6, COMPLEX: 3.6, VERIFIED: 3.6}
_SERVER_CORE, _LOAD_CORE = 0, 1
_CONNECTIONS = 16
_DECISION = "/v1/decision"
_OTHERS_MAX, _LOAD_MAX = 0.05, 0.95  # share of a core


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    name: str
    shape: Shape
    policy: dict[str, Any] | None = None  # None: the peer
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One burst against one program."""

    cpu_us: float
    burst: Burst
    others: float  # share of the server's core that something else took
    load: float  # share of its core that the load generator took
    load_others: float  # share of that core that something else took


def cases() -> list[Case]:
    """What is measured, in the order of a round."""
    get, post = Shape(_DECISION), Shape(_DECISION, body=True)
    verified = {"BREAKLOOP_JWT_SECRET": traffic.JWT_SECRET}
    return [
        Case(PEER, get),
        Case(ONE_RULE, get, traffic.one_rule()),
        Case(COMPLEX, get, traffic.complex_policy()),
        Case(VERIFIED, get, traffic.complex_policy(), verified),
        Case(TAIL, post, traffic.complex_policy(tail=True)),
        Case(DENIED, Shape(_DECISION, varies=False), traffic.looping()),
        Case(PEER_POST, post),
    ]


def run(options: Options) -> Report:
    """Measure everything and return the table."""
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("bench: two cores are needed, one for the server and one for the load")
    wanted = cases()
    samples: dict[str, list[Sample]] = {case.name: [] for case in wanted}
    wrk = Wrk(_LOAD_CORE, _CONNECTIONS)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        started = _start(wanted, Path(folder), stack)
        for case in wanted:
            _measure(wrk, case, started[case.name], 1)  # warm up: caches, imports, the first connections
        for number in range(options.rounds):
            options.progress(f"decision: round {number + 1} of {options.rounds}")
            for case in wanted:
                samples[case.name].append(_measure(wrk, case, started[case.name], options.seconds))
    return _report(samples)


def _start(wanted: list[Case], folder: Path, stack: ExitStack) -> dict[str, programs.Program]:
    peer = stack.enter_context(programs.nginx(folder / "nginx", _SERVER_CORE))
    started = {}
    for number, case in enumerate(wanted):
        if case.policy is None:
            started[case.name] = peer
        else:
            place = folder / str(number)
            started[case.name] = stack.enter_context(programs.breakloop(place, _SERVER_CORE, case.policy, case.env))
    return started


def _measure(wrk: Wrk, case: Case, program: programs.Program, seconds: int) -> Sample:
    busy_before, cpu_before, before = programs.core_busy_s(), program.cpu_s(), time.monotonic()
    burst = wrk.burst(program.port, case.shape, seconds)
    elapsed = time.monotonic() - before
    cpu_s = program.cpu_s() - cpu_before
    busy_s = {core: busy - busy_before[core] for core, busy in programs.core_busy_s().items()}
    if burst.broken or (case.shape.varies and burst.refused):
        raise SystemExit(f"bench: {case.name}: {burst.refused} refused, {burst.broken} broken of {burst.requests}")
    return Sample(
        cpu_s / burst.requests * 1e6,
        burst,
        others=(busy_s[_SERVER_CORE] - cpu_s) / elapsed,
        load=burst.cpu_s / elapsed,
        load_others=(busy_s[_LOAD_CORE] - burst.cpu_s) / elapsed,
    )


def _report(samples: dict[str, list[Sample]]) -> Report:
    report = Report(
        "decision",
        "Decision service beside nginx, per request, one core each for server and load",
        ("", "CPU us", "times nginx", "requests/s", "p50 us", "p99 us"),
    )
    for name, taken in samples.items():
        ratios = [mine.cpu_us / peer.cpu_us for mine, peer in zip(taken, samples[PEER], strict=True)]
        figures = {
            "cpu_us": statistics.median(sample.cpu_us for sample in taken),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
            "rps": statistics.median(sample.burst.rps for sample in taken),
            "p50_us": statistics.median(sample.burst.p50_us for sample in taken),
            "p99_us": statistics.median(sample.burst.p99_us for sample in taken),
        }
        report.add(
            name,
            figures,
            (
                f"{figures['cpu_us']:.1f}",
                spread(ratios),
                f"{figures['rps']:,.0f}",
                f"{figures['p50_us']:.0f}",
                f"{figures['p99_us']:.0f}",
            ),
        )
        if name in _TARGETS:
            report.targets.append(Target(f"{name}: times nginx", figures["ratio"], _TARGETS[name]))
    report.warnings += _warnings(samples)
    return report


def _warnings(samples: dict[str, list[Sample]]) -> Iterator[str]:
    for name, taken in samples.items():
        for core, others in (("server", [s.others for s in taken]), ("load", [s.load_others for s in taken])):
            if max(others) > _OTHERS_MAX:
                yield f"{name}: something else took up to {max(others):.0%} of the {core}'s core: trust the ratios only"
        load = max(sample.load for sample in taken)
        if load > _LOAD_MAX:
            yield f"{name}: the load generator's core was full ({load:.0%}), so requests/s is its limit"


if __name__ == "__main__":
    from bench.__main__ import main

    main(["decision"])
