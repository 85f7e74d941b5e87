"""Counters and timings of one process, which `observe.metrics` exports, and the interface through which entry points
report calls to `observe.tracing`. No decision depends on them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, Protocol

from breakloop.model.call import Answer, Call
from breakloop.model.verdict import Verdict


@dataclass(slots=True)
class Tally:
    """Counts since the process started."""

    allowed: dict[str, int] = field(default_factory=dict)  # by reason
    denied: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(
        default_factory=dict
    )  # by descriptor: rules skipped because the descriptor is missing
    not_unpacked: dict[str, int] = field(
        default_factory=dict
    )  # by cause: compressed bodies that were checked without decompression
    not_read: dict[str, int] = field(default_factory=dict)  # by cause: answers that were forwarded without being parsed
    unknown_apis: dict[str, int] = field(default_factory=dict)  # by upstream: LLM requests of no known API, not judged
    unjudged: int = 0  # requests whose body was too large to check, or has no messages
    store_errors: int = 0
    conflicts: int = 0  # decisions not stored, because their windows changed too often
    steered: int = 0  # requests to which a note for the model was added
    landed: int = 0  # requests whose tools were switched off, with a note for the model
    asked_usage: int = 0  # streams for which breakloop requested token usage and removed it from the answer
    refused_usage: int = 0  # of these: sent again without that option, because the upstream rejected it
    cut: int = 0  # streamed answers cut because they repeated themselves
    cut_long: int = 0  # streamed answers cut because they exceeded a rule's maximum length
    faults: int = 0  # requests allowed because the decision failed with an internal error
    shadowed: int = 0
    settled: int = 0  # answers observed or reported
    failed: int = 0  # of these: 429, 5xx or no answer
    joined: int = 0  # requests not counted, because an identical one was in flight
    forgiven: int = 0  # counts reverted, because the answer failed
    input_tokens: int = 0
    output_tokens: int = 0


BITS: Final = 64  # the bit length of any duration in nanoseconds fits


class Histogram:
    """Durations in buckets of powers of two: `counts[n]` is the number from 2**(n-1) up to 2**n nanoseconds.

    Recording one is cheap enough for every request: a bit count and two additions.
    """

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * (BITS + 1)
        self.total_ns = 0

    def note(self, took_ns: int) -> None:
        """Record one duration from a monotonic clock."""
        self.counts[took_ns.bit_length()] += 1
        self.total_ns += took_ns

    def buckets(self, first: int, last: int) -> list[int]:
        """Return the number of durations below 2**first nanoseconds, in each bucket up to 2**last, and above.

        The list has `last - first + 2` numbers, and their sum is the number of all durations.
        """
        counts = self.counts
        return [sum(counts[: first + 1]), *counts[first + 1 : last + 1], sum(counts[last + 1 :])]


def bounds_s(first: int, last: int) -> tuple[float, ...]:
    """Return the upper bounds of `Histogram.buckets` in seconds, except for the last bucket, which has none."""
    return tuple(2**power / 1e9 for power in range(first, last + 1))


class Timings:
    """Durations measured by one process, with its own time separate from that of upstreams."""

    __slots__ = ("decision", "proxy", "upstreams")

    def __init__(self) -> None:
        self.proxy = Histogram()  # from receiving a request to forwarding or denying it
        self.decision = Histogram()  # from receiving a decision request to responding
        # By upstream: from forwarding to the end of the answer.
        self.upstreams: defaultdict[str, Histogram] = defaultdict(Histogram)


class TraceCounters(Protocol):
    """Receives the decision and the answer of each call, for tracing. Its methods neither raise nor block."""

    def decided(self, call: Call, verdict: Verdict) -> None:
        """Record the verdict of a call. `call.began_ns` is when the call was received."""
        ...

    def answered(self, call: Call, answer: Answer) -> None:
        """Record the answer to an allowed call."""
        ...

    def close(self) -> None:
        """Export what is left. May block."""
        ...
