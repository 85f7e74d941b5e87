"""`Histogram`: how long things took, in buckets that double. Cheap enough for the path of a request: one subtraction,
one bit count, two additions. `Timings` has those of a process; showing them is `observe.metrics`' business."""

from __future__ import annotations

from typing import Final

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
