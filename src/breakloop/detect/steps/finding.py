"""`Finding`: one detector's claim about a step, before the ladder weighs it; and how tool names and counts are written
in evidence. Evidence names tools, counts and sizes, never what was asked or answered (SPEC Y-1)."""

from __future__ import annotations

from typing import NamedTuple

_NAME_MAX = 48


class Finding(NamedTuple):
    """A loop of some kind, how far it has come, and what tells it from other loops."""

    kind: str
    hits: float  # how often, slow repeats weighing less
    key: bytes  # what the loop's identity is made of
    evidence: str


def tool(name: str) -> str:
    """Return a tool's name for a sentence: short, and without what could be taken for something else."""
    if not name:
        return "an action"
    plain = name
    if "`" in name or not name.isprintable():
        plain = "".join(one for one in name if one.isprintable() and one != "`")
    return f"`{plain[:_NAME_MAX] or '?'}`"


def times(count: float) -> str:
    """Return a count for a sentence; slow repeats count for less than one, hence the rounding."""
    whole = max(1, int(count))
    return "once" if whole == 1 else f"{whole} times"
