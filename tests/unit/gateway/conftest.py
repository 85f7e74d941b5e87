"""What the tests of several gateway files look at."""

from __future__ import annotations

import pytest

from breakloop.engine.engine import Engine
from breakloop.model.call import Answer, Call


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """The answers that the engine was told of."""
    answers: list[Answer] = []
    settle = Engine.settle

    def note(engine: Engine, call: Call, given: Answer) -> None:
        answers.append(given)
        settle(engine, call, given)

    monkeypatch.setattr(Engine, "settle", note)
    return answers
