"""`repeat`, `interleaved` and `failure` (DETECTION): what each call returned last, how often it returned the same, and
how often it failed. A change that succeeded, or a person's word, begins a new epoch: what was counted before is void.
Counts are those of the repeats; the first time is added, with the weight of the last, when they are weighed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from breakloop.detect.steps.finding import Finding, times, tool
from breakloop.detect.steps.prints import ACK, EMPTY, UNSEEN, Pair, Prints
from breakloop.detect.steps.window import COUNT_MAX, TABLE, Entry, Window, entry

_NOT_FAILED: Final = -1.0


def seen(window: Window, prints: Prints, weight: float) -> Iterator[Finding]:
    """Count a step's calls in, each once, and yield what repeats itself."""
    pairs = {pair.a + pair.r: pair for pair in prints.pairs if pair.kind != UNSEEN}
    for pair in pairs.values():
        packed = window.table.pop(pair.a, None)
        if packed is None:
            counts = (0.0, 0.0, 0.0 if pair.failed else _NOT_FAILED)
            known = Entry(pair.r, pair.e[:4], counts, window.epoch, window.steps)
        else:
            known = entry(packed)
            _again(window, known, pair, weight)
        window.table[pair.a] = known.pack()  # last in order: the one used longest ago stands first, and goes first
        yield from _findings(window, known, pair, weight)
    while len(window.table) > TABLE:
        del window.table[next(iter(window.table))]


def _again(window: Window, known: Entry, pair: Pair, weight: float) -> None:
    same, between = known.r == pair.r, known.epoch != window.epoch
    if not pair.failed:
        known.failed = _NOT_FAILED
    elif between or known.failed < 0:
        known.failed = 0.0
    else:  # a different error is half a sign
        known.failed = _more(known.failed, weight if pair.e[:4] == known.e else weight / 2)
    known.row = _more(known.row, weight) if same and known.last >= window.steps - 1 else 0.0
    if not same or between:
        known.same = 0.0
    elif pair.kind not in (EMPTY, ACK):
        known.same = _more(known.same, weight)
    known.r, known.e, known.epoch, known.last = pair.r, pair.e[:4], window.epoch, window.steps


def _more(count: float, weight: float) -> float:
    return min(count + weight, COUNT_MAX)


def _findings(window: Window, known: Entry, pair: Pair, weight: float) -> Iterator[Finding]:
    key = pair.a + pair.r
    same = f"{tool(pair.name)} returned the same {pair.size} bytes"
    if known.row:
        yield Finding("repeat", known.row + weight, key, f"{same} {times(known.row + weight)} in a row")
    if known.same:
        ago = window.steps - window.new_at
        evidence = f"{same} {times(known.same + weight)}; last new result {ago} calls ago"
        yield Finding("interleaved", known.same + weight, key, evidence)
    if known.failed > 0:
        count = known.failed + weight
        yield Finding("failure", count, key, f"the same call of {tool(pair.name)} failed {times(count)}")
