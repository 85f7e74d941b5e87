"""Chat calls through the proxy beside nginx' `proxy_pass`, in rounds that take turns: CPU time per call on one core,
what a call takes longer than without a proxy, and how long its first byte is on the way. `python -m bench proxy`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import chat, contenders, programs
from bench.contenders import DIRECT, LIMITS, NGINX, NO_POLICIES, OURS
from bench.load import Burst, Callers, Clients, Pieces, Wrk
from bench.measure import LOAD_CORE, Sample, check, figures, measure, need_two_cores, ratios, warnings
from bench.plot import Chart
from bench.report import Options, Report, Target, spread

MANY = 64
_TARGET_KB = 2
_TARGETS = {NO_POLICIES: 4.0, LIMITS: 7.0}  # times nginx
_FIRST_BYTE_MAX_MS = 0.5
_LATENCY_KB = 20
_ADDED_MAX_MS = 1.0
_DELAYS_PER_SECOND = 200
# Where the numbers of requests begin, so that no two loads send the same.
_NUMBERS_ALONE, _NUMBERS_MANY, _NUMBERS_DELAYS = 100_000_000, 300_000_000, 900_000_000


@dataclass(frozen=True, slots=True)
class Taken:
    """What one round showed of one program. `sample` and `many` are of 64 connections, `alone` of one."""

    alone: Burst
    many: Burst
    sample: Sample | None = None  # without a proxy, None
    delay: Burst | None = None  # only of a small body


class Loads:
    """Sends what a round needs to one program after the other."""

    def __init__(self, upstream: programs.Upstream, sender: type[Wrk | Callers] = Wrk) -> None:
        self.upstream = upstream
        self.seconds = 1
        self._alone = sender(LOAD_CORE, 1, _NUMBERS_ALONE)
        self._many = sender(LOAD_CORE, MANY, _NUMBERS_MANY)
        self._clients = Clients(LOAD_CORE, _NUMBERS_DELAYS)

    def direct(self, size_kb: int, *, tls: bool = False, delays: bool = False) -> Taken:
        """The same load without a proxy."""
        port, scheme = (self.upstream.tls_port, "https") if tls else (self.upstream.port, "http")
        request = chat.call(size_kb * 1024)
        many = self._many.send(port, request, self.seconds, scheme)
        alone = self._alone.send(port, request, self._short_s, scheme)
        check(DIRECT, many)
        check(DIRECT, alone)
        return Taken(alone, many, delay=self.delay(port, chat.call(size_kb * 1024, chat.PROBE)) if delays else None)

    def through(
        self, name: str, program: programs.Program, size_kb: int, *extra: tuple[str, str], delays: bool = False
    ) -> Taken:
        """The load through a proxy, with `extra` header fields."""
        port, request = program.port, chat.call(size_kb * 1024, chat.WHOLE, *extra)

        def send() -> Burst:
            return self._many.send(port, request, self.seconds)

        sample = measure(name, program, send, [self.upstream])
        alone = self._alone.send(port, request, self._short_s)
        check(name, alone)
        probe = chat.call(size_kb * 1024, chat.PROBE, *extra)
        return Taken(alone, sample.burst, sample, self.delay(port, probe) if delays else None)

    @property
    def _short_s(self) -> int:
        return max(1, self.seconds // 2)

    def delay(self, port: int, request: Pieces, count: int = 0) -> Burst:
        """One request after the other; each answer must tell that the upstream got its number."""
        return self._clients.delays(port, request, count or self.seconds * _DELAYS_PER_SECOND)


def run(options: Options) -> Report:
    """Measure everything and return the table."""
    need_two_cores()
    groups = [(size_kb, tls) for tls in (False, True) for size_kb in options.sizes_kb]
    results: dict[tuple[int, bool], dict[str, list[Taken]]] = {group: {} for group in groups}
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        upstream = stack.enter_context(programs.upstream(folder / "upstream", LOAD_CORE))
        started = {tls: contenders.start(stack, folder / f"tls-{tls}", upstream, tls=tls) for tls in (False, True)}
        loads = Loads(upstream)
        for number in range(options.rounds + 1):
            for size_kb, tls in groups:
                told = f"round {number} of {options.rounds}" if number else "warming up"
                options.progress(f"proxy: {told}: {title(size_kb, tls)}")
                found = _round(loads, started[tls], size_kb, tls=tls)
                for name, taken in found.items() if number else ():
                    results[size_kb, tls].setdefault(name, []).append(taken)
            loads.seconds = options.seconds
    return _report(results)


def _round(loads: Loads, started: dict[str, programs.Program], size_kb: int, *, tls: bool) -> dict[str, Taken]:
    delays = not tls and size_kb * 1024 < chat.SMALL_BYTES
    found = {DIRECT: loads.direct(size_kb, tls=tls, delays=delays)}
    for name, program in started.items():
        found[name] = loads.through(f"{size_kb} KB, {name}", program, size_kb, delays=delays)
    return found


def title(size_kb: int, tls: bool) -> str:  # noqa: FBT001 - a group is this pair
    """What a group of lines is called."""
    return f"{size_kb} KB, TLS" if tls else f"{size_kb} KB"


def _report(results: dict[tuple[int, bool], dict[str, list[Taken]]]) -> Report:
    report = new_report("proxy", "Chat calls through a proxy, per call, one core each for proxy and load", NGINX)
    report.chart = Chart("CPU time of a chat call through a proxy", "times nginx")
    for (size_kb, tls), found in results.items():
        lines(report, title(size_kb, tls), found, NGINX)
        if size_kb == _TARGET_KB and not tls:
            report.targets += _targets(found)
        if size_kb == _LATENCY_KB and not tls:
            report.targets += _latency_targets(found)
    tell_warnings(report, {title(*group): found for group, found in results.items()})
    return report


def _targets(found: dict[str, list[Taken]]) -> list[Target]:
    """What a call of 2 KB may cost, compared with nginx, and by how much its first byte may be later."""

    def ratio(name: str) -> float:
        return statistics.median(ratios(samples(found[name]), samples(found[NGINX])))

    targets = [Target(f"{name}: times nginx", ratio(name), limit) for name, limit in _TARGETS.items()]
    for name in OURS:
        delays = added(found[name], found[DIRECT], _delay_us)
        if delays:
            text = f"{name}: ms added until the first byte is at the upstream"
            targets.append(Target(text, statistics.median(delays) / 1000, _FIRST_BYTE_MAX_MS))
    return targets


def _latency_targets(found: dict[str, list[Taken]]) -> list[Target]:
    """How much longer 99 of 100 calls of 20 KB may take, one after the other, than without a proxy (Q-4)."""
    return [
        Target(
            f"{name}: ms added at p99 to a call of {_LATENCY_KB} KB",
            statistics.median(added(found[name], found[DIRECT], _alone_p99_us)) / 1000,
            _ADDED_MAX_MS,
        )
        for name in OURS
    ]


def new_report(name: str, heading: str, peer: str) -> Report:
    """A report with the columns that `lines` fills."""
    columns = (
        "",
        "CPU us",
        f"times {peer}",
        "calls/s",
        "p50 us at 1",
        f"p50 us at {MANY}",
        "1st byte us",
        "MB",
    )
    return Report(name, heading, columns)


def lines(report: Report, group: str, found: dict[str, list[Taken]], peer: str) -> None:
    """A line for each program of a group, with its bar in the chart."""
    direct, beside = found[DIRECT], samples(found[peer])
    for name, taken in found.items():
        latencies = {"p50_1_us": _alone_us, "p50_64_us": _many_us, "first_byte_us": _delay_us}
        values = figures(samples(taken), beside) if name != DIRECT else {"rps": _median(taken, lambda t: t.many.rps)}
        cells = []
        for key, reading in latencies.items():
            values |= _latency(key, taken, direct, reading)
            more = f" ({values[f'{key}_added']:+.0f})" if name != DIRECT and key in values else ""
            cells.append(f"{values[key]:.0f}{more}" if key in values else "")
        cost = ["", ""]
        if name != DIRECT:
            times, costs = ratios(samples(taken), beside), [sample.cpu_us for sample in samples(taken)]
            cost = [f"{values['cpu_us']:.1f}", spread(times)]
            report.draw(group, name, costs, times)
        memory = f"{values['rss_mb']:.0f}" if "rss_mb" in values else ""
        report.add(f"{group}: {name}", values, (*cost, f"{values['rps']:,.0f}", *cells, memory))


def tell_warnings(report: Report, results: dict[str, dict[str, list[Taken]]]) -> None:
    """Add what weakens the figures."""
    report.warnings += warnings(
        {f"{group}: {name}": samples(taken) for group, found in results.items() for name, taken in found.items()}
    )


def samples(taken: Sequence[Taken]) -> list[Sample]:
    """Those of a program."""
    return [one.sample for one in taken if one.sample is not None]


def added(taken: Sequence[Taken], direct: Sequence[Taken], reading: Callable[[Taken], float | None]) -> list[float]:
    """By how much a reading is higher than without a proxy, round by round."""
    pairs = [(reading(mine), reading(other)) for mine, other in zip(taken, direct, strict=True)]
    return [mine - other for mine, other in pairs if mine is not None and other is not None]


def _latency(
    key: str, taken: Sequence[Taken], direct: Sequence[Taken], reading: Callable[[Taken], float | None]
) -> dict[str, float]:
    more = added(taken, direct, reading)
    if not more:
        return {}
    return {key: _median(taken, lambda t: reading(t) or 0.0), f"{key}_added": statistics.median(more)}


def _median(taken: Sequence[Taken], reading: Callable[[Taken], float]) -> float:
    return statistics.median(map(reading, taken))


def _alone_us(taken: Taken) -> float:
    return taken.alone.p50_us


def _alone_p99_us(taken: Taken) -> float:
    return taken.alone.p99_us


def _many_us(taken: Taken) -> float:
    return taken.many.p50_us


def _delay_us(taken: Taken) -> float | None:
    return None if taken.delay is None else taken.delay.p50_us


if __name__ == "__main__":
    from bench.__main__ import main

    main(["proxy"])
