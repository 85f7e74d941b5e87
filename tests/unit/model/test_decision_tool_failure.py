"""What a failed tool said."""

from __future__ import annotations

from breakloop.model.decision import ToolFailedError
from breakloop.sdk.requests import result_text


def test_a_failure_is_told_from_the_same_words() -> None:
    """As a result it says that it failed (LD-4)."""
    assert result_text(ToolFailedError("no such file")) == "Error: ToolFailedError: no such file"
