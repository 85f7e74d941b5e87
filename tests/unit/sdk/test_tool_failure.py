"""What a failed tool said."""

from __future__ import annotations

from breakloop.sdk.tool_failure import ToolFailedError
from breakloop.sdk.transcript import result_text


def test_a_failure_is_told_from_the_same_words() -> None:
    """LD-4: as a result it says that it failed."""
    assert result_text(ToolFailedError("no such file")) == "Error: ToolFailedError: no such file"
