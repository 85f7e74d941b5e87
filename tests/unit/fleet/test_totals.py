"""What all workers have counted together."""

from __future__ import annotations

from breakloop.fleet.totals import Totals
from breakloop.model.tally import Tally


def test_the_sum_of_all() -> None:
    """S-5: numbers and names add up; each worker tells all of its own, again and again."""
    totals = Totals()
    totals.heard(1, Tally(allowed={"allowed": 1}, settled=1))
    totals.heard(1, Tally(allowed={"allowed": 2}, denied={"loop": 1}, settled=3))
    totals.heard(2, Tally(allowed={"allowed": 5, "other": 1}, input_tokens=7))
    found = totals.sum()
    assert (found.allowed, found.denied) == ({"allowed": 7, "other": 1}, {"loop": 1})
    assert (found.settled, found.input_tokens) == (3, 7)
    assert totals.sum() == found


def test_what_a_dead_worker_counted_stays() -> None:
    """S-5: totals never go down, whoever dies."""
    totals = Totals()
    totals.heard(1, Tally(allowed={"allowed": 2}, cut=1))
    totals.ended(1)
    totals.ended(1)
    totals.ended(9)
    totals.heard(2, Tally(allowed={"allowed": 3}))
    assert (totals.sum().allowed, totals.sum().cut) == ({"allowed": 5}, 1)
