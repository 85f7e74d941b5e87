"""How much of a step is read in all (Y-2)."""

from __future__ import annotations

from breakloop.dialects.steps import ALL_MAX, TextBudget, bounded_results, digest, edges, short_name
from breakloop.model.call import Result


def test_what_is_too_much_keeps_its_edges() -> None:
    """The texts before were read; what follows is told apart by a digest (Y-2)."""
    budget = TextBudget(100)
    assert budget.take("a" * 100) == "a" * 100
    long = "b" * 500 + "c" * 500
    found = budget.take(long)
    assert found == f"{'b' * 120}\n<cut:{digest(long)}>\n{'c' * 120}"
    assert budget.take("short") == "short"
    assert edges(long.replace("bc", "b c")) != found


def test_the_newest_results_are_read() -> None:
    """The first in the list; few results are never too much (Y-2)."""
    results = [Result("x" * 60_000, error=True, call_id=str(at)) for at in range(20)]
    found = bounded_results(results)
    whole = ALL_MAX // 60_000
    assert found[:whole] == results[:whole]
    assert [len(one.text) < 400 for one in found] == [False] * whole + [True] * (20 - whole)
    assert [(one.error, one.call_id) for one in found] == [(True, str(at)) for at in range(20)]
    assert bounded_results(results[:8]) == results[:8]


def test_names() -> None:
    """An absurd name is cut, and is another one's than one that begins alike (Y-2)."""
    assert short_name("read_file") == "read_file"
    one, two = short_name("x" * 5_000 + "1"), short_name("x" * 5_000 + "2")
    assert one != two
    assert len(one) == len(two) < 200
