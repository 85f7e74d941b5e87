"""One burst of load against one program: what it cost there, and what else ran meanwhile. The program has one core; the
load and whatever helps it have the other."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench import programs
from bench.load import Burst

SERVER_CORE, LOAD_CORE = 0, 1
_OTHERS_MAX, _LOAD_MAX = 0.05, 0.95  # share of a core


@dataclass(frozen=True, slots=True)
class Sample:
    """What one burst showed."""

    cpu_us: float  # of the program, per request
    burst: Burst
    rss_bytes: int  # of the program, afterwards
    others: float  # share of the program's core that something else took
    load: float  # share of its core that the load took, with what helps it
    load_others: float  # share of that core that something else took


def need_two_cores() -> None:
    """End here when the program and its load would share a core."""
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("bench: two cores are needed, one for the server and one for the load")


def measure(
    name: str, program: programs.Program, send: Callable[[], Burst], helpers: Sequence[programs.Program] = ()
) -> Sample:
    """Run a burst, every request of which must be answered with success. `helpers` run on the load's core."""

    def helped_s() -> float:
        return sum(helper.cpu_s() for helper in helpers)

    busy_before, helped_before, cpu_before, before = (
        programs.core_busy_s(),
        helped_s(),
        program.cpu_s(),
        time.monotonic(),
    )
    burst = send()
    elapsed, cpu_s = time.monotonic() - before, program.cpu_s() - cpu_before
    load_s = burst.cpu_s + helped_s() - helped_before
    busy_s = {core: busy - busy_before[core] for core, busy in programs.core_busy_s().items()}
    check(name, burst)
    return Sample(
        cpu_s / burst.requests * 1e6,
        burst,
        program.rss_bytes(),
        others=(busy_s[SERVER_CORE] - cpu_s) / elapsed,
        load=load_s / elapsed,
        load_others=(busy_s[LOAD_CORE] - load_s) / elapsed,
    )


def check(name: str, burst: Burst) -> None:
    """End here when a request was refused or not answered."""
    if burst.broken or burst.refused or not burst.requests:
        raise SystemExit(f"bench: {name}: {burst.refused} refused, {burst.broken} broken of {burst.requests}")


def ratios(mine: Sequence[Sample], peer: Sequence[Sample]) -> list[float]:
    """Times the peer's CPU, round by round."""
    return [one.cpu_us / other.cpu_us for one, other in zip(mine, peer, strict=True)]


def figures(mine: Sequence[Sample], peer: Sequence[Sample]) -> dict[str, float]:
    """What is told of every program: medians over the rounds."""
    times = ratios(mine, peer)
    return {
        "cpu_us": statistics.median(sample.cpu_us for sample in mine),
        "ratio": statistics.median(times),
        "ratio_min": min(times),
        "ratio_max": max(times),
        "rps": statistics.median(sample.burst.rps for sample in mine),
        "rss_mb": statistics.median(sample.rss_bytes for sample in mine) / 1e6,
    }


def warnings(samples: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    """What weakens the figures, in a line each. Lines without samples are no proxy's."""
    samples = {name: taken for name, taken in samples.items() if taken}
    for core, attribute in (("proxies'", "others"), ("load's", "load_others")):
        shares = {name: max(getattr(one, attribute) for one in taken) for name, taken in samples.items()}
        disturbed = [name for name, share in shares.items() if share > _OTHERS_MAX]
        if disturbed:
            worst = max(disturbed, key=shares.__getitem__)
            told = f"{len(disturbed)} of {len(shares)} lines; {worst}: {shares[worst]:.0%}"
            yield f"something else ran on the {core} core ({told}): trust the ratios only"
    full = [name for name, taken in samples.items() if max(sample.load for sample in taken) > _LOAD_MAX]
    if full:
        yield f"the load's core was full, which limits what is sent and so p50 at many connections: {', '.join(full)}"
