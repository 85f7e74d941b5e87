"""`cycle`: the same steps in the same order again, with a period of 2 to 16 (DETECTION). One step again and again is
`table`'s `repeat`; here a period of one is only kept so that it is not taken for a longer one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from breakloop.detect.steps.finding import Finding, times
from breakloop.detect.steps.window import COUNT_MAX, COUNTS, NONE, RING, Window

_STEPS_MIN: Final = 6
_NO_COUNTS: Final = bytes(COUNTS.size)


def seen(window: Window, round_: bytes, weight: float) -> Sequence[Finding]:
    """Count the step in, and return the cycle it belongs to, if any."""
    ring, at = window.ring, window.steps
    slot = at % RING * 8
    if ring.find(round_) < 0:  # most steps are new ones; `in` takes twice the time
        window.counts = _NO_COUNTS
        ring[slot : slot + 8] = round_
        return ()
    counts = list(COUNTS.unpack(window.counts))
    for period in range(1, RING + 1):
        before = (at - period) % RING * 8
        same = at >= period and ring[before : before + 8] == round_
        counts[period - 1] = min(counts[period - 1] + weight, COUNT_MAX) if same else 0.0
    window.counts = COUNTS.pack(*counts)
    ring[slot : slot + 8] = round_
    if counts[0]:
        return ()
    for period in range(2, RING + 1):
        matched = counts[period - 1]
        if matched >= period and matched + period >= _STEPS_MIN:
            laps = int(matched / period + weight)
            evidence = f"the same {period} steps in the same order {times(laps)}"
            return (Finding("cycle", laps, rotation(window, period), evidence),)
    return ()


def skipped(window: Window) -> None:
    """Count a step in that is like no other: what was done in it is not known."""
    slot = window.steps % RING * 8
    window.ring[slot : slot + 8] = NONE
    forget(window)


def newest(window: Window) -> bytes:
    """Return the last step."""
    slot = (window.steps - 1) % RING * 8
    return bytes(window.ring[slot : slot + 8])


def stood(window: Window) -> None:
    """Count a step in that is the last one, seen once more."""
    slot = window.steps % RING * 8
    window.ring[slot : slot + 8] = newest(window)


def rotation(window: Window, period: int) -> bytes:
    """Return the last `period` steps in the rotation that comes first: one cycle has one identity from wherever."""
    ring, at = window.ring, window.steps
    last = [bytes(ring[one % RING * 8 : one % RING * 8 + 8]) for one in range(at - period + 1, at + 1)]
    return min(b"".join(last[start:] + last[:start]) for start in range(period))


def repeated(window: Window) -> bool:
    """Tell whether the step that was counted in last is the one before it again."""
    return window.counts[:2] != _NO_COUNTS[:2]


def forget(window: Window) -> None:
    """Begin anew: a person has spoken."""
    window.counts = _NO_COUNTS
