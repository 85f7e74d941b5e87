"""Tests of `admin.slowdown`: who waits for how long."""

from __future__ import annotations

import pytest

from breakloop.admin import auth
from breakloop.admin.auth import FREE, LoginThrottle
from breakloop.clock import FakeClock


def _tried(slow: LoginThrottle, peer: str, times: int = FREE) -> None:
    for _ in range(times):
        slow.wrong(peer)


def test_a_few_mistakes_cost_nothing(clock: FakeClock) -> None:
    """Twenty are free, for each peer (Y-3)."""
    slow = LoginThrottle(clock)
    _tried(slow, "10.0.0.1", 19)
    assert [slow.wait_s("10.0.0.1") for _ in range(2)] == [0.0, 0.0]
    _tried(slow, "10.0.0.1", 1)
    assert [slow.wait_s("10.0.0.1") for _ in range(2)] == pytest.approx([0.0, 0.2])
    assert [slow.wait_s("10.0.0.2") for _ in range(2)] == [0.0, 0.0]


def test_then_attempts_are_looked_at_one_after_the_other(clock: FakeClock) -> None:
    """Five a second; many connections at once help nobody, and nobody waits longer than five seconds (Y-3)."""
    slow = LoginThrottle(clock)
    _tried(slow, "p")
    waits = [slow.wait_s("p") for _ in range(27)]
    assert waits[:25] == pytest.approx([0.2 * number for number in range(25)])
    assert waits[26] is None
    clock.advance(5)
    assert slow.wait_s("p") is not None


def test_it_is_forgotten_after_a_minute(clock: FakeClock) -> None:
    slow = LoginThrottle(clock)
    _tried(slow, "p")
    clock.advance(59.9)
    assert [slow.wait_s("p") for _ in range(2)] == pytest.approx([0.0, 0.2])
    clock.advance(0.1)
    assert [slow.wait_s("p") for _ in range(2)] == [0.0, 0.0]
    slow.wrong("p")
    assert [slow.wait_s("p") for _ in range(2)] == [0.0, 0.0]


def test_nobody_waits_for_the_clock(clock: FakeClock) -> None:
    """It is set back an hour: wrong tokens are forgotten after a minute, as ever (Y-3, S-2)."""
    slow = LoginThrottle(clock)
    _tried(slow, "p")
    assert [slow.wait_s("p") for _ in range(2)] == pytest.approx([0.0, 0.2])
    clock.step(-3600)
    assert slow.wait_s("p") == pytest.approx(0.4)
    clock.advance(60)
    assert slow.wait_s("p") == 0.0


def test_peers_are_bounded(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_PEERS_MAX", 3)
    slow = LoginThrottle(clock)
    for number in range(10):
        slow.wrong(f"p{number}")
    slow.wrong("p7")
    slow.wrong("p10")
    assert list(slow._peers) == ["p9", "p7", "p10"]
