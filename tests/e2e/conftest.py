"""What most end-to-end tests begin with: one stand-in LLM a module, and a caller of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from breakloop.testing import StandInLLM, ThreadedLLM
from tests.e2e.served import Caller

pytest.register_assert_rewrite("tests.e2e.incident")


@pytest.fixture(scope="module")
def llm() -> Iterator[ThreadedLLM]:
    """The upstream of a module."""
    with StandInLLM.in_thread() as running:
        yield running


@pytest.fixture
def caller(llm: ThreadedLLM, request: pytest.FixtureRequest) -> Caller:
    """A key that no other test has."""
    return Caller(llm, request.node.name)
