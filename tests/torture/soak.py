"""Ordinary traffic with some hostile traffic among it, for a long time: nothing may grow."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from tests.torture.bodies import MEMORY_MIB, empty_lists, packed_lists, read_stream
from tests.torture.gateway import Gateway, Rig, bystanders, chat, expect_alive, gateway, idle, post, send
from tests.torture.limits import Limits, memory
from tests.torture.table import Row
from tests.torture.upstream import upstream

_ENTRIES: Final = 2000  # so that memory is as full as it gets within the first minute
_GROWTH_MIB: Final = 16
_GROWTH_COUNT: Final = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """How large the process is at some moment."""

    resident_mib: int
    files: int
    threads: int


def _hostile(running: Gateway, stop: threading.Event) -> None:
    """One attack after the other."""
    for number in count():
        attacks: Sequence[Callable[[], object]] = (
            lambda: send(running.port, post(packed_lists(), "Content-Encoding: gzip")),
            lambda: send(running.port, post(empty_lists())),
            lambda: read_stream(running.port, chat("Count.", "X-Events: 20000")),
            lambda: [running.api("/api/v1/agents", token="guess") for _ in range(5)],
            lambda: send(running.port, b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
            lambda number=number: send(running.port, chat("again", key=f"loop-{number // 12}")),  # type: ignore[misc]
        )
        attacks[number % len(attacks)]()
        if number % 20 == 0:
            with idle(running.port, 50):
                pass
        if stop.wait(0.2):
            return


def _sample(running: Gateway) -> Sample:
    return Sample(running.resident_mib(), running.files(), running.threads())


def soak(rig: Rig, row: Row) -> None:
    row.done = f"ordinary traffic beside hostile bodies, streams, guessed tokens, loops and idle connections for {rig.soak_s // 60} minutes"
    entries = {"BREAKLOOP_MEMORY_MAX_ENTRIES": str(_ENTRIES)}
    samples: list[Sample] = []
    with (
        upstream() as url,
        memory(MEMORY_MIB) as limit,
        gateway(url, limits=limit.apply(Limits()), env=entries) as running,
    ):
        stop = threading.Event()
        attacker = threading.Thread(target=_hostile, args=(running, stop))
        with bystanders(running.port) as others, others.watch(100):
            attacker.start()
            end = time.monotonic() + rig.soak_s
            while time.monotonic() < end and running.is_alive:
                others.load.answers(500)
                samples.append(_sample(running))
            stop.set()
            attacker.join()
        expect_alive(row, running, MEMORY_MIB)
        _judge(row, samples)
        others.judge(row, fast=False)
        row.expect("nothing is logged as an error", not running.errors(), ", ".join(running.errors()) or "nothing")


def _judge(row: Row, samples: list[Sample]) -> None:
    """Compare the second fifth, when everything is warm, with the last."""
    fifth = max(1, len(samples) // 5)
    early, late = samples[fifth : 2 * fifth] or samples, samples[-fifth:]
    for promise, name, most in (
        ("resident memory does not grow", "resident_mib", _GROWTH_MIB),
        ("nor does the number of open files", "files", _GROWTH_COUNT),
        ("nor of threads", "threads", _GROWTH_COUNT),
    ):
        first, last = (statistics.median(getattr(one, name) for one in part) for part in (early, late))
        unit = " MiB" if name == "resident_mib" else ""
        row.expect(promise, last - first <= most, f"{first:.0f}{unit}, then {last:.0f}{unit}")


SCENARIOS: Final[dict[str, Callable[[Rig, Row], None]]] = {"soak": soak}
