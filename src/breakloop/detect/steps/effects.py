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
from breakloop.detect.steps.purposes import REFUSED
from breakloop.detect.steps.window import EFFECT, EFFECTS, LIMIT, LIMITS, SessionWindow, find_row

_NEAR_STEPS: Final = 16  # equal orders that are further apart may be meant
_COUNT_MAX: Final = 1000
_TOLD_MAX: Final = 2.0  # of effects that are not refused
_UNSEEN_MAX: Final = 0.5  # what a call counts whose result is not known: it may have failed
_READ: Final = 500
_NOT_DONE: Final = re.compile(rb"\balready\b|\bduplicate\b|\"(?:ok|success)\":\s?false", re.IGNORECASE).search
_DONE: Final = re.compile(
    rb"\W{0,9}(?:ok|done|success\w*|created|sent|queued|placed|booked|paid|posted|added|scheduled|submitted|opened)\b",
    re.IGNORECASE,
).match
_ROW: Final = EFFECT.size
_LIMIT_ROW: Final = LIMIT.size


def side_effect(state: StepState) -> Sequence[Finding]:
    """The same effect again. Calls of one answer count each."""
    found: list[Finding] = []
    for pair in state.prints.pairs:
        if pair.effect and not _is_refused(pair):
            found += _count(state, pair)
    return found


def _is_refused(pair: CallResult) -> bool:
    """Tell whether nothing was done. "Created: the import fails" is no refusal."""
    if pair.failed or pair.kind == RATE or _NOT_DONE(pair.text[:_READ]):
        return True
    return pair.refused and _DONE(pair.text) is None


def _count(state: StepState, pair: CallResult) -> Sequence[Finding]:
    window, key = state.window, pair.a
    if pair.effect != REFUSED:  # a message may have another answer each time
        key = state.fingerprinter.of(key, without_ids(pair.text[:_READ]))
    rows, count = window.effects, 0
    at = find_row(rows, key, _ROW)
    if at >= 0:
        _, count, epoch, last = EFFECT.unpack_from(rows, at)
        if pair.effect != REFUSED and epoch != window.epoch and last != window.steps:
            count = 0  # other work was done in between
        elif count >= _TOLD_MAX and window.steps - last > _NEAR_STEPS:
            count -= 1
        del rows[at : at + _ROW]
    count = min(count + 1, _COUNT_MAX)
    rows += EFFECT.pack(key, count, window.epoch + state.changed & 0xFFFF, window.steps)
    if len(rows) > EFFECTS * _ROW:
        del rows[: len(rows) - EFFECTS * _ROW]
    hits = float(count)
    if pair.kind == UNSEEN:
        hits = 1 + (count - 1) * _UNSEEN_MAX
    if pair.effect != REFUSED:
        hits = min(hits, _TOLD_MAX)
    if count < _TOLD_MAX:
        return ()
    evidence = (
        f"{tool_name(pair.tool.name)} was called with the same arguments {times(count)}, and it was done each time"
    )
    return (Finding("side_effect", hits, b"effect" + key, evidence),)


def tool_limit(state: StepState) -> Sequence[Finding]:
    """More calls of a tool than the policy allows in a run (`max_per_run`), whatever their arguments and results."""
    found: list[Finding] = []
    for pair in state.prints.pairs:
        most = pair.tool.options.max_per_run
        if not most:
            continue
        count = _add_call(state.window, pair.tool.key)
        if count > most:
            evidence = f"{tool_name(pair.tool.name)} was called {times(count)} in this run, {most} are allowed"
            found.append(Finding("tool_limit", count - most + 1, b"limit" + pair.tool.key, evidence))
    return found


def _add_call(window: SessionWindow, key: bytes) -> int:
    rows, count = window.limits, 0
    at = find_row(rows, key, _LIMIT_ROW)
    if at >= 0:
        count = LIMIT.unpack_from(rows, at)[1]
        del rows[at : at + _LIMIT_ROW]
    count = min(count + 1, 0xFFFF)
    rows += LIMIT.pack(key, count)
    if len(rows) > LIMITS * _LIMIT_ROW:
        del rows[: len(rows) - LIMITS * _LIMIT_ROW]
    return count
