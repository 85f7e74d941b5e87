"""When a process that died is started again."""

from __future__ import annotations

from breakloop.app.workers.supervisor import DELAY_MAX_S, FAILED_STARTS_MAX, STABLE_S, RestartPolicy


def lives(restarts: RestartPolicy, seconds: float, *, ready: bool = True) -> float:
    restarts.started(100.0)
    if ready:
        restarts.ready()
    return restarts.exited(100.0 + seconds, ready=ready)


def test_the_first_death_costs_no_time() -> None:
    """It is replaced at once (S-5)."""
    assert lives(RestartPolicy(), 1.0) == 0.0


def test_dying_at_once_again_and_again_takes_ever_longer() -> None:
    """Back-off, with a bound (S-5)."""
    restarts = RestartPolicy()
    delays = [lives(restarts, 1.0) for _ in range(12)]
    assert delays[:5] == [0.0, 0.25, 0.5, 1.0, 2.0]
    assert delays[-1] == DELAY_MAX_S
    assert sorted(delays) == delays


def test_a_life_of_some_length_makes_it_good() -> None:
    """Whoever lived well begins anew; whoever only took long to start does not (S-5)."""
    restarts = RestartPolicy()
    for _ in range(5):
        lives(restarts, 1.0)
    assert lives(restarts, STABLE_S) == 0.0
    assert lives(restarts, 1.0) == 0.25
    assert lives(restarts, STABLE_S, ready=False) == 0.5


def test_not_even_starting_is_hopeless() -> None:
    """A few starts in a row that come to nothing; one that succeeds gives hope (S-5)."""
    restarts = RestartPolicy()
    for _ in range(FAILED_STARTS_MAX - 1):
        lives(restarts, 1.0, ready=False)
        assert not restarts.gives_up
    lives(restarts, 1.0)
    for _ in range(FAILED_STARTS_MAX - 1):
        lives(restarts, 1.0, ready=False)
    assert not restarts.gives_up
    lives(restarts, 1.0, ready=False)
    assert restarts.gives_up
