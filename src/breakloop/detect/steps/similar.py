"""`near` and `reword` (DETECTION): almost the same again. `near` compares arguments with their numbers masked and only
gives notice; `reword` compares what the model wrote, by small samples of its words, and only while no news come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from breakloop.detect.steps.finding import Finding, times, tool
from breakloop.detect.steps.prints import Prints
from breakloop.detect.steps.tools import RUNS
from breakloop.detect.steps.window import COUNT_MAX, SKETCH, SKETCH_ROW, SKETCHES, Window
from breakloop.model.step import Step

ALIKE: Final = 0.3
DRY_MIN: Final = 4.0
_NEAR_RUN: Final = 4
_WORDS_MIN: Final = 4
_NOBODY: Final = bytes(4)


def near(window: Window, prints: Prints, dried: bool, weight: float) -> Sequence[Finding]:  # noqa: FBT001
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


def reword(window: Window, step: Step, prints: Prints) -> Sequence[Finding]:
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
