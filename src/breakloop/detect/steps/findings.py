"""What a kind of loop finds in a step, and how evidence is worded. Evidence names tools, counts and sizes, never what
was asked or answered (Y-1)."""

from __future__ import annotations

from typing import Final, NamedTuple

_NAME_MAX: Final = 48


class Finding(NamedTuple):
    """A loop of some kind, before its count is compared with thresholds."""

    kind: str
    hits: float  # the count; slow repeats count less
    key: bytes  # identifies the loop
    evidence: str


def tool_name(name: str) -> str:
    """Return a tool's name for a sentence: short, printable, and in backticks."""
    if not name:
        return "an action"
    plain = name
    if "`" in name or not name.isprintable():
        plain = "".join(one for one in name if one.isprintable() and one != "`")
    return f"`{plain[:_NAME_MAX] or '?'}`"


def times(count: float) -> str:
    """Return a count for a sentence, rounded down: slow repeats count less than one."""
    whole = max(1, int(count))
    return "once" if whole == 1 else f"{whole} times"
