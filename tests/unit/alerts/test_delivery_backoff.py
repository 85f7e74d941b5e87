"""When something is tried again."""

from __future__ import annotations

import pytest

from breakloop.alerts.delivery import TRIES_MAX, WAITS_S, ChannelBreaker, given_up, wait_s


def test_waits_grow_with_jitter() -> None:
    """1, 4, 16, 60, 300 s and on; at most a tenth more (G-4)."""
    assert [wait_s(tries, 0.0) for tries in range(1, 6)] == [1, 4, 16, 60, 300]
    assert wait_s(1, 1.0) == pytest.approx(1.1)
    assert wait_s(99, 0.0) == WAITS_S[-1]
    assert list(WAITS_S) == sorted(WAITS_S)
    assert 12 * 3600 < sum(WAITS_S) < 24 * 3600


def test_giving_up() -> None:
    """After 12 tries, or when the next one would be more than a day after the event (G-4)."""
    assert TRIES_MAX == 12
    assert not given_up(11, 0.0, 60_000.0)
    assert given_up(12, 0.0, 1.0)
    assert given_up(2, 0.0, 86_401.0)


def test_the_fifth_failure_opens() -> None:
    """For a minute, doubled by each failed probe up to ten; a success closes it (G-4)."""
    breaker, now = ChannelBreaker(), 1000.0
    for _ in range(4):
        breaker.failed(now)
    assert breaker.allowed(now, 4) == 4
    assert breaker.state == "failing"
    breaker.failed(now)
    assert breaker.allowed(now + 59, 4) == 0
    breaker.failed(now + 1)  # one that was under way
    rests = []
    for _ in range(6):
        now = breaker.open_until
        assert breaker.allowed(now, 4) == 1
        breaker.failed(now)
        rests.append(breaker.open_until - now)
    assert rests == [120, 240, 480, 600, 600, 600]
    assert breaker.succeeded()
    assert (breaker.allowed(now, 4), breaker.state) == (4, "ok")
    assert not breaker.succeeded()


def test_whoever_wants_rest_gets_it() -> None:
    """Retry-After, also while the breaker is closed (G-4)."""
    breaker = ChannelBreaker()
    breaker.failed(1000.0, 90.0)
    assert breaker.allowed(1089.0, 4) == 0
    assert breaker.allowed(1090.0, 4) == 4
