"""Kinds that compare a step with earlier ones.

`repeat`, `interleaved`, `failure`: what each call returned last, how often it returned the same, and how often it
failed. A change that succeeded, or new text of the user, begins a new epoch, which resets these counts. They are counts
of repeats: the first time is added, with the weight of the last repeat, when they are compared with thresholds.

`cycle`: the same steps in the same order again, with a period of 2 to 16. A period of one is `repeat`; it is only
tracked so that it is not taken for a longer one.

`near`, `reword`: almost the same again. `near` compares arguments with their numbers masked. `reword` compares what the
model wrote, by samples of its words, and only while nothing new arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from breakloop.detect.steps import drift
from breakloop.detect.steps.findings import Finding, StepState, times, tool_name
from breakloop.detect.steps.fingerprints import (
    ACK,
    EMPTY,
    NO_EVIDENCE,
    UNSEEN,
    CallResult,
    StepFingerprints,
    is_answer_elsewhere,
    ranked,
)
from breakloop.detect.steps.window import (
    CALL,
    CALLS,
    CLOCK,
    COUNT_MAX,
    COUNTS,
    NONE,
    RING,
    SKETCH,
    SKETCH_ROW,
    SKETCHES,
    SessionWindow,
    find_row,
    set_key,
)

_NOT_FAILED: Final = -1.0
_ONCE: Final = (0.0, 0.0, _NOT_FAILED)
_ROW: Final = CALL.size
_ROWS: Final = CALLS * _ROW
_BREAK: Final = ord("\n")
_NO_COPIES: Final[Mapping[bytes, float]] = {}
_COPIES_COUNTED: Final = 2.0
_COPIES_FEW: Final = 4  # some models make a call two or three times by mistake
_COPIES_MANY: Final = 8  # as many as end a stream


def count_calls(state: StepState) -> Sequence[Finding]:
    """Count a step's calls. Several that are equal count once, unless they are copies."""
    pairs: Sequence[CallResult] = state.prints.pairs
    window, weight = state.window, state.weight
    copies: Mapping[bytes, float] = _NO_COPIES
    if len(pairs) > 1:
        once = {pair.a + pair.r: pair for pair in pairs}
        if len(once) < len(pairs):
            copies = _copies(pairs)
        pairs = list(once.values())
    found: list[Finding] = []
    rows, now = window.calls, int(state.now) & CLOCK
    for pair in pairs:
        if pair.kind in NO_EVIDENCE:
            continue
        more = copies.get(pair.a + pair.r, 0.0) * weight if copies else 0.0
        at = rows.find(pair.a)  # as `find_row`, without the call for one that is new
        if at > 0 and at % _ROW:
            at = find_row(rows, pair.a, _ROW)
        if at < 0:
            failed = 0.0 if pair.failed else _NOT_FAILED
            text = pair.text
            if pair.failed or len(text) > drift.SHORT:
                end = pair.e
            else:  # as `drift.kept` has it, without the call
                breaks = text.count(b"\n") if _BREAK in text else 0
                end = drift.KEPT.pack(text.count(b" ") + breaks & 0xFFFF, 0)
            rows += CALL.pack(pair.a, pair.r, end, 0.0, more, failed, window.epoch, window.steps, now)
            if more:
                found += _findings(window, (0.0, more, failed), pair, weight)
            continue
        counts = _count(window, at, pair, weight, more)
        end, drifted = drift.count(state, pair, at)
        del rows[at : at + _ROW]  # moves to the end: the least recently used row is the first
        rows += CALL.pack(pair.a, pair.r, end, *counts, window.epoch, window.steps, now)
        if counts != _ONCE:
            found += _findings(window, counts, pair, weight)
        found += drifted
    if len(rows) > _ROWS:
        del rows[: len(rows) - _ROWS]
    return found


def _copies(pairs: Sequence[CallResult]) -> Mapping[bytes, float]:
    """Return what copies within one answer count in addition: enough for a notice, so that a second answer like it is
    blocked. The same key may be pressed five times, so copies with a short result only count if there are many."""
    found = Counter([pair.a + pair.r for pair in pairs if pair.kind not in (EMPTY, ACK)])
    telling = {pair.a + pair.r for pair in pairs if pair.telling}
    return {
        key: _COPIES_COUNTED
        for key, number in found.items()
        if number >= (_COPIES_FEW if key in telling else _COPIES_MANY)
    }


def is_new(window: SessionWindow, pair: CallResult) -> bool:
    """Tell whether a call returned something else the last time."""
    at = find_row(window.calls, pair.a, _ROW)
    return at < 0 or window.calls[at + 8 : at + 16] != pair.r


def _count(window: SessionWindow, at: int, pair: CallResult, weight: float, more: float) -> tuple[float, float, float]:
    """Return how often the call in this row returned the same in all, and in a row, and how often it failed; `more` is
    what its copies count."""
    _, r, e, same, row, failed, epoch, last, _ = CALL.unpack_from(window.calls, at)
    alike, changed = r == pair.r, epoch != window.epoch
    if not pair.failed:
        failed = _NOT_FAILED
    elif changed or failed < 0:
        failed = 0.0
    else:  # a different error counts half
        failed = _add(failed, weight if pair.e == e else weight / 2)
    row = min((_add(row, weight) if alike and last >= window.steps - 1 else 0.0) + more, COUNT_MAX)
    if not alike or changed:
        same = 0.0
    elif pair.kind not in (EMPTY, ACK):
        same = _add(same, weight)
    return same, row, failed


def _add(count: float, weight: float) -> float:
    """Return a count with one more repeat. One that counts nothing, because it was waited for, halves the count."""
    return min(count + weight, COUNT_MAX) if weight else count / 2


def _findings(
    window: SessionWindow, counts: tuple[float, float, float], pair: CallResult, weight: float
) -> list[Finding]:
    same, row, failed = counts
    found: list[Finding] = []
    if not (same or row or failed > 0):
        return found
    key = pair.a + pair.r
    name = tool_name(pair.tool.name)
    returned = f"{name} returned the same {pair.size} bytes"
    if row:
        found.append(Finding("repeat", row + weight, key, f"{returned} {times(row + weight)} in a row"))
    if same:
        ago = window.steps - window.last_new_step
        evidence = f"{returned} {times(same + weight)}; last new result {ago} calls ago"
        found.append(Finding("interleaved", same + weight, key, evidence))
    if failed > 0:
        count = failed + weight
        found.append(Finding("failure", count, key, f"the same call of {name} failed {times(count)}"))
    return found


_STEPS_MIN: Final = 6
_NO_COUNTS: Final = bytes(COUNTS.size)


def cycle(state: StepState) -> Sequence[Finding]:
    """Count the step as part of a cycle.

    If results are not in requests (MCP), a cycle needs their answers: one that was never seen before ends it.
    """
    window, step = state.window, state.step
    if not state.prints.pairs and not step.calls and is_answer_elsewhere(step):
        add_unknown_step(window)
        return ()
    found = find_cycle(window, state.prints.round, state.weight)
    if found and is_hidden(state.prints) and not (state.tracked and window.last_answer != NONE):
        return ()
    return found


def find_cycle(window: SessionWindow, round_: bytes, weight: float) -> Sequence[Finding]:
    """Add a step to the ring, and return the cycle it belongs to, if any."""
    ring, at = window.ring, window.steps
    slot = at % RING * 8
    if ring.find(round_) < 0:  # most steps are new; `in` takes twice the time
        window.cycle_counts = _NO_COUNTS
        set_key(ring, slot, round_)
        return ()
    counts = list(COUNTS.unpack(window.cycle_counts))
    for period in range(1, RING + 1):
        before = (at - period) % RING * 8
        same = at >= period and ring[before : before + 8] == round_
        counts[period - 1] = min(counts[period - 1] + weight, COUNT_MAX) if same else 0.0
    window.cycle_counts = COUNTS.pack(*counts)
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


def add_unknown_step(window: SessionWindow) -> None:
    """Add a step that equals no other to the ring: its calls are not known."""
    slot = window.steps % RING * 8
    window.ring[slot : slot + 8] = NONE
    reset_cycles(window)


def last_step(window: SessionWindow) -> bytes:
    """Return the last step of the ring."""
    slot = (window.steps - 1) % RING * 8
    return bytes(window.ring[slot : slot + 8])


def add_last_step(window: SessionWindow) -> None:
    """Add the last step to the ring again, without counting it."""
    slot = window.steps % RING * 8
    window.ring[slot : slot + 8] = last_step(window)


def rotation(window: SessionWindow, period: int) -> bytes:
    """Return the last `period` steps in the rotation that sorts first, so that a cycle has one identity."""
    ring, at = window.ring, window.steps
    last = [bytes(ring[one % RING * 8 : one % RING * 8 + 8]) for one in range(at - period + 1, at + 1)]
    return min(b"".join(last[start:] + last[:start]) for start in range(period))


def is_repeated(window: SessionWindow) -> bool:
    """Tell whether the last two steps of the ring are the same."""
    return window.cycle_counts[:2] != _NO_COUNTS[:2]


def reset_cycles(window: SessionWindow) -> None:
    window.cycle_counts = _NO_COUNTS


def is_hidden(prints: StepFingerprints) -> bool:
    """Tell whether there are calls and none of their results is in the request."""
    pairs = prints.pairs
    return bool(pairs) and pairs[0].kind == UNSEEN and all(pair.kind == UNSEEN for pair in pairs)


ALIKE: Final = 0.3
DRY_MIN: Final = 4.0  # three turns with few new words
_NEAR_RUN: Final = 4
_WORDS_MIN: Final = 4
_NO_TOOL: Final = bytes(4)


def near(state: StepState) -> Sequence[Finding]:
    """The same call except for its numbers, several times in a row, and nothing new from it."""
    window, pairs, dried = state.window, state.prints.pairs, state.novelty.dried
    if len(pairs) != 1:
        window.same_tool_run, window.near_count = 0.0, 0.0
        return ()
    pair = pairs[0]
    key = pair.tool.key
    if key != window.near_tool:
        window.near_tool, window.same_tool_run = key, 1.0
    elif window.same_tool_run < COUNT_MAX:
        window.same_tool_run += 1
    if pair.loose_a != window.near_call:
        window.near_count = 0.0
    elif dried:
        window.near_count = min(window.near_count + state.weight, COUNT_MAX)
    elif window.near_count:
        window.near_count /= 2
    window.near_call = pair.loose_a
    if not (dried and window.near_count and window.same_tool_run >= _NEAR_RUN):
        return ()
    count = window.near_count + state.weight
    evidence = f"{tool_name(pair.tool.name)} called almost alike {times(count)}"
    return (Finding("near", count, b"near" + pair.loose_a, evidence),)


def reword(state: StepState) -> Sequence[Finding]:
    """The same instruction in other words: how many of the last texts to one recipient are similar. A call written as
    text is one if it goes to an agent: the arguments of other tools are alike in honest work."""
    window, step, prints = state.window, state.step, state.prints
    if not step.said or (prints.pairs and not (step.as_text and prints.pairs[0].tool.to_agent)):
        return ()
    words = sample(ranked(prints.spoken, prints.words))
    if not words:
        return ()
    to = prints.pairs[0].tool.key if prints.pairs else _NO_TOOL
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


def sample(words: Sequence[int]) -> list[int]:
    """Return the 16-bit digests of the first of a text's ranked words."""
    return [word & 0xFFFF for word in words[:SKETCH]] if len(words) >= _WORDS_MIN else []


def alike(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the similarity of two word sets (shared words by all words), estimated from their samples."""
    shared = len({*one} & {*other})
    return shared / (len(one) + len(other) - shared) if shared else 0.0
