"""Kinds that compare how calls end: `unmoved`, `stubborn`. An end is an error, or a short result that opens with words
of refusal. Two ends are the same if they differ in times and in numbers of lines, positions and attempts only. Other
numbers are part of an end: "3 failed" is not "4 failed".

Each edit is new, so no other kind counts an error that stays while a program is edited. A few attempts are honest work:
these kinds count more of them than the kinds without edits in between.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from breakloop.detect.steps.findings import Finding, StepState, times, tool_name
from breakloop.detect.steps.fingerprints import (
    RATE,
    RUNS,
    SHORT_MAX,
    UNSEEN,
    CallResult,
    StepFingerprinter,
    asks_again,
    compact,
    steady,
)
from breakloop.detect.steps.novelty import mark
from breakloop.detect.steps.window import COUNT_MAX, END, ENDS, SessionWindow, find_row
from breakloop.dialects.content import lazy_pattern

_ROW: Final = END.size
_FREE: Final = bytes(_ROW)
NO_ENDS: Final = bytes(ENDS * _ROW)
_READ: Final = 1000  # bytes of each edge; a report has its totals at its end
_TOLD_MIN: Final = 12  # letters; an exit status alone is how some commands say no
_LETTERS: Final = bytes(code for code in range(256) if not (code > 127 or chr(code).isalpha()))
PLACE: Final = lazy_pattern(
    rb"(?:\blines?|\battempts?|\btry|\bretry|\bretries|\biteration|\bstep|\bcol|\bcolumn|\bposition|\boffset|\brow|"
    rb"\bround|:)[ #:=(]{0,2}\d+(?::\d+)?",
    re.IGNORECASE,
)
_STATUS: Final = lazy_pattern(
    rb"<[^<>]{0,80}>|\b(?:exit|exited|return ?code|status|code|with|process|command|output|stdout|stderr|no|none|"
    rb"empty)\b",
    re.IGNORECASE,
)


def unmoved(state: StepState) -> Sequence[Finding]:
    """The same call comes to the same end, whatever was changed in between. An end that is new halves the count, and a
    result that is no end resets it."""
    found: list[Finding] = []
    for pair in _once(state.prints.pairs):
        if pair.kind == RATE:
            continue
        count = _count(state, pair, pair.a[:4], pair.failed or pair.refused, state.weight)
        if count:
            evidence = f"{tool_name(pair.tool.name)} ended the same way {times(count)} more, whatever was changed"
            found.append(Finding("unmoved", count, b"unmoved" + pair.a, evidence))
    return found


def stubborn(state: StepState) -> Sequence[Finding]:
    """Other commands of one tool come to the same error, or other drafts to the same verdict, and something was changed
    in between. Sweeps over many items change nothing in between, or have more than one end."""
    found: list[Finding] = []
    window = state.window
    for pair in _once(state.prints.pairs):
        runs = pair.tool.manner == RUNS
        if pair.changes or pair.kind == RATE:
            continue
        ends = pair.failed if runs else pair.refused and asks_again(pair.text)
        key = pair.tool.key
        weight = state.weight if window.epoch != window.stubborn_epoch else 0.0
        count = _count(state, pair, key, ends, weight)
        if ends:
            window.stubborn_epoch = window.epoch
        if count:
            evidence = f"{tool_name(pair.tool.name)} ended the same way {times(count)} more, with changes in between"
            found.append(Finding("stubborn", count, b"stubborn" + key, evidence))
    return found


def digest(fingerprinter: StepFingerprinter, text: bytes) -> bytes:
    """Return the fingerprint of an end; b"" if it tells nothing but a status."""
    if len(text) > 2 * _READ:
        text = text[:_READ] + text[-_READ:]
    if len(text) <= SHORT_MAX and len(_STATUS().sub(b"", text).translate(None, _LETTERS)) < _TOLD_MIN:
        return b""
    return fingerprinter.plain(compact(PLACE().sub(b"#", steady(text))))


def reset(window: SessionWindow) -> None:
    """Reset the counts, because there is new text of the user."""
    window.ends[:] = bytes(len(window.ends))


def _once(pairs: Sequence[CallResult]) -> Sequence[CallResult]:
    """Return the calls whose results are known, each once."""
    if len(pairs) == 1:
        return pairs if pairs[0].kind != UNSEEN else ()
    return list({pair.a: pair for pair in pairs if pair.kind != UNSEEN}.values())


def _count(state: StepState, pair: CallResult, key: bytes, ends: bool, weight: float) -> float:  # noqa: FBT001
    """Count a result by a key. Return how often the same end came back, 0 if this is not one that came before."""
    window, rows = state.window, state.window.ends
    at = find_row(rows, key, _ROW)
    if at < 0 and not ends:
        return 0.0
    end = digest(state.fingerprinter, pair.text) if ends else b""
    if ends and not end:
        return 0.0
    count = 0.0
    if at >= 0:
        _, count = END.unpack_from(rows, at)
        del rows[at : at + _ROW]
    elif end:
        del rows[:_ROW]  # the least recently used
    if not end:
        rows[:0] = _FREE
        return 0.0
    known = not window.marks.add_new(mark(state.fingerprinter.of(key, end)))
    count = min(count + weight, COUNT_MAX) if known else count / 2
    rows += END.pack(key, count)
    return count if known else 0.0
