"""When a process that died is started again."""

from __future__ import annotations

from breakloop.fleet.restarts import DELAY_MAX_S, HOPELESS, STEADY_S, Restarts


def lives(restarts: Restarts, seconds: float, *, ready: bool = True) -> float:
    restarts.started(100.0)
    if ready:
        restarts.ready()
    return restarts.died(100.0 + seconds, ready=ready)


def test_the_first_death_costs_no_time() -> None:
    """S-5: it is replaced at once."""
    assert lives(Restarts(), 1.0) == 0.0


def test_dying_at_once_again_and_again_takes_ever_longer() -> None:
    """S-5: back-off, with a bound."""
    restarts = Restarts()
    delays = [lives(restarts, 1.0) for _ in range(12)]
    assert delays[:5] == [0.0, 0.25, 0.5, 1.0, 2.0]
    assert delays[-1] == DELAY_MAX_S
    assert sorted(delays) == delays


def test_a_life_of_some_length_makes_it_good() -> None:
    """S-5: whoever lived well begins anew; whoever only took long to start does not."""
    restarts = Restarts()
    for _ in range(5):
        lives(restarts, 1.0)
    assert lives(restarts, STEADY_S) == 0.0
    assert lives(restarts, 1.0) == 0.25
    assert lives(restarts, STEADY_S, ready=False) == 0.5


def test_not_even_starting_is_hopeless() -> None:
    """S-5: a few starts in a row that come to nothing; one that succeeds gives hope."""
    restarts = Restarts()
    for _ in range(HOPELESS - 1):
        lives(restarts, 1.0, ready=False)
        assert not restarts.hopeless
    lives(restarts, 1.0)
    for _ in range(HOPELESS - 1):
        lives(restarts, 1.0, ready=False)
    assert not restarts.hopeless
    lives(restarts, 1.0, ready=False)
    assert restarts.hopeless
