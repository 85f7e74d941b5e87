"""`repeat`, `interleaved` and `failure` (DETECTION): what each call returned last, how often it returned the same, and
how often it failed. A change that succeeded, or a person's word, begins a new epoch: what was counted before is void.
Counts are those of the repeats; the first time is added, with the weight of the last, when they are weighed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from breakloop.detect.steps.finding import Finding, times, tool
from breakloop.detect.steps.prints import ACK, EMPTY, UNSEEN, Pair, Prints
from breakloop.detect.steps.window import COUNT_MAX, ENTRY, TABLE, Window, place

_NOT_FAILED: Final = -1.0
_ONCE: Final = (0.0, 0.0, _NOT_FAILED)
_ROW: Final = ENTRY.size
_ROWS: Final = TABLE * _ROW


def seen(window: Window, prints: Prints, weight: float) -> Sequence[Finding]:
    """Count a step's calls in, each once, and return what repeats itself."""
    pairs: Sequence[Pair] = prints.pairs
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


def is_new(window: Window, pair: Pair) -> bool:
    """Tell whether a call did not return that the last time."""
    at = place(window.table, pair.a, _ROW)
    return at < 0 or window.table[at + 8 : at + 16] != pair.r


def _again(window: Window, at: int, pair: Pair, weight: float) -> tuple[float, float, float]:
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


def _findings(window: Window, counts: tuple[float, float, float], pair: Pair, weight: float) -> list[Finding]:
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
