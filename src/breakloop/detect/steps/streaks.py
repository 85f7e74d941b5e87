"""Kinds that are one count each (DETECTION): `cascade`, `unknown_tool`, `stagnation`, `storm`, `thrash`. Each function
counts a step in and returns what it finds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from breakloop.detect.steps import repeats
from breakloop.detect.steps.fingerprints import (
    EMPTY,
    UNKNOWN,
    UNSEEN,
    CallResult,
    StepFingerprints,
    ToolTraits,
    is_answer_elsewhere,
)
from breakloop.detect.steps.kinds import Finding, times, tool
from breakloop.detect.steps.window import COUNT_MAX, TOOL, TOOLS, SessionWindow, place
from breakloop.model.call import Step

FORGIVEN_MAX: Final = 10  # repeats after failed answers that do not count, in the time of a storm
_BAD_OF: Final = 10
_BAD_BITS: Final = (1 << _BAD_OF) - 1
_DRY_MIN: Final = 2.0  # tests that fail after each edit stay below it
_STORM_S: Final = 60.0
_STORM_COUNT: Final = 10
_AT_ONCE_S: Final = 1.0
_FALL_STEPS: Final = 3
_FALL_FROM: Final = 4096  # bytes; shorter requests vary by themselves
_OWED_MAX: Final = 255
_ROW: Final = TOOL.size


def cascade(window: SessionWindow, prints: StepFingerprints) -> Sequence[Finding]:
    """Bad results whatever the tool. Calls of one tool in one round are one result, and bad where all of them are."""
    pairs = prints.pairs
    if len(pairs) == 1:  # as nearly always
        if pairs[0].kind != UNSEEN:
            window.bad = (window.bad << 1 | pairs[0].failed) & _BAD_BITS
    else:
        bad: dict[bytes, bool] = {}
        for pair in pairs:
            if pair.kind != UNSEEN:
                key = pair.tool.key
                bad[key] = pair.failed and (key not in bad or bad[key])
        for one in bad.values():
            window.bad = (window.bad << 1 | one) & _BAD_BITS
    if not window.bad:
        return ()
    count = window.bad.bit_count()
    if count > 1 and window.dry >= _DRY_MIN and pairs and pairs[-1].failed:
        return (Finding("cascade", count, b"cascade", f"{count} of the last {_BAD_OF} results were errors"),)
    return ()


def unknown_tool(window: SessionWindow, prints: StepFingerprints, weight: float) -> Sequence[Finding]:
    """Calls of tools that there are not. A round of them is one mistake."""
    name: ToolTraits | None = None
    for pair in prints.pairs:
        if pair.kind == UNKNOWN:
            name = pair.tool
        elif not pair.failed and pair.kind != UNSEEN:
            window.unknown = 0.0
    if name is None:
        return ()
    window.unknown = min(window.unknown + weight, COUNT_MAX)
    evidence = f"{tool(name.name)} is not among the tools; called {times(window.unknown)}"
    return (Finding("unknown_tool", window.unknown, b"unknown" + name.raw, evidence),)


def stagnation(window: SessionWindow, prints: StepFingerprints, news: bool, weight: float) -> Sequence[Finding]:  # noqa: FBT001
    """The same informative result from one tool whatever its arguments; however often in one round, once."""
    found: list[Finding] = []
    rows = window.tools
    groups = (prints.pairs,) if len(prints.pairs) == 1 else _by_tool(prints.pairs)
    for pairs in groups:
        pair, count = pairs[0], 0.0
        if not pair.telling or pair.kind == EMPTY:
            continue
        at = place(rows, pair.tool.key, _ROW)
        if at >= 0:
            _, result, before, _ = TOOL.unpack_from(rows, at)
            if len(pairs) > 1:
                pair = next((one for one in pairs if one.r != result), pair)
            if result == pair.r and not news:
                count = min(before + weight, COUNT_MAX)
            del rows[at : at + _ROW]
        rows += TOOL.pack(pair.tool.key, pair.r, count, window.steps)
        if count:
            evidence = f"{tool(pair.tool.name)} returned the same {pair.size} bytes {times(count + weight)}"
            found.append(Finding("stagnation", count + weight, b"stagnation" + pair.r, evidence))
    if len(rows) > TOOLS * _ROW:
        del rows[: len(rows) - TOOLS * _ROW]
    return found


def _by_tool(pairs: Sequence[CallResult]) -> Collection[Sequence[CallResult]]:
    """Return the calls of a round whose results are informative, those of each tool together."""
    groups: dict[bytes, list[CallResult]] = {}
    for pair in pairs:
        if pair.telling and pair.kind != EMPTY:
            groups.setdefault(pair.tool.key, []).append(pair)
    return groups.values()


def eased(window: SessionWindow) -> None:
    """Halve the rows of `stagnation`: something was changed, so what came before may be worth another look."""
    rows = [TOOL.pack(key, result, count / 2, last) for key, result, count, last in TOOL.iter_unpack(window.tools)]
    window.tools[:] = b"".join(rows)


def bounded(window: SessionWindow, most: float) -> None:
    """Let no row of `stagnation` have counted more: a person has said something new."""
    rows = [
        TOOL.pack(key, result, min(count, most), last) for key, result, count, last in TOOL.iter_unpack(window.tools)
    ]
    window.tools[:] = b"".join(rows)


def storm(window: SessionWindow, now: float, tracked: bool) -> Sequence[Finding]:  # noqa: FBT001
    """The newest request sent again, not all at once: called for repeats of a tail only. Where its answer will be told
    it counts when that has come, so that what is denied, or fails for a while, does not."""
    if now - window.last_at > _STORM_S:
        window.storm, window.owed, window.forgiven = 0.0, 0, 0
        window.last_at = now
    if now - window.storm_at >= _AT_ONCE_S:
        window.storm_at = now
        if tracked:
            window.owed = min(window.owed + 1, _OWED_MAX)
        else:
            window.storm = min(window.storm + 1, COUNT_MAX)
    count = window.storm + (window.owed > 0)
    return (Finding("storm", count, b"storm" + window.tail, f"the same request {times(count)} more"),)


def unseen(window: SessionWindow, prints: StepFingerprints, now: float) -> Sequence[Finding]:
    """`storm` of calls whose results go elsewhere (MCP): each is asked anew, and so is a step. As many a minute."""
    window.waits = 1 if prints.pairs and prints.pairs[0].kind == UNSEEN else 0
    gap = now - window.last_at
    if not window.waits or not hidden(prints) or not repeats.repeated(window) or gap > _STORM_S / _STORM_COUNT:
        window.storm = 0.0
        return ()
    window.storm = min(window.storm + min(gap, _AT_ONCE_S), COUNT_MAX)
    return (Finding("storm", window.storm, b"storm" + prints.round, f"the same call {times(window.storm)} more"),)


def hidden(prints: StepFingerprints) -> bool:
    """Tell whether calls were made and no result of theirs is seen."""
    pairs = prints.pairs
    return bool(pairs) and pairs[0].kind == UNSEEN and all(pair.kind == UNSEEN for pair in pairs)


def thrash(window: SessionWindow, step: Step) -> Sequence[Finding]:
    """The context fills up again right after it was cut."""
    found: Sequence[Finding] = ()
    if not step.calls and is_answer_elsewhere(step):
        return found  # the context is kept elsewhere
    if window.falls and step.messages >= window.peak:
        grown = step.messages - window.messages - 1 - len(step.results) - len(step.users)
        if grown > 0:
            window.falls = 0  # as long as before, all at once: not cut, another conversation came between
    if window.size > _FALL_FROM and step.size * 2 < window.size:
        near = window.falls and window.steps - window.fall_at <= _FALL_STEPS
        window.falls = min(window.falls + 1, 255) if near else 1
        window.fall_at, window.peak = window.steps, window.messages
        evidence = f"the context was cut {times(window.falls)} within few steps"
        found = (Finding("thrash", window.falls, b"thrash", evidence),)
    window.size, window.messages = step.size, step.messages
    return found
