"""An answer: what it holds when nothing was read, and which ones are failures."""

from __future__ import annotations

import pytest

from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Usage
from tests.each import each


def test_everything_but_the_status_may_be_missing() -> None:
    """A gateway may report no more than a status (D-6)."""
    answer = Answer(200)
    assert (answer.text, answer.calls, answer.usage, answer.finish, answer.error) == ("", (), None, "", "")
    assert not answer.complete
    assert not answer.failed


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529, NO_ANSWER])
def test_failures_of_the_upstream(status: int) -> None:
    """429, 5xx and no answer at all, whether or not the answer came to its end (LD-6)."""
    assert Answer(status).failed
    assert Answer(status, complete=True).failed


@each("status", [200, 204, 301, 400, 401, 404, 428, 430, 499, CLIENT_LEFT])
def test_no_failures(status: int) -> None:
    """What the client did wrong, or did not wait for, is no failure of the upstream (LD-6)."""
    assert not Answer(status).failed


def test_errors_inside() -> None:
    """A stream that failed is a failure; a tool's error is an answer, and calling it again is a repetition (LD-6)."""
    assert Answer(200, error="overloaded_error").failed
    assert not Answer(200, error="tool_error", complete=True).failed


def test_usage_counts_nothing_unless_told() -> None:
    assert Usage() == (0, 0, 0, 0, 0, None)
