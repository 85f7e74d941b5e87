"""`Tally`: what the engine and the doors have counted since start. Metrics show it; nobody decides by it.

`Histogram`: how long things took, in buckets that double. Cheap enough for the path of a request: one subtraction,
one bit count, two additions. `Timings` has those of a process; showing them is `observe.metrics`' business.

`Traces`: who is told of a call's verdict and of its answer, where somebody traces (SPEC G-5). Doors know this much
of it; what becomes of it is `observe.tracing`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Verdict


@dataclass(slots=True)
class Tally:
    """Counts since start."""

    allowed: dict[str, int] = field(default_factory=dict)  # reason -> how many
    denied: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)  # descriptor -> rules skipped for lack of it
    not_unpacked: dict[str, int] = field(default_factory=dict)  # why -> compressed bodies judged as they came
    not_read: dict[str, int] = field(default_factory=dict)  # why -> answers that passed unread
    unjudged: int = 0  # requests whose body was too large to be judged
    store_errors: int = 0
    conflicts: int = 0  # decisions whose windows changed too often, and were not written
    steered: int = 0  # requests that carried a note for the model
    asked_usage: int = 0  # streams whose count of tokens we asked for, and took out again
    refused_usage: int = 0  # of these: sent again without the question, because the upstream does not know it
    cut: int = 0  # streamed answers that were cut, because they repeated themselves
    cut_long: int = 0  # and those that were cut, because they became longer than a rule lets them
    faults: int = 0  # decisions that failed for a mistake of ours, and were allowed
    shadowed: int = 0
    settled: int = 0  # answers seen or reported
    failed: int = 0  # of these: 429, 5xx, none at all
    joined: int = 0  # counts not made, because an identical request was in flight
    forgiven: int = 0  # counts taken back, because the answer failed
    input_tokens: int = 0
    output_tokens: int = 0


BITS: Final = 64  # more nanoseconds than anybody waits


class Histogram:
    """`counts[n]` is how many took less than 2**n nanoseconds, and at least half of that."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * (BITS + 1)
        self.total_ns = 0

    def note(self, took_ns: int) -> None:
        """Take one duration, of a clock that never goes back."""
        self.counts[took_ns.bit_length()] += 1
        self.total_ns += took_ns

    def buckets(self, first: int, last: int) -> list[int]:
        """Return how many took less than 2**first nanoseconds, how many between the powers behind it, and the rest.

        They are `last - first + 2` numbers, which add up to all.
        """
        counts = self.counts
        return [sum(counts[: first + 1]), *counts[first + 1 : last + 1], sum(counts[last + 1 :])]


def bounds_s(first: int, last: int) -> tuple[float, ...]:
    """Return the upper bounds of `Histogram.buckets`, but for the last one, in seconds."""
    return tuple(2**power / 1e9 for power in range(first, last + 1))


class Timings:
    """What one process measures: its own time apart from its upstreams' (SPEC G-5)."""

    __slots__ = ("decision", "proxy", "upstreams")

    def __init__(self) -> None:
        self.proxy = Histogram()  # from a request to its way upstream, or to its denial
        self.decision = Histogram()  # from a question to its answer
        self.upstreams: dict[str, Histogram] = {}  # by name: from the way there to the end of the answer

    def upstream(self, name: str) -> Histogram:
        """Return the one of an upstream."""
        found = self.upstreams.get(name)
        if found is None:
            found = self.upstreams[name] = Histogram()
        return found


class TraceCounters(Protocol):
    """Neither method raises or waits."""

    def decided(self, call: Call, verdict: Verdict) -> None:
        """A call was judged; `call.began_ns` says when its door took it."""
        ...

    def answered(self, call: Call, answer: Answer) -> None:
        """An allowed call has its answer."""
        ...
