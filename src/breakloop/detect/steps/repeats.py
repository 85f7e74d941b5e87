"""`repeat`, `interleaved` and `failure` (DETECTION): what each call returned last, how often it returned the same, and
how often it failed. A change that succeeded, or a person's word, begins a new epoch: what was counted before is void.
Counts are those of the repeats; the first time is added, with the weight of the last, when they are weighed.

`cycle`: the same steps in the same order again, with a period of 2 to 16 (DETECTION). One step again and again is
`table`'s `repeat`; here a period of one is only kept so that it is not taken for a longer one.

`near` and `reword` (DETECTION): almost the same again. `near` compares arguments with their numbers masked and only
gives notice; `reword` compares what the model wrote, by small samples of its words, and only while no news come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from breakloop.detect.steps.fingerprints import ACK, EMPTY, RUNS, UNSEEN, CallResult, StepFingerprints
from breakloop.detect.steps.kinds import Finding, times, tool
from breakloop.detect.steps.window import (
    COUNT_MAX,
    COUNTS,
    ENTRY,
    NONE,
    RING,
    SKETCH,
    SKETCH_ROW,
    SKETCHES,
    TABLE,
    SessionWindow,
    place,
)
from breakloop.model.call import Step

_NOT_FAILED: Final = -1.0
_ONCE: Final = (0.0, 0.0, _NOT_FAILED)
_ROW: Final = ENTRY.size
_ROWS: Final = TABLE * _ROW


def count_calls(window: SessionWindow, prints: StepFingerprints, weight: float) -> Sequence[Finding]:
    """Count a step's calls in, each once, and return what repeats itself."""
    pairs: Sequence[CallResult] = prints.pairs
    if len(pairs) > 1:
        pairs = list({pair.a + pair.r: pair for pair in pairs}.values())
    found: list[Finding] = []
    rows = window.table
    for pair in pairs:
        if pair.kind == UNSEEN:
            continue
        at = place(rows, pair.a, _ROW)
        if at < 0:
            failed = 0.0 if pair.failed else _NOT_FAILED
            rows += ENTRY.pack(pair.a, pair.r, pair.e, 0.0, 0.0, failed, window.epoch, window.steps)
            continue
        counts = _again(window, at, pair, weight)
        del rows[at : at + _ROW]  # last in order: the one used longest ago stands first, and goes first
        rows += ENTRY.pack(pair.a, pair.r, pair.e, *counts, window.epoch, window.steps)
        if counts != _ONCE:
            found += _findings(window, counts, pair, weight)
    if len(rows) > _ROWS:
        del rows[: len(rows) - _ROWS]
    return found


def is_new(window: SessionWindow, pair: CallResult) -> bool:
    """Tell whether a call did not return that the last time."""
    at = place(window.table, pair.a, _ROW)
    return at < 0 or window.table[at + 8 : at + 16] != pair.r


def _again(window: SessionWindow, at: int, pair: CallResult, weight: float) -> tuple[float, float, float]:
    """Return how often the call at this place returned the same in all, and in a row, and how often it failed."""
    _, r, e, same, row, failed, epoch, last = ENTRY.unpack_from(window.table, at)
    alike, between = r == pair.r, epoch != window.epoch
    if not pair.failed:
        failed = _NOT_FAILED
    elif between or failed < 0:
        failed = 0.0
    else:  # a different error is half a sign
        failed = _more(failed, weight if pair.e == e else weight / 2)
    row = _more(row, weight) if alike and last >= window.steps - 1 else 0.0
    if not alike or between:
        same = 0.0
    elif pair.kind not in (EMPTY, ACK):
        same = _more(same, weight)
    return same, row, failed


def _more(count: float, weight: float) -> float:
    return min(count + weight, COUNT_MAX)


def _findings(
    window: SessionWindow, counts: tuple[float, float, float], pair: CallResult, weight: float
) -> list[Finding]:
    same, row, failed = counts
    found: list[Finding] = []
    if not (same or row or failed > 0):
        return found
    key = pair.a + pair.r
    name = tool(pair.tool.name)
    returned = f"{name} returned the same {pair.size} bytes"
    if row:
        found.append(Finding("repeat", row + weight, key, f"{returned} {times(row + weight)} in a row"))
    if same:
        ago = window.steps - window.new_at
        evidence = f"{returned} {times(same + weight)}; last new result {ago} calls ago"
        found.append(Finding("interleaved", same + weight, key, evidence))
    if failed > 0:
        count = failed + weight
        found.append(Finding("failure", count, key, f"the same call of {name} failed {times(count)}"))
    return found


_STEPS_MIN: Final = 6
_NO_COUNTS: Final = bytes(COUNTS.size)


def find_cycle(window: SessionWindow, round_: bytes, weight: float) -> Sequence[Finding]:
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


def skipped(window: SessionWindow) -> None:
    """Count a step in that is like no other: what was done in it is not known."""
    slot = window.steps % RING * 8
    window.ring[slot : slot + 8] = NONE
    forget(window)


def newest(window: SessionWindow) -> bytes:
    """Return the last step."""
    slot = (window.steps - 1) % RING * 8
    return bytes(window.ring[slot : slot + 8])


def stood(window: SessionWindow) -> None:
    """Count a step in that is the last one, seen once more."""
    slot = window.steps % RING * 8
    window.ring[slot : slot + 8] = newest(window)


def rotation(window: SessionWindow, period: int) -> bytes:
    """Return the last `period` steps in the rotation that comes first: one cycle has one identity from wherever."""
    ring, at = window.ring, window.steps
    last = [bytes(ring[one % RING * 8 : one % RING * 8 + 8]) for one in range(at - period + 1, at + 1)]
    return min(b"".join(last[start:] + last[:start]) for start in range(period))


def repeated(window: SessionWindow) -> bool:
    """Tell whether the step that was counted in last is the one before it again."""
    return window.counts[:2] != _NO_COUNTS[:2]


def forget(window: SessionWindow) -> None:
    """Begin anew: a person has spoken."""
    window.counts = _NO_COUNTS


ALIKE: Final = 0.3
DRY_MIN: Final = 4.0
_NEAR_RUN: Final = 4
_WORDS_MIN: Final = 4
_NOBODY: Final = bytes(4)


def near(window: SessionWindow, prints: StepFingerprints, dried: bool, weight: float) -> Sequence[Finding]:  # noqa: FBT001
    """The same call but for its numbers, one after the other, and nothing new from it."""
    if len(prints.pairs) != 1:
        window.run, window.near_count = 0.0, 0.0
        return ()
    pair = prints.pairs[0]
    window.run = min(window.run + 1, COUNT_MAX) if pair.tool.key == window.near_tool else 1.0
    if pair.loose_a != window.near:
        window.near_count = 0.0
    elif dried:
        window.near_count = min(window.near_count + weight, COUNT_MAX)
    else:
        window.near_count /= 2
    window.near_tool, window.near = pair.tool.key, pair.loose_a
    if not (dried and window.near_count and window.run >= _NEAR_RUN):
        return ()
    count = window.near_count + weight
    evidence = f"{tool(pair.tool.name)} called almost alike {times(count)}"
    return (Finding("near", count, b"near" + pair.loose_a, evidence),)


def reword(window: SessionWindow, step: Step, prints: StepFingerprints) -> Sequence[Finding]:
    """The same instruction in other words: how many of the last texts to one recipient are like this one."""
    if not step.said or (prints.pairs and not (step.as_text and prints.pairs[0].tool.manner != RUNS)):
        return ()
    words = sample(prints.words)
    if not words:
        return ()
    to = prints.pairs[0].tool.key if prints.pairs else _NOBODY
    rows = window.sketches
    found: Sequence[Finding] = ()
    if window.dry >= DRY_MIN:
        count = 1
        for other, size, *before in SKETCH_ROW.iter_unpack(rows):
            count += other == to and alike(words, before[:size]) >= ALIKE
        if count > 1:
            evidence = f"{count} of the last {SKETCHES + 1} texts say nearly the same"
            found = (Finding("reword", count, b"reword" + to, evidence),)
    rows += SKETCH_ROW.pack(to, len(words), *words, *(0,) * (SKETCH - len(words)))
    if len(rows) > SKETCHES * SKETCH_ROW.size:
        del rows[: SKETCH_ROW.size]
    return found


def sample(words: Iterable[int]) -> list[int]:
    """Return a sample of a text's words: the smallest of their digests, 16 bits each."""
    found = {word & 0xFFFF for word in words}
    return sorted(found)[:SKETCH] if len(found) >= _WORDS_MIN else []


def alike(one: Sequence[int], other: Sequence[int]) -> float:
    """Return how alike two word sets are (shared words by all words), estimated from their samples."""
    both = sorted({*one, *other})[:SKETCH]
    shared = set(one) & set(other)
    return sum(1 for word in both if word in shared) / len(both) if both else 0.0
