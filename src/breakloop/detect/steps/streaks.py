"""Kinds that are one count each: `cascade`, `unknown_tool`, `stagnation`, `storm`, `thrash`. Each function counts a
step and returns its findings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from breakloop.detect.steps import repeats
from breakloop.detect.steps.findings import Finding, StepState, times, tool_name
from breakloop.detect.steps.fingerprints import (
    EMPTY,
    NO_EVIDENCE,
    RATE,
    UNKNOWN,
    UNSEEN,
    CallResult,
    ToolTraits,
    is_answer_elsewhere,
)
from breakloop.detect.steps.waiting import COUNTED_MIN
from breakloop.detect.steps.window import COUNT_MAX, TOOL, TOOLS, SessionWindow, find_recent_row
from breakloop.model.call import Step

_NOT_TELLING: Final = (EMPTY, RATE)
FORGIVEN_MAX: Final = 10  # repeats after failed answers that do not count, within a storm
_BAD_OF: Final = 10
_BAD_BITS: Final = (1 << _BAD_OF) - 1
_DRY_MIN: Final = 2.0  # tests that fail after each edit stay below
_STORM_S: Final = 60.0
_STORM_COUNT: Final = 10
_AT_ONCE_S: Final = 1.0
_CUT_STEPS: Final = 6
_CUT_S: Final = 600.0  # fewer than six cuts an hour are no haste
_CUT_FROM: Final = 4096  # bytes; the size of shorter requests varies anyway
_TRIMMED_FROM: Final = 65536
_TRIMMED: Final = 0.9
_TRIMMED_MAX: Final = 5.0
_REASONING: Final = 2  # items of an answer beside its text and calls
_WORK_MIN: Final = 2  # new results
_WORKED: Final = 0.75
_FEW: Final = 3  # cuts
_OTHER_TOOL: Final = 2.0  # weight of the same result of another tool than in the step before
CHANGED: Final = 100  # of `work_since_cut`: something was changed
_PENDING_MAX: Final = 255
_ROW: Final = TOOL.size
_LAST_TOOL: Final = slice(-_ROW, 4 - _ROW)  # of the last row: its tool


def cascade(state: StepState) -> Sequence[Finding]:
    """Errors, whatever the tool. The calls of one tool in one step are one result, an error if all of them failed."""
    window, pairs = state.window, state.prints.pairs
    if not pairs or state.weight < COUNTED_MIN:
        return ()
    if len(pairs) == 1:  # the usual case
        if pairs[0].kind not in NO_EVIDENCE:
            window.error_bits = (window.error_bits << 1 | pairs[0].failed) & _BAD_BITS
    else:
        bad: dict[bytes, bool] = {}
        for pair in pairs:
            if pair.kind not in NO_EVIDENCE:
                key = pair.tool.key
                bad[key] = pair.failed and (key not in bad or bad[key])
        for one in bad.values():
            window.error_bits = (window.error_bits << 1 | one) & _BAD_BITS
    if not window.error_bits:
        return ()
    count = window.error_bits.bit_count()
    if count > 1 and window.dry >= _DRY_MIN and pairs[-1].failed:
        return (Finding("cascade", count, b"cascade", f"{count} of the last {_BAD_OF} results were errors"),)
    return ()


def unknown_tool(state: StepState) -> Sequence[Finding]:
    """Calls of tools that do not exist. Several in one step count once."""
    name: ToolTraits | None = None
    window = state.window
    for pair in state.prints.pairs:
        if pair.kind == UNKNOWN:
            name = pair.tool
        elif not pair.failed and pair.kind != UNSEEN:
            window.unknown_tools = 0.0
    if name is None:
        return ()
    window.unknown_tools = min(window.unknown_tools + state.weight, COUNT_MAX)
    evidence = f"{tool_name(name.name)} is not among the tools; called {times(window.unknown_tools)}"
    return (Finding("unknown_tool", window.unknown_tools, b"unknown" + name.raw, evidence),)


def stagnation(state: StepState) -> Sequence[Finding]:
    """The same informative result, whatever is called. Several in one step count once."""
    window, all_pairs, news = state.window, state.prints.pairs, state.novelty.news
    rows = window.tools
    one = all_pairs[0] if len(all_pairs) == 1 else None
    if news and one and one.telling and one.kind not in _NOT_TELLING and rows[_LAST_TOOL] == one.tool.key:
        TOOL.pack_into(rows, len(rows) - _ROW, one.tool.key, one.r, 0.0, window.steps)  # as nearly always
        return ()
    found: list[Finding] = []
    weight = state.weight
    groups = (all_pairs,) if one else _by_tool(all_pairs)
    for pairs in groups:
        pair, count = pairs[0], 0.0
        key = pair.tool.key
        at = find_recent_row(rows, key, _ROW)
        if not pair.telling or pair.kind in _NOT_TELLING:
            if at >= 0 and news and not pair.changes and not (pair.failed or pair.refused or pair.kind == RATE):
                del rows[at : at + _ROW]  # "ok" after refusals
            continue  # of several calls, only informative ones are in groups
        if at >= 0:
            _, result, before, _ = TOOL.unpack_from(rows, at)
            if len(pairs) > 1:
                pair = next((one for one in pairs if one.r != result), pair)
            if result == pair.r and not news:
                count = min(before + weight, COUNT_MAX)
            del rows[at : at + _ROW]
        if rows and not news:
            _, result, before, last = TOOL.unpack_from(rows, len(rows) - _ROW)
            if result == pair.r and last == window.steps - 1:  # of another tool: it does not depend on what is called
                count = max(count, min(before + _OTHER_TOOL * weight, COUNT_MAX))
        rows += TOOL.pack(key, pair.r, count, window.steps)
        if count:
            evidence = f"{tool_name(pair.tool.name)} returned the same {pair.size} bytes, whatever was called"
            found.append(Finding("stagnation", count + weight, b"stagnation" + pair.r, evidence))
    if len(rows) > TOOLS * _ROW:
        del rows[: len(rows) - TOOLS * _ROW]
    return found


def _by_tool(pairs: Sequence[CallResult]) -> Collection[Sequence[CallResult]]:
    """Return the calls with informative results, grouped by tool."""
    groups: dict[bytes, list[CallResult]] = {}
    for pair in pairs:
        if pair.telling and pair.kind not in _NOT_TELLING:
            groups.setdefault(pair.tool.key, []).append(pair)
    return groups.values()


def halve_stagnation(window: SessionWindow) -> None:
    """Halve the counts of `stagnation`, because a call changed something."""
    rows = [TOOL.pack(key, result, count / 2, last) for key, result, count, last in TOOL.iter_unpack(window.tools)]
    window.tools[:] = b"".join(rows)


def limit_stagnation(window: SessionWindow, most: float) -> None:
    """Limit the counts of `stagnation`, because there is new text of the user."""
    rows = [
        TOOL.pack(key, result, min(count, most), last) for key, result, count, last in TOOL.iter_unpack(window.tools)
    ]
    window.tools[:] = b"".join(rows)


def storm(window: SessionWindow, now: float, tracked: bool) -> Sequence[Finding]:  # noqa: FBT001
    """The newest request sent again, but not at the same time; only called for requests that are not a new step. If the
    request is tracked, it counts when its answer arrives, so that denied and failed ones do not count."""
    if not 0 <= now - window.last_at <= _STORM_S:  # less than 0: the clock of a shared store was set back
        window.storm, window.pending_repeats, window.forgiven_repeats = 0.0, 0, 0
        window.last_at = now
    if not 0 <= now - window.storm_at < _AT_ONCE_S:
        window.storm_at = now
        if tracked:
            window.pending_repeats = min(window.pending_repeats + 1, _PENDING_MAX)
        else:
            window.storm = min(window.storm + 1, COUNT_MAX)
    count = window.storm + (window.pending_repeats > 0)
    return (Finding("storm", count, b"storm" + window.tail, f"the same request {times(count)} more"),)


def call_storm(state: StepState) -> Sequence[Finding]:
    """`storm` of calls whose results are not in requests (MCP), so that each request is a step. The same rate."""
    window, prints = state.window, state.prints
    window.awaits_result = 1 if prints.pairs and prints.pairs[0].kind == UNSEEN else 0
    gap = state.now - window.last_at
    if (
        not window.awaits_result
        or not repeats.is_hidden(prints)
        or not repeats.is_repeated(window)
        or gap > _STORM_S / _STORM_COUNT
    ):
        window.storm = 0.0
        return ()
    window.storm = min(window.storm + min(gap, _AT_ONCE_S), COUNT_MAX)
    return (Finding("storm", window.storm, b"storm" + prints.round, f"the same call {times(window.storm)} more"),)


def thrash(state: StepState) -> Sequence[Finding]:
    """The context fills up again right after it was cut. A large context that loses a tenth was cut, too, but some
    clients drop their oldest messages all the time, so that is never a reason to block."""
    window, step = state.window, state.step
    if not state.prints.pairs and not step.calls and is_answer_elsewhere(step):
        return ()  # the provider keeps the context
    size, before = step.size, window.size
    if window.cuts and step.messages >= window.messages_before_cut:
        of_step = 1 + _REASONING + 2 * len(step.calls) + len(step.results) + len(step.users)
        if step.messages - window.messages > of_step:
            window.cuts = 0.0  # as long as before in one step: it was not cut, another conversation came in between
    found: Sequence[Finding] = ()
    if size >= before:
        pass  # it has grown, as it usually does
    elif before > _CUT_FROM and size * 2 < before:
        found = cut(window, step, state.now)
    elif before > _TRIMMED_FROM and size < before * _TRIMMED:
        found = cut(window, step, state.now, most=_TRIMMED_MAX)
    window.size, window.messages = size, step.messages
    return found


def add_change(window: SessionWindow) -> None:
    """Count a change since the context was cut. It begins a new epoch."""
    window.work_since_cut = CHANGED
    halve_stagnation(window)
    window.epoch = window.epoch + 1 & 0xFFFF


def add_result(window: SessionWindow) -> None:
    """Count a new result since the context was cut."""
    if window.work_since_cut < CHANGED - 1:
        window.work_since_cut += 1


def cut(window: SessionWindow, step: Step, now: float, most: float = COUNT_MAX) -> Sequence[Finding]:
    """Count a cut of the context. From the fourth on, one after new results counts less, and one after a change is a
    piece of work that was done."""
    near = window.cuts and window.steps - window.cut_step <= _CUT_STEPS and 0 <= now - window.cut_at <= _CUT_S
    work = window.work_since_cut
    if work >= CHANGED:
        window.cuts /= 2
    if not near:
        window.cuts = 1.0
    elif window.cuts < most:
        window.cuts = min(window.cuts + (_WORKED if window.cuts >= _FEW and work >= _WORK_MIN else 1.0), most)
    if work >= _WORK_MIN and step.messages * 2 < window.messages:
        window.epoch = window.epoch + 1 & 0xFFFF  # who has worked reads again what the cut removed
    window.cut_step, window.cut_at, window.work_since_cut = window.steps, now, 0
    window.messages_before_cut = window.messages
    return (Finding("thrash", window.cuts, b"thrash", f"the context was cut {times(window.cuts)}, few steps apart"),)
