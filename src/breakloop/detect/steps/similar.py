"""`near` and `reword` (DETECTION): almost the same again. `near` compares arguments with their numbers masked and only
gives notice; `reword` compares what the model wrote, by small samples of its words, and only while no news come."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from breakloop.detect.steps.finding import Finding, times, tool
from breakloop.detect.steps.prints import Printer, Prints
from breakloop.detect.steps.tools import is_shell
from breakloop.detect.steps.window import COUNT_MAX, SKETCH, SKETCHES, Sketch, Window, sketch
from breakloop.model.step import Step

ALIKE: Final = 0.3
DRY_MIN: Final = 4.0
_NEAR_RUN: Final = 4
_WORDS_MIN: Final = 4


def near(window: Window, prints: Prints, printer: Printer, dried: bool, weight: float) -> Iterator[Finding]:  # noqa: FBT001
    """The same call but for its numbers, one after the other, and nothing new from it."""
    if len(prints.pairs) != 1:
        window.run, window.near_count = 0.0, 0.0
        return
    pair = prints.pairs[0]
    name = printer.of(b"tool", pair.name.encode("utf-8", "surrogatepass"))
    window.run = min(window.run + 1, COUNT_MAX) if name == window.near_tool else 1.0
    window.near_count = min(window.near_count + weight, COUNT_MAX) if pair.loose_a == window.near else 0.0
    window.near_tool, window.near = name, pair.loose_a
    if window.near_count and window.run >= _NEAR_RUN and dried:
        count = window.near_count + weight
        yield Finding("near", count, b"near" + pair.loose_a, f"{tool(pair.name)} called almost alike {times(count)}")


def reword(window: Window, step: Step, prints: Prints) -> Iterator[Finding]:
    """The same instruction in other words: how many of the last texts to one recipient are like this one."""
    if not step.said or (step.calls and not (step.as_text and not is_shell(step.calls[0].name))):
        return
    words = sample(prints.words)
    if not words:
        return
    to = zlib.crc32(step.calls[0].name.encode("utf-8", "surrogatepass") if step.calls else b"").to_bytes(4, "little")
    if window.dry >= DRY_MIN:
        count = 1 + sum(1 for one in map(sketch, window.sketches) if one.to == to and alike(words, one.words) >= ALIKE)
        if count > 1:
            evidence = f"{count} of the last {SKETCHES + 1} texts say nearly the same"
            yield Finding("reword", count, b"reword" + to, evidence)
    window.sketches.append(Sketch(to, words).pack())
    del window.sketches[:-SKETCHES]


def sample(words: tuple[int, ...]) -> tuple[int, ...]:
    """Return a sample of a text's words: the smallest of their digests, 16 bits each."""
    found = {word & 0xFFFF for word in words}
    return tuple(sorted(found)[:SKETCH]) if len(found) >= _WORDS_MIN else ()


def alike(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Return how alike two word sets are (shared words by all words), estimated from their samples."""
    both = sorted({*one, *other})[:SKETCH]
    shared = set(one) & set(other)
    return sum(1 for word in both if word in shared) / len(both) if both else 0.0
