"""Kinds `side_effect` and `tool_limit`: effects outside that cannot be taken back.

A mail, an order or an issue is counted by call, arguments and masked result, so that a new id does not make another
one of it. New text of the user begins a new run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from breakloop.detect.steps.findings import Finding, StepState, times, tool_name
from breakloop.detect.steps.fingerprints import RATE, UNSEEN, CallResult, without_ids
from breakloop.detect.steps.purposes import BLOCKED
from breakloop.detect.steps.window import EFFECT, EFFECTS, SessionWindow, find_row
from breakloop.dialects.content import lazy_pattern

_NEAR_STEPS: Final = 16  # equal orders that are further apart may be meant
_COUNT_MAX: Final = 0xFFFF
_NOTICED_MAX: Final = 2.0  # of effects that are not blocked
_UNSEEN_MAX: Final = 0.5  # what a call counts whose result is not known: it may have failed
_READ: Final = 500
_NOT_DONE: Final = lazy_pattern(rb"\balready\b|\bduplicate\b|\"(?:ok|success)\":\s?false", re.IGNORECASE)
_DONE: Final = lazy_pattern(
    rb"\W{0,9}(?:ok|done|success\w*|created|sent|queued|placed|booked|paid|posted|added|scheduled|submitted|opened)\b",
    re.IGNORECASE,
)
_ROW: Final = EFFECT.size
_LIMIT: Final = b"\xffmax"  # ends the key of a tool's count


def findings(state: StepState) -> Sequence[Finding]:
    """Count effects and calls of tools with a limit. Calls of one answer count each."""
    found: list[Finding] = []
    for pair in state.prints.pairs:
        if pair.effect and not _is_refused(pair):
            found += _count(state, pair)
        if pair.tool.options.max_per_run:
            found += _count_call(state.window, pair)
    return found


def _is_refused(pair: CallResult) -> bool:
    """Tell whether nothing was done. "Created: the import fails" is no refusal."""
    if pair.failed or pair.kind == RATE or _NOT_DONE().search(pair.text[:_READ]):
        return True
    return pair.refused and _DONE().match(pair.text) is None


def _count(state: StepState, pair: CallResult) -> Sequence[Finding]:
    window, key = state.window, pair.a
    if pair.effect != BLOCKED:  # a message may have another answer each time
        key = state.fingerprinter.of(key, without_ids(pair.text[:_READ]))
    rows, count = window.effects, 0
    at = find_row(rows, key, _ROW)
    if at >= 0:
        _, count, epoch, last = EFFECT.unpack_from(rows, at)
        if pair.effect != BLOCKED and epoch != window.epoch and last != window.steps:
            count = 0  # other work was done in between
        elif count >= _NOTICED_MAX and window.steps - last > _NEAR_STEPS:
            count -= 1
        del rows[at : at + _ROW]
    count = min(count + 1, _COUNT_MAX)
    _add(rows, EFFECT.pack(key, count, window.epoch + state.changed & 0xFFFF, window.steps))
    hits = float(count)
    if pair.kind == UNSEEN:
        hits = 1 + (count - 1) * _UNSEEN_MAX
    if pair.effect != BLOCKED:
        hits = min(hits, _NOTICED_MAX)
    if count < _NOTICED_MAX:
        return ()
    evidence = (
        f"{tool_name(pair.tool.name)} was called with the same arguments {times(count)}, and it was done each time"
    )
    return (Finding("side_effect", hits, b"effect" + key, evidence),)


def _count_call(window: SessionWindow, pair: CallResult) -> Sequence[Finding]:
    """Count a call, whatever its arguments and its result."""
    most, key = pair.tool.options.max_per_run, pair.tool.key + _LIMIT
    rows, count = window.effects, 1
    at = find_row(rows, key, _ROW)
    if at >= 0:
        count = min(EFFECT.unpack_from(rows, at)[1] + 1, _COUNT_MAX)
        del rows[at : at + _ROW]
    _add(rows, EFFECT.pack(key, count, 0, window.steps))
    if count <= most:
        return ()
    evidence = f"{tool_name(pair.tool.name)} was called {times(count)} in this run, {most} are allowed"
    return (Finding("tool_limit", count - most + 1, b"limit" + key, evidence),)


def _add(rows: bytearray, row: bytes) -> None:
    """Add a row, and drop the oldest one that is not the count of a limit."""
    rows += row
    if len(rows) > EFFECTS * _ROW:
        starts = range(0, len(rows), _ROW)
        at = next((one for one in starts if rows[one + 4 : one + 8] != _LIMIT), 0)
        del rows[at : at + _ROW]
