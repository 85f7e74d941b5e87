"""The turns of a session in a row with the findings about them, and the loops among them: start, end, kind, evidence,
cost.

It contains names of tools, counts and digests; text only if excerpts were requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from breakloop.model.decision import LOOP, PAUSED
from breakloop.model.verdict import Verdict
from breakloop.replay.sessions import Pricing, RecordedSession, RecordedTurn, Spent, free, spent, total

NEW, AGAIN, NOTICE, LAND, BLOCK = 0, 1, 2, 3, 4
_STOPPED: Final = frozenset((LOOP, PAUSED))
TEXT: Final = "(text)"  # shown instead of a tool name if the model only wrote text
NOTHING: Final = "(no answer)"
_APART: Final = 8  # turns without a finding after which the next finding is another loop
_NAME_MAX: Final = 48
_EXCERPT_MAX: Final = 160


class Cell(NamedTuple):
    number: int  # from 1
    level: int
    tool: str  # the tools that were called
    identity: str  # digest of the call with its arguments, or of the text
    at_s: float | None
    spent: Spent
    kind: str = ""
    evidence: str = ""
    excerpt: str = ""


@dataclass(frozen=True, slots=True)
class TimelineLoop:
    """Turns that repeat, numbered from 1."""

    kind: str
    evidence: str
    first: int
    last: int
    notice: int | None  # the first turn with a notice
    block: int | None  # the first turn that would have been denied
    spent: Spent  # from the first to the last
    after: Spent  # from the first block, or after the first landed turn, to the last; nothing without either
    seconds: float | None
    began_at: float | None
    excerpt: str = ""
    land: int | None = None  # the first turn that would have been landed

    @property
    def end(self) -> int | None:
        """The turn at which it would have been ended."""
        return self.block if self.land is None else self.land

    @property
    def turns(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Timeline:
    session: RecordedSession
    file: str
    model: str
    cells: Sequence[Cell]
    loops: Sequence[TimelineLoop]

    @property
    def blocked(self) -> bool:
        """Whether a loop would have been ended: blocked or landed."""
        return any(loop.end is not None for loop in self.loops)

    @property
    def stopped(self) -> Sequence[TimelineLoop]:
        """Return the loops that would have been ended, or else those that were noticed, the most expensive first."""
        blocked = [loop for loop in self.loops if loop.end is not None]
        return sorted(blocked or self.loops, key=lambda loop: -loop.after.tokens)

    @property
    def kinds(self) -> str:
        """Return the kind of the most expensive loop, and the number of other kinds."""
        kinds = list(dict.fromkeys(loop.kind for loop in self.stopped))
        return kinds[0] if len(kinds) == 1 else f"{kinds[0]} +{len(kinds) - 1}"

    @property
    def span(self) -> tuple[int, int]:
        return min(loop.first for loop in self.stopped), max(loop.last for loop in self.stopped)

    @property
    def looping_turns(self) -> int:
        return sum(loop.turns for loop in self.stopped)

    @property
    def after(self) -> Spent:
        """Return what its loops cost after the points where they would have been ended."""
        return total(loop.after for loop in self.loops)


class TimelineRecorder:
    __slots__ = ("_cells", "_excerpts", "_flagged", "_pricing", "_seen", "model")

    def __init__(self, pricing: Pricing = free, *, excerpts: bool = False) -> None:
        self._pricing = pricing
        self._excerpts = excerpts
        self._cells: list[Cell] = []
        self._seen: set[str] = set()
        self._flagged = False
        self.model = ""

    def take(self, session: RecordedSession, turn: RecordedTurn, verdict: Verdict, size: int) -> None:
        tool, identity = _identity(turn)
        level = NEW
        if verdict.allowed:
            level = LAND if verdict.landed else NOTICE if verdict.warning else NEW
        elif verdict.reason in _STOPPED:
            level = BLOCK
        self._flagged = self._flagged or level > AGAIN
        if level == NEW and identity in self._seen:
            level = AGAIN
        self._seen.add(identity)
        loop = verdict.loop if level > AGAIN else None
        excerpt = _excerpt(turn) if self._excerpts else ""
        paid = spent(turn.answer, session.model, size, self._pricing)
        kind, evidence = (loop.kind, loop.evidence) if loop is not None else ("", "")
        if level == BLOCK and loop is None and self._cells:  # still paused
            kind, evidence = self._cells[-1].kind, self._cells[-1].evidence
        number = len(self._cells) + 1
        self._cells.append(Cell(number, level, tool, identity, turn.at_s, paid, kind, evidence, excerpt))
        self.model = self.model or turn.answer.model or session.model

    def spent(self) -> Spent:
        return total(cell.spent for cell in self._cells)

    def timeline(self, session: RecordedSession, file: str = "") -> Timeline | None:
        """Return the timeline if there are findings."""
        if not self._flagged:
            return None
        return Timeline(session, file, self.model, self._cells, _loops(self._cells))


def _identity(turn: RecordedTurn) -> tuple[str, str]:
    """Return the name of the first call, with the number of calls, and a digest of all."""
    calls, said = turn.answer.calls, turn.answer.text
    if not calls and not said:
        return NOTHING, ""
    parts = [f"{call.name}\0{call.arguments}" for call in sorted(calls)] or [said]
    digest = blake2b("\1".join(parts).encode("utf-8", "replace"), digest_size=4).hexdigest()
    if not calls:
        return TEXT, digest
    name = shown(calls[0].name, _NAME_MAX) or "?"
    return (name if len(calls) == 1 else f"{name} +{len(calls) - 1}"), digest


def _excerpt(turn: RecordedTurn) -> str:
    calls = turn.answer.calls
    return shown(f"{calls[0].name} {calls[0].arguments}" if calls else turn.answer.text, _EXCERPT_MAX)


def shown(said: str, most: int) -> str:
    """Return the beginning of a text on one line, with control characters escaped."""
    folded = " ".join(said[: most * 4].split())
    plain = "".join(one if one.isprintable() else "?" for one in folded)
    return plain if len(plain) <= most else f"{plain[: most - 3]}..."


def _loops(cells: Sequence[Cell]) -> list[TimelineLoop]:
    groups: list[list[Cell]] = []
    for cell in cells:
        if cell.level <= AGAIN:
            continue
        if not groups or cell.number - groups[-1][-1].number > _APART:
            groups.append([])
        groups[-1].append(cell)
    made: list[TimelineLoop] = []
    for group in groups:
        made.append(_loop(cells, group, made[-1].last + 1 if made else 1))
    return made


def _loop(cells: Sequence[Cell], group: Sequence[Cell], earliest: int) -> TimelineLoop:
    notices, lands, blocks = ([cell for cell in group if cell.level == level] for level in (NOTICE, LAND, BLOCK))
    # A loop often has findings of several kinds; the most frequent one describes it best.
    kind = Counter(cell.kind for cell in blocks or lands or notices).most_common(1)[0][0]
    last_word = next(cell for cell in reversed(group) if cell.kind == kind)
    first, last = _begin(cells, group, earliest), group[-1].number
    inside = cells[first - 1 : last]
    # The answer of a landed turn is paid for; those after it are not given.
    over = [*(cell.number + 1 for cell in lands), *(cell.number for cell in blocks)]
    times = [cell.at_s for cell in inside if cell.at_s is not None]
    return TimelineLoop(
        kind,
        last_word.evidence,
        first,
        last,
        notices[0].number if notices else None,
        blocks[0].number if blocks else None,
        total(cell.spent for cell in inside),
        total(cell.spent for cell in cells[min(over) - 1 : last]) if over else Spent(),
        max(times) - min(times) if len(times) > 1 else None,
        times[0] if times else None,
        last_word.excerpt,
        lands[0].number if lands else None,
    )


def _begin(cells: Sequence[Cell], group: Sequence[Cell], earliest: int) -> int:
    """Extend the loop backwards over turns that do the same as its turns."""
    first = group[0].number
    # The verdict on a turn is about the response before it.
    doing = {cells[cell.number - 2].identity for cell in group if cell.number > 1}
    doing |= {cell.identity for cell in group}
    missed = 0
    for number in range(first - 1, earliest - 1, -1):
        if cells[number - 1].identity in doing:
            first, missed = number, 0
        else:
            missed += 1
            if missed > 2:
                break
    return first
