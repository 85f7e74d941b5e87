"""`make demo` does what it shows."""

from __future__ import annotations

import pytest

from scripts import demo


@pytest.mark.e2e
def test_demo_stops_the_loop_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """LD-1: the 4th identical request is rejected with its reason; an agent that gets on is left alone."""
    assert demo.main() == 0
    output = capsys.readouterr().out
    assert output.count("429 loop_detected") == 3
    assert "stopped 3 of 6 calls of the one, 0 of the other" in output
