"""What a step of waiting counts: time decides, not the number of looks. And kind `waiting`, an upper bound in hours.

A wait counts nothing. A look counts the less the longer the same look was ago, and nothing after 30 s, whether another
call waited or nothing was sent in between. A look whose answer says that the thing has ended has nothing to wait for:
it counts like any repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from breakloop.detect.stateful import RUN_IDLE_S
from breakloop.detect.steps.findings import Finding, StepState, tool_name
from breakloop.detect.steps.fingerprints import RATE, UNSEEN, CallResult
from breakloop.detect.steps.purposes import ENDED, NO_WAIT, ONGOING, TERMINAL, TIMED_OUT, WAIT
from breakloop.detect.steps.window import CALL, CLOCK, SessionWindow, find_row

SLOW_S: Final = 20.0
SLOWER_S: Final = 60.0
COUNTED_MIN: Final = 0.25  # repeats below this weight were waited for; no other repeat has less
_FREE_S: Final = 30.0
_TERMINAL_FREE_S: Final = 10.0  # a read of a terminal waits for output by itself
_LOOK_WEIGHT: Final = 0.6  # of a look at once
_POLL_WEIGHT: Final = 0.25  # the same, if the policy states that the tool is for polling
_ANNOUNCED_WEIGHT: Final = 0.05  # after a wait that took less time than its arguments say
_NO_TIME_S: Final = 2.0  # a wait that is over sooner is none
_HOUR_S: Final = 3600.0
_ROW: Final = CALL.size

ADVICE: Final = "; wait once, for as long as it takes"
FINAL_ADVICE: Final = "; this answer is final"


class Waiting(NamedTuple):
    """A step that only waits and looks."""

    weight: float
    advice: str  # for its evidence
    new: bool  # a look has another result than before

    def advise(self, found: list[Finding]) -> list[Finding]:
        """Return findings with the advice in their evidence."""
        return [one._replace(evidence=one.evidence + self.advice) for one in found] if self.advice else found


def weight_of(gap_s: float) -> float:
    """Return the weight of a repeat that is no look, by the time since the last step."""
    if gap_s < SLOWER_S:
        return 1.0 if gap_s < SLOW_S else 0.5
    return 0.25 if gap_s < RUN_IDLE_S else 0.0


def of_step(window: SessionWindow, pairs: Sequence[CallResult], now: float) -> Waiting | None:
    """Return what a step of waiting counts; None if it does something else. Note either in the window. Not called if no
    call may wait and the window has no waits."""
    found: Waiting | None = None
    if window.waited_at or window.announced_at or _may_wait(pairs):
        found = _weigh(window, pairs, now)
        _note_waits(window, pairs, now)
    if found is None:
        window.waiting_since = 0
    elif found.new or not window.waiting_since:
        window.waiting_since = int(now)
    return found


def _may_wait(pairs: Sequence[CallResult]) -> bool:
    found = False
    for pair in pairs:  # faster than a generator
        found = found or bool(pair.waits or pair.says or pair.kind == RATE or pair.tool.options.poll)
    return found


def _weigh(window: SessionWindow, pairs: Sequence[CallResult], now: float) -> Waiting | None:
    gap_s = now - window.last_at
    most, advice, new = 0.0, "", False
    for pair in pairs:
        if pair.kind == RATE:
            continue
        if pair.waits == WAIT:
            if gap_s < _NO_TIME_S:
                most = max(most, _LOOK_WEIGHT)
            continue
        at = find_row(window.calls, pair.a, _ROW) if pair.kind != UNSEEN else -1
        age_s = gap_s if at < 0 else _age(window, at, now)
        known = pair.waits != NO_WAIT or pair.tool.options.poll
        one = _look(window, pair, age_s, known=known, since=now if at < 0 else int(now) - age_s)
        if one is None:
            return None
        advice = advice or ADVICE
        if at < 0 or window.calls[at + 8 : at + 16] != pair.r:
            new = True
        elif pair.says == ENDED:
            one, advice = (1.0 if age_s < SLOWER_S else 0.5) * (1.0 if known else 0.5), FINAL_ADVICE
        elif pair.says == TIMED_OUT:
            one = max(one, weight_of(age_s))
        most = max(most, one)
    return Waiting(most, advice, new)


def _look(window: SessionWindow, pair: CallResult, age_s: float, *, known: bool, since: float) -> float | None:
    """Return what a look counts after `age_s`; None if the call is not a look. Any call that changes nothing is one if
    there was a wait `since` it was made before."""
    if pair.changes and not known:
        return None
    if window.waited_at and window.waited_at >= since:
        return 0.0
    if window.announced_at and window.announced_at >= since:
        return _ANNOUNCED_WEIGHT
    if not known and pair.says != ONGOING:
        return None
    free_s = _TERMINAL_FREE_S if pair.waits == TERMINAL else _FREE_S
    if age_s >= free_s:
        return 0.0
    return (_POLL_WEIGHT if pair.tool.options.poll else _LOOK_WEIGHT) * (1 - age_s / free_s) ** 2


def _note_waits(window: SessionWindow, pairs: Sequence[CallResult], now: float) -> None:
    for pair in pairs:
        if pair.waits == WAIT or pair.wait_s:
            if now - window.last_at >= _FREE_S:
                window.waited_at = int(now)
            elif pair.wait_s >= _FREE_S:
                window.announced_at = int(now)


def _age(window: SessionWindow, at: int, now: float) -> float:
    made = int.from_bytes(window.calls[at + _ROW - 2 : at + _ROW], "little")
    return float(int(now) - made & CLOCK)


def hours(state: StepState) -> Sequence[Finding]:
    """The same look with the same answer for hours, or nothing but waits."""
    window, pairs = state.window, state.prints.pairs
    if not window.waiting_since or not pairs or state.now - window.waiting_since < _HOUR_S:
        return ()
    count = (state.now - window.waiting_since) // (_HOUR_S / 4) / 4
    evidence = f"{tool_name(pairs[-1].tool.name)} has returned nothing new for {int(count)} h"
    return (Finding("waiting", count, b"waiting" + pairs[-1].a, evidence),)
