"""SSE streams of 100 chunks through the proxy beside nginx with `proxy_buffering off`: CPU time per chunk, when they
come as fast as they can and when one comes every 20 ms. `python -m bench streams`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench import chat, contenders, programs
from bench.contenders import DIRECT, GUARD, NGINX
from bench.load import Burst, Clients, Pieces
from bench.measure import LOAD_CORE, Sample, check, figures, measure, need_two_cores, ratios, warnings
from bench.plot import Chart
from bench.report import Options, Report, Target, spread

STREAMS = 64
PACED = "paced, one in 20 ms"
_MODES = {"flat out": chat.FLAT_OUT, PACED: chat.PACED}
_SIZE_BYTES = 2048
_TIMES_NGINX_MAX = 1.6
_FIRST_NUMBER = 100_000_000


@dataclass(frozen=True, slots=True)
class Taken:
    """What one round showed of one program; without a proxy there is no sample. Its `cpu_us` is per chunk."""

    burst: Burst
    sample: Sample | None = None


class Loads:
    """Holds streams through one program after the other."""

    def __init__(self, upstream: programs.Upstream) -> None:
        self._upstream = upstream
        self._clients = Clients(LOAD_CORE, _FIRST_NUMBER)

    def direct(self, word: bytes, seconds: int) -> Taken:
        """The same streams without a proxy."""
        burst = self._send(self._upstream.port, chat.call(_SIZE_BYTES, word), seconds)
        check(DIRECT, burst)
        return Taken(burst)

    def through(
        self, name: str, program: programs.Program, word: bytes, seconds: int, *extra: tuple[str, str]
    ) -> Taken:
        """Streams through a proxy, with `extra` header fields."""
        request = chat.call(_SIZE_BYTES, word, *extra)
        sample = measure(name, program, lambda: self._send(program.port, request, seconds), [self._upstream])
        return Taken(sample.burst, replace(sample, cpu_us=sample.cpu_us / chat.CHUNKS))

    def _send(self, port: int, request: Pieces, seconds: int) -> Burst:
        return self._clients.streams(port, request, STREAMS, seconds)


def run(options: Options) -> Report:
    """Measure everything and return the table."""
    need_two_cores()
    results: dict[str, dict[str, list[Taken]]] = {mode: {} for mode in _MODES}
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        upstream = stack.enter_context(programs.upstream(folder / "upstream", LOAD_CORE))
        started = contenders.start(stack, folder / "proxies", upstream, buffering=False)
        loads = Loads(upstream)
        for number in range(options.rounds + 1):
            for mode, word in _MODES.items():
                told = f"round {number} of {options.rounds}" if number else "warming up"
                options.progress(f"streams: {told}: {mode}")
                found = _round(loads, started, word, options.seconds if number else 1)
                for name, taken in found.items() if number else ():
                    results[mode].setdefault(name, []).append(taken)
    return _report(results)


def _round(loads: Loads, started: dict[str, programs.Program], word: bytes, seconds: int) -> dict[str, Taken]:
    found = {DIRECT: loads.direct(word, seconds)}
    for name, program in started.items():
        found[name] = loads.through(name, program, word, seconds)
    return found


def _report(results: dict[str, dict[str, list[Taken]]]) -> Report:
    heading = (
        f"SSE streams of {chat.CHUNKS} chunks through a proxy, {STREAMS} at a time, one core each for proxy and load"
    )
    report = Report("streams", heading, ("", "CPU us a chunk", "times nginx", "chunks/s", "first byte p50 us", "MB"))
    report.chart = Chart("CPU time of a chunk of an SSE stream through a proxy", "times nginx")
    for mode, found in results.items():
        lines(report, mode, found, NGINX)
    report.warnings += warnings(
        {f"{mode}: {name}": samples(taken) for mode, found in results.items() for name, taken in found.items()}
    )
    paced = results[PACED]
    value = statistics.median(ratios(samples(paced[GUARD]), samples(paced[NGINX])))
    report.targets.append(Target(f"{GUARD}, {PACED}: times nginx", value, _TIMES_NGINX_MAX))
    return report


def lines(report: Report, group: str, found: dict[str, list[Taken]], peer: str, gap: tuple[str, ...] = ()) -> None:
    """A line for each program of a group, with its bar in the chart. `gap`: cells for what only calls have."""
    beside = samples(found[peer])
    for name, taken in found.items():
        bursts = [one.burst for one in taken]
        values = figures(samples(taken), beside) if name != DIRECT else {}
        values["chunks_per_s"] = statistics.median(burst.rps for burst in bursts) * chat.CHUNKS
        values["first_byte_us"] = statistics.median(burst.p50_us for burst in bursts)
        values["streams_per_s"] = values.pop("rps", values["chunks_per_s"] / chat.CHUNKS)
        cells = [f"{values['chunks_per_s']:,.0f}", *gap, f"{values['first_byte_us']:.0f}", *gap]
        if name == DIRECT:
            report.add(f"{group}: {name}", values, ("", "", *cells, ""))
            continue
        times, costs = ratios(samples(taken), beside), [sample.cpu_us for sample in samples(taken)]
        cost = f"{values['cpu_us']:.2f}"
        report.add(f"{group}: {name}", values, (cost, spread(times), *cells, f"{values['rss_mb']:.0f}"))
        report.draw(group, name, costs, times)


def samples(taken: Sequence[Taken]) -> list[Sample]:
    """Those of a program."""
    return [one.sample for one in taken if one.sample is not None]


if __name__ == "__main__":
    from bench.__main__ import main

    main(["streams"])
