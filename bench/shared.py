"""State in Redis beside state in memory, with its durable companion beside without, and two workers beside one: CPU
time per decision and per proxied call, in rounds that take turns; what Redis itself needs. `python -m bench redis`."""

from __future__ import annotations

import http.client
import json
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import chat, programs, traffic
from bench.load import FIRST_NUMBER, SESSION, Burst, Callers, Pieces, Shape, Wrk, pieces
from bench.measure import LOAD_CORE, SERVER_CORE, Sample, measure, need_two_cores, ratios, warnings
from bench.report import Options, Report, Target, spread
from bench.sessions import STEPS, SessionBytes, measure_sessions

CONNECTIONS = 32
MANY = 256  # the kernel deals connections out by chance: with a few of them one worker gets clearly more
MEMORY, REDIS, NOT_KEPT = "memory", "redis", "memory, not kept"
ONE, TWO = "redis, 1 worker", "redis, 2 workers"
ONE_RULE, COMPLEX, PROXIED = "decision, 1 rule", "decision, 5 rules + loops", "proxied 2 KB"
WORKERS = "proxied 2 KB, on both cores"
_BASE = {WORKERS: ONE}  # what a group is compared with; memory elsewhere
_TIMES_REDIS = {ONE_RULE: 3.0, COMPLEX: 3.0, PROXIED: 1.5}
_TIMES_KEPT = 1.1
_WORKERS_TIMES = 1.6
_SESSION_BYTES = 6 * 1024
_BOTH_CORES = f"{SERVER_CORE},{LOAD_CORE}"

Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Taken:
    """One burst, what Redis needed for it, and what the busiest process of the program did: when its core is full, that
    is all there is."""

    sample: Sample
    redis_us: float
    busiest_us: float


class Bench:
    """Everything that runs."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.redis = stack.enter_context(programs.redis(folder / "redis", LOAD_CORE))
        self._upstream = stack.enter_context(programs.upstream(folder / "upstream", LOAD_CORE))
        self._wrk = Wrk(LOAD_CORE, CONNECTIONS)
        self._agents = Callers(LOAD_CORE, CONNECTIONS, 2 * FIRST_NUMBER)
        self._many = Callers(LOAD_CORE, MANY, 3 * FIRST_NUMBER)
        self._count = 0

    def decision(self, state: str, policy: dict[str, Any]) -> programs.Program:
        """A decision service."""
        return self._stack.enter_context(programs.breakloop(self._place(), SERVER_CORE, policy, {}, self._flags(state)))

    def proxy(self, state: str, workers: int = 1) -> programs.Program:
        """A proxy with the built-in bundle; several workers have both cores."""
        cores = SERVER_CORE if state in {MEMORY, REDIS, NOT_KEPT} else _BOTH_CORES
        flags = [*self._flags(state), "--workers", str(workers)]
        url = f"http://127.0.0.1:{self._upstream.port}"
        return self._stack.enter_context(programs.breakloop_proxy(self._place(), cores, url, None, {}, flags))

    def burst(self, name: str, program: programs.Program, request: Pieces, seconds: int) -> Taken:
        """One burst of load; agents keep their connections, each with a session of its own."""
        agents = self._many if name.startswith(WORKERS) else self._agents
        load = agents if SESSION in request.before else self._wrk
        redis_s, each_s = self.redis.cpu_s(), program.cpu_each_s()

        def send() -> Burst:
            return load.send(program.port, request, seconds)

        sample = measure(name, program, send, [self.redis, self._upstream])
        busiest_s = max(used - each_s.get(pid, 0.0) for pid, used in program.cpu_each_s().items())
        count = sample.burst.requests / 1e6
        return Taken(sample, (self.redis.cpu_s() - redis_s) / count, busiest_s / count)

    def _flags(self, state: str) -> list[str]:
        """How a process is told where its state is. What is measured is not whether Redis is in time."""
        if state == NOT_KEPT:
            file = self._folder / "a-file"
            file.touch()
            return ["--data-dir", str(file / "no-directory")]
        return [] if state == MEMORY else ["--state", f"redis://127.0.0.1:{self.redis.port}/0?time_budget_ms=5000"]

    def _place(self) -> Path:
        self._count += 1
        return self._folder / str(self._count)


def run(options: Options) -> Report:
    """Measure everything and return the table."""
    need_two_cores()
    taken: dict[Line, list[Taken]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(Path(folder), stack)
        lines = _lines(bench)
        sessions = measure_sessions(lines[PROXIED, REDIS][0], bench.redis.port)
        for number in range(options.rounds + 1):
            options.progress(f"redis: round {number} of {options.rounds}" if number else "redis: warming up")
            for (group, state), (program, request) in lines.items():
                burst = bench.burst(f"{group}, {state}", program, request, options.seconds if number else 1)
                if number:
                    taken.setdefault((group, state), []).append(burst)
        for (_, state), (program, _) in lines.items():
            _check_state(program, state)
    return _report(taken, sessions)


def _lines(bench: Bench) -> dict[Line, tuple[programs.Program, Pieces]]:
    decision = Pieces(*pieces(Shape("/v1/decision")))
    call = chat.call(2048, chat.WHOLE, ("X-Agent-Session", SESSION.decode()))
    found: dict[Line, tuple[programs.Program, Pieces]] = {}
    for group, policy in ((ONE_RULE, traffic.one_rule()), (COMPLEX, traffic.complex_policy())):
        for state in (MEMORY, REDIS, NOT_KEPT):
            found[group, state] = (bench.decision(state, policy), decision)
    for state in (MEMORY, REDIS, NOT_KEPT):
        found[PROXIED, state] = (bench.proxy(state), call)
    for state, workers in ((ONE, 1), (TWO, 2)):
        found[WORKERS, state] = (bench.proxy(state, workers), call)
    return found


def _check_state(program: programs.Program, state: str) -> None:
    """End here when a process did not use the state that it was to use."""
    connection = http.client.HTTPConnection("127.0.0.1", program.port)
    connection.request("GET", "/readyz")
    ready = json.loads(connection.getresponse().read())
    connection.close()
    kept = ready["state_kept"] if ready["state"] == MEMORY else not ready["degraded"]
    if ready["state"] != state.partition(",")[0] or kept == (state == NOT_KEPT):
        raise SystemExit(f"bench: {state}: {ready}")


def _report(taken: Mapping[Line, list[Taken]], sessions: SessionBytes) -> Report:
    report = Report(
        "redis",
        f"State in Redis beside state in memory, per request, {CONNECTIONS} at a time",
        ("", "CPU us", "times the first", "Redis us", "requests/s", "p50 us", "p99 us"),
    )
    for (group, state), bursts in taken.items():
        base = taken[group, _BASE.get(group, MEMORY)]
        _add(report, group, state, bursts, base)
        report.targets += _targets(group, state, bursts, base)
    for name, value in (
        ("keys and values", sessions.packed),
        ("with what Redis adds", sessions.windows),
        ("counters of the last minute", sessions.counters),
    ):
        report.add(f"bytes of a session of {STEPS} steps: {name}", {"bytes": value}, (f"{value:,.0f}",))
    report.targets.append(Target("bytes of a session, keys and values", sessions.packed, _SESSION_BYTES))
    report.warnings += warnings({f"{group}: {state}": _samples(bursts) for (group, state), bursts in taken.items()})
    return report


def _add(report: Report, group: str, state: str, bursts: list[Taken], base: list[Taken]) -> None:
    samples, times = _samples(bursts), ratios(_samples(bursts), _samples(base))
    figures = {
        "cpu_us": statistics.median(one.cpu_us for one in samples),
        "busiest_us": statistics.median(one.busiest_us for one in bursts),
        "ratio": statistics.median(times),
        "redis_us": statistics.median(one.redis_us for one in bursts),
        "rps": statistics.median(one.burst.rps for one in samples),
        "p50_us": statistics.median(one.burst.p50_us for one in samples),
        "p99_us": statistics.median(one.burst.p99_us for one in samples),
    }
    redis_us = f"{figures['redis_us']:.1f}" if state.startswith(REDIS) else ""
    cells = (f"{figures['cpu_us']:.1f}", spread(times), redis_us, f"{figures['rps']:,.0f}")
    report.add(f"{group}: {state}", figures, (*cells, f"{figures['p50_us']:.0f}", f"{figures['p99_us']:.0f}"))


def _targets(group: str, state: str, bursts: list[Taken], base: list[Taken]) -> list[Target]:
    times = statistics.median(ratios(_samples(bursts), _samples(base)))
    if state == REDIS:
        return [Target(f"{group}: Redis, times memory", times, _TIMES_REDIS[group])]
    if state == NOT_KEPT:
        return [Target(f"{group}: kept, times not kept", 1 / times, _TIMES_KEPT)]
    if state == TWO:
        more = statistics.median(one.busiest_us / two.busiest_us for one, two in zip(base, bursts, strict=True))
        return [Target("calls until a core is full: 2 workers, times 1", more, _WORKERS_TIMES, least=True)]
    return []


def _samples(bursts: list[Taken]) -> list[Sample]:
    return [one.sample for one in bursts]


if __name__ == "__main__":
    from bench.__main__ import main

    main(["redis"])
