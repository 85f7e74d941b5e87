"""How work grows with its input, counted: a time would depend on the machine and on what else it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

GROWTH_MAX: Final = 4.5  # for four times the input: 4 is linear, 16 the square
# Texts of models that make a careless reader slow: what one begins with, what is repeated, and what it ends with.
HOSTILE_TEXTS: Final = (
    ("Action:", " ", ""),
    ("Action:", "\n", ""),
    ("", "<tool_call>", ""),
    ("<tool_call>", " ", ""),
    ("<function=x>", "<parameter=a>", ""),
    ("", "```\n", ""),
    ("", "```bash\n", ""),
    ("```bash\n", " ", ""),
    ("```", "a", ""),
    ("```", " ", ""),
    ("Code:```", " ", ""),
    ("Code:", " ", "```"),
    ("", "<invoke name=", ""),
    ("<code>", " ", ""),
    ("", "</a_b>", ""),
    ("", "{", "}"),
)


def lines_run(run: Callable[[], object]) -> int:
    """Lines of Python that it runs. What a line calls in C does not count: for patterns see `regex_steps`."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def growth(run: Callable[[int], object], size: int) -> float:
    """How many times the lines an input of four times the size takes."""
    return lines_run(lambda: run(4 * size)) / lines_run(lambda: run(size))
