"""The engine alone, in this process: what one decision costs, and what more policies or more live state add to it.

Variants take turns with the base case within each round, because the machine's speed changes by more than the
difference that is looked for. `python -m bench engine`.
"""

from __future__ import annotations

import gc
import resource
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from bench import traffic
from bench.report import Options, Report, Target, spread
from breakloop.app.build import GC_THRESHOLD
from breakloop.clock import SystemClock
from breakloop.detect.counting import BuiltinLoopGuard, CountingDetector
from breakloop.engine.engine import Engine
from breakloop.model.call import Call
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.schema.bundle import Bundle
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import CountFingerprint

BASE = "no body: 3 buckets, exact loop, cached JWT"
CHAT = "2 KB chat body, tail"
NO_LIMITS = "2 KB chat body, no limits, no loops"
FIVE_LIMITS = "the same with five limits"
DENIED = "denied loop"
MANY_POLICIES = "10,000 policies"
MANY_FINGERPRINTS = "1,000,000 live fingerprints"
_TARGETS_US = {BASE: 15.0, CHAT: 60.0}
_LIMITS_US = 25.0  # what five limits may add, with reading the body and estimating its tokens
_GROWTH_MAX = 1.10
_FINGERPRINTS = 1_000_000
_PER_SECOND = 20_000  # decisions of one measurement, for each second asked for
_SECRET = b"bench".ljust(32, b"-")


@dataclass(slots=True)
class Subject:
    """An engine with its state, and the calls it is asked about: a new one every time, by number."""

    engine: Engine
    store: MemoryStore
    call: Callable[[int], Call]
    allowed: bool = True


def run(options: Options) -> Report:
    """Measure everything and return the table."""
    # As the service does once it has started: what is there stays, and cycles are looked for seldom.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    options.progress("engine: making a million fingerprints")
    full, bytes_each = _full_subject()
    subjects = {
        BASE: _subject(traffic.engine_policy()),
        CHAT: _subject(traffic.engine_policy(tail=True), _chat_call),
        NO_LIMITS: _subject(traffic.limits_policy(limits=False), _chat_call),
        FIVE_LIMITS: _subject(traffic.limits_policy(), _chat_call),
        DENIED: _looping_subject(),
        MANY_POLICIES: _subject(traffic.engine_policy(others=9_999)),
        MANY_FINGERPRINTS: full,
    }
    times: dict[str, list[list[int]]] = {name: [] for name in subjects}
    count = max(1, options.seconds * _PER_SECOND // 2)
    for number in range(options.rounds + 1):
        options.progress(f"engine: round {number} of {options.rounds}" if number else "engine: warming up")
        for name, subject in subjects.items():
            taken = _measure(subject, number * count, count)
            if number:
                times[name].append(taken)
    return _report(times, bytes_each)


def _measure(subject: Subject, first: int, count: int) -> list[int]:
    """Nanoseconds of each decision, sorted, without what reading the clock takes. The collector runs as it does in
    the service; calls are made beforehand in small lots, for making them is the door's work."""
    decide, taken = subject.engine.decide, []
    overhead = _clock_overhead_ns()
    for start in range(first, first + count, 500):
        for call in [subject.call(number) for number in range(start, min(start + 500, first + count))]:
            before = perf_counter_ns()
            verdict = decide(call)
            taken.append(perf_counter_ns() - before - overhead)
            if verdict.allowed is not subject.allowed:
                raise SystemExit(f"bench: unexpected verdict: {verdict.reason}")
    taken.sort()
    return taken


def _clock_overhead_ns() -> int:
    readings = []
    for _ in range(1000):
        before = perf_counter_ns()
        readings.append(perf_counter_ns() - before)
    return int(statistics.median(readings))


def _subject(
    policy: dict[str, Any], call: Callable[[int], Call] | None = None, max_entries: int = 1_500_000
) -> Subject:
    clock, store = SystemClock(), MemoryStore(max_entries)
    descriptors = Descriptors(ContextSettings(secret=_SECRET, trusted_proxies=("127.0.0.0/8",)), clock)
    engine = Engine(store, clock, descriptors)
    engine.set_bundle(compile_bundle(Bundle.model_validate(policy), "bench", descriptors, _SECRET, BuiltinLoopGuard()))
    return Subject(engine, store, call or _plain_call)


def _looping_subject() -> Subject:
    subject = _subject(traffic.looping(), lambda _number: _plain_call(0))
    subject.engine.decide(_plain_call(0))
    subject.allowed = False
    return subject


def _full_subject() -> tuple[Subject, float]:
    """The base case with a million fingerprints of other requests alive, and what each of them takes in memory."""
    subject = _subject(traffic.engine_policy())
    bundle = subject.engine.bundle
    assert bundle is not None
    detector = bundle.policies[0].loops[0]
    assert isinstance(detector, CountingDetector)
    prefix = f"ld:default:main:0:{'0' * 16}"
    now = SystemClock().now()
    gc.collect()
    before = _rss_bytes()
    for number in range(_FINGERPRINTS):
        subject.store.commit([CountFingerprint(detector.spec, f"{prefix}{number:016x}", detector)], now)
    gc.collect()
    return subject, (_rss_bytes() - before) / _FINGERPRINTS


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


@cache
def _headers(method: str, uri: str) -> dict[str, bytes]:
    return {name.lower(): value.encode() for name, value in traffic.fields(method, uri)}


def _plain_call(number: int) -> Call:
    headers = _headers("GET", traffic.AGENT_URI)
    path, _, query = traffic.AGENT_URI.partition("?")
    return Call("GET", path, host="tools.example.com", query=f"{query}{number}", headers=headers, peer="127.0.0.1")


def _chat_call(number: int) -> Call:
    headers = _headers("POST", traffic.CHAT_URI)
    body = traffic.chat_body(f"{number:09d}")
    return Call("POST", traffic.CHAT_URI, host="tools.example.com", headers=headers, peer="127.0.0.1", body=body)


def _report(times: dict[str, list[list[int]]], bytes_each: float) -> Report:
    report = Report("engine", "Engine alone, memory store", ("", "p50 us", "p99 us", "times the first"))
    for name, rounds in times.items():
        p50s = [taken[len(taken) // 2] / 1000 for taken in rounds]
        p99s = [taken[len(taken) * 99 // 100] / 1000 for taken in rounds]
        ratios = [mine[len(mine) // 2] / base[len(base) // 2] for mine, base in zip(rounds, times[BASE], strict=True)]
        figures = {"p50_us": statistics.median(p50s), "p99_us": statistics.median(p99s)}
        figures |= {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
        report.add(name, figures, (spread(p50s), f"{figures['p99_us']:.1f}", spread(ratios)))
        if name in _TARGETS_US:
            report.targets.append(Target(f"{name}: p50 us", figures["p50_us"], _TARGETS_US[name]))
        if name in {MANY_POLICIES, MANY_FINGERPRINTS}:
            report.targets.append(Target(f"{name}: times the first", figures["ratio"], _GROWTH_MAX))
    pairs = zip(times[FIVE_LIMITS], times[NO_LIMITS], strict=True)
    added = statistics.median([(five[len(five) // 2] - none[len(none) // 2]) / 1000 for five, none in pairs])
    report.targets.append(Target("five limits: added p50 us", added, _LIMITS_US))
    report.add("a live fingerprint", {"bytes": bytes_each}, (f"{bytes_each:.0f} bytes", "", ""))
    return report


if __name__ == "__main__":
    from bench.__main__ import main

    main(["engine"])
