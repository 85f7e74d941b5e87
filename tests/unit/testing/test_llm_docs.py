"""The page about testing: nothing public is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import breakloop.testing
from breakloop.testing.answer import Answer
from breakloop.testing.factories import Conversation
from breakloop.testing.http import SeenRequest
from breakloop.testing.llm import StandInLLM

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "testing.md").read_text(encoding="utf-8")


def test_every_public_name_is_described() -> None:
    missing = [name for name in breakloop.testing.__all__ if not re.search(rf"`{name}\b", PAGE)]
    assert missing == []


@pytest.mark.parametrize("kind", [Answer, Conversation, StandInLLM, SeenRequest])
def test_every_public_method_is_described(kind: Any) -> None:
    """What connections and the loop call is not meant for users."""
    inner = {"connected", "disconnected", "complain", "changed", "heard", "heard_head", "start", "stop", "loop", "take"}
    inner |= {"sent", "text"}  # of answers: shortcuts for those who build their own
    own = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None))]
    missing = [name for name in own if name not in inner and not re.search(rf"`{name}\b|, `?{name}\b|\.{name}\(", PAGE)]
    assert missing == []
