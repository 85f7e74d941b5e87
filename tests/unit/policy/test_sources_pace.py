"""How often remote sources are asked."""

from __future__ import annotations

from breakloop.policy.sources import PollBackoff


def test_steady_while_it_answers_and_never_late() -> None:
    """Never later than the interval, and spread so that instances do not ask together (B-3)."""
    assert PollBackoff(5, 60, lambda: 0.0).wait_s(0) == 5
    assert PollBackoff(5, 60, lambda: 1.0).wait_s(0) == 4.5


def test_less_and_less_often_while_it_fails() -> None:
    """Doubled each time up to the most, with up to half of it taken off by chance (B-3)."""
    latest, earliest = PollBackoff(5, 60, lambda: 0.0), PollBackoff(5, 60, lambda: 1.0)
    assert [latest.wait_s(failures) for failures in range(1, 6)] == [10, 20, 40, 60, 60]
    assert [earliest.wait_s(failures) for failures in range(1, 6)] == [5, 10, 20, 30, 30]
    assert latest.wait_s(10_000) == 60


def test_an_interval_beyond_the_most_is_kept() -> None:
    """A source that fails is not asked more often than one that answers (B-3)."""
    assert PollBackoff(300, 60, lambda: 0.0).wait_s(3) == 300
