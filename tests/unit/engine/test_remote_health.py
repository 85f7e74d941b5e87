"""When a shared store is used, and when not."""

from __future__ import annotations

from breakloop.engine.remote import PROBE_S, StoreHealth
from breakloop.store.redis.connection import DELAY_MAX_S


def made() -> tuple[StoreHealth, list[tuple[bool, str]]]:
    told: list[tuple[bool, str]] = []
    return StoreHealth(lambda up, why: told.append((up, why))), told


def good_ones(health: StoreHealth, now: float) -> int:
    """How many good probes it takes until it is used again."""
    for count in range(1, 50):
        health.answered(now)
        if health.up:
            return count
    raise AssertionError


def test_one_failure_is_enough_and_is_told_once() -> None:
    """No request waits for a store that is known to be slow (S-3)."""
    health, told = made()
    health.failed("slow", 0.0)
    health.failed("slow again", 0.1)
    assert not health.up
    assert told == [(False, "slow")]


def test_two_good_probes_in_a_row_bring_it_back() -> None:
    """It comes back by itself (S-3)."""
    health, told = made()
    health.failed("slow", 0.0)
    health.answered(0.1)
    health.failed("slow", 0.2)
    health.answered(0.3)
    assert told == [(False, "slow")]
    health.answered(0.4)
    assert [up for up, _ in told] == [False, True]


def test_a_store_that_flutters_is_followed_less_and_less() -> None:
    """Flapping does not oscillate; yet one that is well is used again within 2 s: it may take a second until it is
    connected again, and then eight probes of 0.1 s (S-3)."""
    health, _ = made()
    needed = []
    for now in range(5):
        health.failed("slow", float(now))
        needed.append(good_ones(health, float(now)))
    assert needed == [2, 4, 8, 8, 8]
    assert DELAY_MAX_S + (max(needed) + 1) * PROBE_S < 2.0
    health.failed("slow", 100.0)
    assert good_ones(health, 100.0) == 2


def test_answers_while_it_is_up_mean_nothing() -> None:
    """Only probes after a failure count."""
    health, told = made()
    health.answered(0.0)
    health.answered(0.0)
    health.failed("gone", 1.0)
    assert not health.up
    assert health.changes == len(told) == 1
