"""What a kind of loop evaluates (`StepState`), what it finds (`Finding`), and how evidence is worded. Evidence names
tools, counts and sizes, never what was asked or answered (Y-1)."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from breakloop.detect.steps.fingerprints import StepFingerprinter, StepFingerprints
from breakloop.detect.steps.window import SessionWindow
from breakloop.model.call import Step

_NAME_MAX: Final = 48


class Novelty(msgspec.Struct, frozen=True, gc=False):
    """What is new in a step."""

    dried: bool  # it counts as a turn without anything new
    news: bool
    worded: bool  # the model itself wrote new content


class StepState(msgspec.Struct, gc=False):
    """One step during its evaluation."""

    window: SessionWindow
    step: Step
    prints: StepFingerprints
    fingerprinter: StepFingerprinter
    novelty: Novelty
    known_texts: int  # how many of the step's texts were in the previous step already
    now: float
    weight: float  # of a repeat: slow ones count less
    tracked: bool  # `answered` will be called with the answer
    changed: bool = False  # a call changed something


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
