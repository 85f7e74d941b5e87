"""Kinds that are one count each (DETECTION): `cascade`, `unknown_tool`, `stagnation`, `storm`, `thrash`. Each function
counts a step in and yields what it finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import xxhash

from breakloop.detect.steps.finding import Finding, times, tool
from breakloop.detect.steps.prints import EMPTY, NONE, UNKNOWN, UNSEEN, Prints
from breakloop.detect.steps.window import COUNT_MAX, TOOLS, Window
from breakloop.model.step import Step

_BAD_OF: Final = 10
_STORM_S: Final = 60.0
_AT_ONCE_S: Final = 1.0
_FALL_STEPS: Final = 3
_FALL_FROM: Final = 4096  # bytes; shorter requests vary by themselves


def cascade(window: Window, prints: Prints) -> Iterator[Finding]:
    """Bad results whatever the tool."""
    for pair in prints.pairs:
        if pair.kind != UNSEEN:
            window.bad = (window.bad << 1 | pair.failed) & (1 << _BAD_OF) - 1
    count = window.bad.bit_count()
    if count > 1 and window.dry >= 1 and prints.pairs and prints.pairs[-1].failed:
        yield Finding("cascade", count, b"cascade", f"{count} of the last {_BAD_OF} results were errors")


def unknown_tool(window: Window, prints: Prints, weight: float) -> Iterator[Finding]:
    """Calls of tools that there are not."""
    for pair in prints.pairs:
        if pair.kind == UNKNOWN:
            window.unknown = min(window.unknown + weight, COUNT_MAX)
            name = tool(pair.name)
            yield Finding("unknown_tool", window.unknown, b"unknown" + pair.name.encode("utf-8", "replace"),
                          f"{name} is not among the tools; called {times(window.unknown)}")  # fmt: skip
        elif not pair.failed and pair.kind != UNSEEN:
            window.unknown = 0.0


def stagnation(window: Window, prints: Prints, news: bool, weight: float) -> Iterator[Finding]:  # noqa: FBT001
    """The same informative result from one tool whatever its arguments; one with new numbers in it may be news."""
    for pair in prints.pairs:
        if pair.kind in (UNSEEN, EMPTY) or pair.loose_r == NONE:  # short, or of a call that changes something
            continue
        key = xxhash.xxh32_digest(pair.name.encode("utf-8", "surrogatepass"))
        result, count, _ = window.tools.pop(key, (NONE, 0.0, 0))
        count = min(count + weight, COUNT_MAX) if result == pair.loose_r and not news else 0.0
        window.tools[key] = (pair.loose_r, count, window.steps)
        if count:
            evidence = f"{tool(pair.name)} returned the same {pair.size} bytes {times(count + weight)}"
            yield Finding("stagnation", count + weight, b"stagnation" + pair.loose_r, evidence)
    while len(window.tools) > TOOLS:
        del window.tools[next(iter(window.tools))]


def storm(window: Window, now: float) -> Iterator[Finding]:
    """The newest request sent again, not all at once: called for repeats of a tail only."""
    if now - window.last_at > _STORM_S:
        window.storm = 0.0
        window.last_at = now
    if now - window.storm_at >= _AT_ONCE_S:
        window.storm = min(window.storm + 1, COUNT_MAX)
        window.storm_at = now
    yield Finding("storm", window.storm, b"storm" + window.tail, f"the same request {times(window.storm)} more")


def thrash(window: Window, step: Step) -> Iterator[Finding]:
    """The context fills up again right after it was cut."""
    grown = step.messages - window.messages - 1 - len(step.results) - len(step.users)
    if window.falls and step.messages >= window.peak and grown > 0:
        window.falls = 0  # as long as before, all at once: not cut, another conversation of the session came between
    if window.size > _FALL_FROM and step.size * 2 < window.size:
        near = window.falls and window.steps - window.fall_at <= _FALL_STEPS
        window.falls = min(window.falls + 1, 255) if near else 1
        window.fall_at, window.peak = window.steps, window.messages
        yield Finding("thrash", window.falls, b"thrash", f"the context was cut {times(window.falls)} within few steps")
    window.size, window.messages = step.size, step.messages
