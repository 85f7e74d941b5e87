"""The error tree, as its docstring draws it."""

from __future__ import annotations

import re

import pytest

from breakloop import errors
from breakloop.errors import BreakloopError, BundleError, Problem, RequestError


def test_the_drawing_is_the_tree() -> None:
    """Every error that is raised on purpose has one root, and the docstring names each (B-2)."""
    made = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BreakloopError) and value is not BreakloopError
    }
    drawn = set(re.findall(r"[|`]-- (\w+)", errors.__doc__ or ""))
    assert made == drawn
    below = set(re.findall(r"^[|`]-- (\w+)", errors.__doc__ or "", re.MULTILINE))
    assert {name for name in made if getattr(errors, name).__bases__ == (BreakloopError,)} == below
    assert {name: getattr(errors, name).__bases__ for name in made - below} == {"UnreadableError": (BundleError,)}


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("a.yaml", 3, 5, "policies[0].id", "is empty"), "a.yaml:3:5: policies[0].id: is empty"),
        (Problem("a.yaml", 3, 5, "", "is empty", "say it"), "a.yaml:3:5: is empty (say it)"),
        (Problem("policy", 0, 0, "policies", "is required"), "policy: policies: is required"),
    ],
)
def test_problems_are_located(problem: Problem, text: str) -> None:
    """File, line, column, path and hint, in the form that editors link (B-2)."""
    assert str(problem) == text


def test_a_bundle_error_carries_every_problem() -> None:
    """One line each (B-2)."""
    problems = [Problem("a", 1, 1, "x", "one"), Problem("a", 2, 1, "y", "two")]
    error = BundleError(problems)
    assert error.problems == problems
    assert str(error) == "a:1:1: x: one\na:2:1: y: two"


def test_a_request_error_carries_its_status() -> None:
    """What the client gets (R-3)."""
    error = RequestError(400, "no")
    assert (error.status, str(error)) == (400, "no")
