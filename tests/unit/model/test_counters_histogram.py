"""Durations in buckets that double."""

from __future__ import annotations

import pytest

from breakloop.model.counters import BITS, Histogram, Timings, bounds_s


def test_each_duration_is_in_the_bucket_below_its_bound() -> None:
    """A bound of 2**n ns is above what took less, and not above what took as long (G-5)."""
    times = Histogram()
    for took_ns in (0, 1023, 1024, 2047, 2048, 5000):
        times.note(took_ns)
    assert times.buckets(10, 12) == [2, 2, 1, 1]
    assert times.total_ns == 11142
    assert bounds_s(10, 12) == (1.024e-6, 2.048e-6, 4.096e-6)


def test_nothing_is_lost_at_either_end() -> None:
    times = Histogram()
    for took_ns in (0, 1, 2**BITS - 1):
        times.note(took_ns)
    assert times.buckets(20, 30) == [2, *[0] * 10, 1]
    assert sum(times.buckets(20, 30)) == sum(times.counts) == 3


@pytest.mark.parametrize("took_ns", [1, 999, 10**6, 10**9])
def test_a_bucket_is_at_most_twice_as_wide_as_what_is_in_it(took_ns: int) -> None:
    times = Histogram()
    times.note(took_ns)
    power = times.counts.index(1)
    assert took_ns < 2**power <= 2 * took_ns


def test_each_upstream_has_its_own() -> None:
    """Ours is apart from theirs (G-5)."""
    timings = Timings()
    timings.upstreams["openai"].note(5)
    assert timings.upstreams["openai"].total_ns == 5
    assert (timings.proxy.total_ns, timings.decision.total_ns) == (0, 0)
