"""Tests of `admin.slowdown`: who waits for how long."""

from __future__ import annotations

import pytest

from breakloop.admin import auth
from breakloop.admin.auth import APART_S, FORGOTTEN_S, FREE, LONGEST_S, LoginThrottle
from breakloop.clock import FakeClock


def _tried(slow: LoginThrottle, peer: str, times: int = FREE) -> None:
    for _ in range(times):
        slow.wrong(peer)


def test_a_few_mistakes_cost_nothing(clock: FakeClock) -> None:
    slow = LoginThrottle(clock)
    _tried(slow, "10.0.0.1", FREE - 1)
    assert slow.wait_s("10.0.0.1") == 0.0


def test_then_attempts_are_looked_at_one_after_the_other(clock: FakeClock) -> None:
    """Many connections at once help nobody (Y-3)."""
    slow = LoginThrottle(clock)
    _tried(slow, "10.0.0.1")
    waits = [slow.wait_s("10.0.0.1") for _ in range(4)]
    assert waits == pytest.approx([0.0, APART_S, 2 * APART_S, 3 * APART_S])
    assert slow.wait_s("10.0.0.2") == 0.0


def test_nobody_waits_for_ever(clock: FakeClock) -> None:
    slow = LoginThrottle(clock)
    _tried(slow, "p")
    while (wait := slow.wait_s("p")) is not None:
        assert wait <= LONGEST_S
    clock.advance(LONGEST_S)
    assert slow.wait_s("p") is not None


def test_it_is_forgotten_after_a_while(clock: FakeClock) -> None:
    slow = LoginThrottle(clock)
    _tried(slow, "p")
    clock.advance(FORGOTTEN_S)
    assert slow.wait_s("p") == 0.0
    slow.wrong("p")
    assert slow.wait_s("p") == 0.0


def test_peers_are_bounded(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_PEERS_MAX", 3)
    slow = LoginThrottle(clock)
    for number in range(10):
        slow.wrong(f"p{number}")
    assert list(slow._peers) == ["p7", "p8", "p9"]
