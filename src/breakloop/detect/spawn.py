"""`spawn` (DETECTION): agents that start agents for the same task, or hand work to each other and back. Pure: what is
remembered of a caller and a conversation that begins in, the memory and a level out. Who started it is read from the
request by `policy`. One packed section:

    version 1 and number of loops 1 · loops told 4 x 11 · the last 64 conversations that were started by others x 47:
    3,054 bytes

The part of a `similarity: steps` block that looks at who began a conversation: agents that hand the same task on and
on (kind `spawn`). What is remembered of it is `detect.spawn`'s matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import CallReaders, DetectorFinding, SeverityActions, StatefulDetector
from breakloop.detect.steps.detector import RUN_IDLE_S, StepEvaluation, weight_of
from breakloop.detect.steps.fingerprints import Digest, StepFingerprinter
from breakloop.detect.steps.kinds import BLOCK, NOTHING, NOTICE, Finding, times
from breakloop.detect.steps.masks import folded, lowered, own, steady
from breakloop.model.call import Call

KIND: Final = "spawn"
SPAWNED: Final = 64
SAMPLES: Final = 16  # children with the same task at once: so many are one question asked often
AT_ONCE_S: Final = 2
_GENERATIONS: Final = 3  # with one task: no sampling, however fast they come

_VERSION: Final = 1
_TOLD: Final = Struct("<8sBe")
_TOLD_MAX: Final = 4
_ENTRY: Final = Struct("<6s6s6s6s6s6sHBBBIH")
_ID_BYTES: Final = 6
_NOBODY: Final = bytes(_ID_BYTES)
_ANCESTORS: Final = 16
_TASK_MAX: Final = 16 * 1024  # characters that are looked at
_TASK_MIN: Final = 20  # bytes; shorter ones ("begin", "go on") say nothing of what is to be done
_SEEN_S: Final = 30  # a time is not written anew sooner
_COUNT_MAX: Final = 255
_SIZE_MAX: Final = 2**16 - 1
_TIME_MAX: Final = 2**32 - 1
_OPENED: Final = re.compile(r"<([A-Za-z][\w-]{0,60})[^<>]{0,200}>").match
_CLOSED: Final = re.compile(r"</([A-Za-z][\w-]{0,60})>\Z").match

Bounds = tuple[float, float]  # notice, block


class RunStart(NamedTuple):
    """A conversation that begins: no answer of the model is in it yet."""

    session: str
    parent: str  # session or agent that started it; "" where only the trace is known
    root: str  # trace id, or ""
    agent: str
    task: str  # see `task_of`
    lane: str = ""  # model and system prompt: some agents' task stands there, and they all begin with the same words


def task_of(users: Sequence[str]) -> str:
    """Return what an agent is to do: the last text that is not all context that a harness puts in tags before it."""
    for text in reversed(users):
        task = _untagged(text[:_TASK_MAX])
        if task:
            return task
    return users[-1] if users else ""


class _Spawned(NamedTuple):
    """What is known of one of them: digests, and how it stands to those above it."""

    session: bytes
    parent: bytes
    root: bytes  # what all of one tree have in common
    agent: bytes
    task: bytes
    family: bytes  # the task as it was first given, and to what kind of agent
    size: int  # of the task in bytes; 0: not looked for in others
    depth: int
    run: int  # how many in a line, this one included, have the task
    swaps: int  # how often in a row the agent is that of two generations ago, and not its parent's
    begun_s: int
    lasted_s: int  # until the last sign of it: a child, or the same request again


class _Told(NamedTuple):
    identity: bytes
    level: int
    hits: float


class SpawnTracker:
    """Judges conversations as they begin. One for many callers: all that is remembered is in the windows."""

    __slots__ = ("_depth", "_printer", "_same_task")

    def __init__(self, digest: Digest, depth: Bounds = (4, 8), same_task: Bounds = (4, 8)) -> None:
        self._printer = StepFingerprinter(digest)
        self._depth = depth
        self._same_task = same_task

    def judge(self, window: bytes, begin: RunStart, now: float) -> StepEvaluation:
        """Judge a conversation that somebody started; `window` is b"" for a caller that is new.

        The same request once more starts nobody: it is judged as it was, and the window comes back as it is.
        """
        at_s = min(max(int(now), 0), _TIME_MAX)
        told, known = _load(window, at_s)
        text = folded(lowered(steady(own(_raw(begin.task[:_TASK_MAX])))))
        made = self._read(begin, text, at_s)
        at = next((at for at, one in enumerate(known) if _again(one, made)), len(known))
        again = known[at] if at < len(known) else None
        ancestors = _ancestors(known[:at], made.parent, made.agent)
        made = self._placed(made, text, ancestors) if again is None else _alive(again, at_s)
        others = known[:at] + known[at + 1 :]
        level, finding = _choose(self._findings(others, ancestors, made))
        identity = self._printer.of(b"loop", KIND.encode(), finding.key) if finding is not None else b""
        telling = _tell(told, _Told(identity, level, finding.hits)) if finding is not None else told
        fresh = telling is not told
        if fresh or made is not again:
            kept = [_alive(one, at_s) if one in ancestors else one for one in known]
            kept[at : at + 1] = [made]
            window = _dump(telling, kept[-SPAWNED:])
        if finding is None:
            return StepEvaluation(window, NOTHING)
        return StepEvaluation(window, level, KIND, finding.evidence, identity.hex(), fresh)

    def _read(self, begin: RunStart, text: bytes, at_s: int) -> _Spawned:
        """Return what a request says of itself, as if nobody were above it."""
        session, parent, agent = (
            self._id(_raw(begin.session)),
            self._id(_raw(begin.parent)),
            self._id(_raw(begin.agent)),
        )
        if parent == session:
            parent = _NOBODY
        root = parent if parent != _NOBODY else self._id(_raw(begin.root))
        size = len(text) if _TASK_MIN <= len(text) <= _SIZE_MAX else 0
        task, lane = self._id(text), _raw(begin.lane)
        family = self._id(text + b"\0" + steady(lane[:_TASK_MAX]) + lane[_TASK_MAX:])
        return _Spawned(session, parent, root, agent, task, family, size, 1, 1, 0, at_s, 0)

    def _placed(self, made: _Spawned, text: bytes, ancestors: Sequence[_Spawned]) -> _Spawned:
        """Return it as it stands to those above it."""
        if not ancestors:
            return made
        above = ancestors[0]
        alike = next((one for one in ancestors if self._same(one, made.task, text)), None)
        back = len(ancestors) > 1 and made.agent == ancestors[1].agent != above.agent
        return made._replace(
            root=above.root,
            family=made.family if alike is None else alike.family,
            depth=min(above.depth + 1, _COUNT_MAX),
            run=1 if alike is None else min(alike.run + 1, _COUNT_MAX),
            swaps=min(above.swaps + 1, _COUNT_MAX) if back else 0,
        )

    def _same(self, one: _Spawned, task: bytes, text: bytes) -> bool:
        """Tell whether a task is the one given before, or that one with something put before or behind it."""
        if one.task == task:
            return task != _NOBODY
        size = one.size
        return 0 < size < len(text) and one.task in (self._id(text[-size:]), self._id(text[:size]))

    def _findings(
        self, others: Sequence[_Spawned], ancestors: Sequence[_Spawned], made: _Spawned
    ) -> Iterator[tuple[int, Finding]]:
        key = made.root + made.family
        if made.run > 1:
            evidence = f"the same task was handed on {times(made.run)}, {made.depth} deep"
            yield _level(self._depth, made.run), Finding(KIND, made.run, key, evidence)
        if made.swaps and ancestors:
            deep = made.swaps + 2
            between = b"".join(sorted((made.agent, ancestors[0].agent)))
            evidence = f"two agents hand on to each other, {deep} deep"
            yield _level(self._depth, deep), Finding(KIND, deep, made.root + between, evidence)
        if made.size and made.root != _NOBODY:
            alike = [one for one in (*others, made) if one.family == made.family and one.root == made.root]
            deep = sum([one.run >= _GENERATIONS for one in alike])
            begun = [one.begun_s for one in alike if one.run < _GENERATIONS]
            hits = deep + (_in_turn(begun) if begun else 0.0)
            level = _level(self._same_task, hits)
            if not level and len(begun) - SAMPLES >= self._same_task[0]:
                level = NOTICE
            yield level, Finding(KIND, hits, key, f"the same task was given to {len(alike)} agents")

    def _id(self, raw: bytes) -> bytes:
        return self._printer.plain(raw)[:_ID_BYTES] if raw else _NOBODY


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _steady(text: str) -> str:
    return steady(own(text.encode("utf-8", "surrogatepass"))).decode("utf-8", "surrogatepass")


def _untagged(text: str) -> str:
    """Return a text without blocks in tags (`<environment_context>...</environment_context>`) before or behind it."""
    text = text.strip()
    while (opened := _OPENED(text)) and (end := text.find(f"</{opened[1]}>")) >= 0:
        text = text[end + len(opened[1]) + 3 :].lstrip()
    while (closed := _CLOSED(text, max(text.rfind("</"), 0))) and (start := text.rfind(f"<{closed[1]}")) >= 0:
        text = text[:start].rstrip()
    return text


def _again(one: _Spawned, made: _Spawned) -> bool:
    return one.session == made.session and one.parent == made.parent and one.task == made.task


def _ancestors(known: Sequence[_Spawned], parent: bytes, agent: bytes) -> list[_Spawned]:
    """Return those above, the nearest first; each has begun before the one below it."""
    found: list[_Spawned] = []
    at = _parent(known, parent, agent)
    while at >= 0 and len(found) < _ANCESTORS:
        one = known[at]
        found.append(one)
        at = _parent(known[:at], one.parent, one.agent)
    return found


def _parent(known: Sequence[_Spawned], parent: bytes, agent: bytes) -> int:
    """Return where a parent stands, -1 for nowhere. It goes by its session, or else by the name of another agent."""
    if parent == _NOBODY:
        return -1
    places = range(len(known) - 1, -1, -1)
    by_session = next((at for at in places if known[at].session == parent), -1)
    if by_session >= 0 or parent == agent:
        return by_session
    return next((at for at in places if known[at].agent == parent), -1)


def _in_turn(begun_s: Iterable[int]) -> float:
    """Return how many were started one after the other: at once counts once, and slow ones for less."""
    hits = 1.0
    for before, after in pairwise(sorted(begun_s)):
        gap = after - before
        if gap >= AT_ONCE_S:
            hits += weight_of(gap)
    return hits


def _level(bounds: Bounds, hits: float) -> int:
    notice, block = bounds
    return NOTHING if hits < notice else NOTICE if hits < block else BLOCK


def _choose(findings: Iterable[tuple[int, Finding]]) -> tuple[int, Finding | None]:
    """Return the most serious one; of equals the first."""
    best: tuple[int, Finding | None] = (NOTHING, None)
    for level, finding in findings:
        if level > best[0]:
            best = (level, finding)
    return best


def _tell(told: list[_Told], now: _Told) -> list[_Told]:
    """Return what was told with this in it, or the same list where it is not worth telling again."""
    before = next((one for one in told if one.identity == now.identity), None)
    if before is not None and now.level <= before.level and now.hits < 2 * before.hits:
        return told
    return [*[one for one in told if one is not before], now][-_TOLD_MAX:]


def _alive(one: _Spawned, at_s: int) -> _Spawned:
    """Return it with this sign of life, unless the last one was just now."""
    lasted = min(at_s - one.begun_s, 2**16 - 1)
    return one._replace(lasted_s=lasted) if lasted - one.lasted_s >= _SEEN_S else one


def _load(window: bytes, at_s: int) -> tuple[list[_Told], list[_Spawned]]:
    """Return what a window holds, without what nothing was heard of for long; of one that cannot be read, nothing."""
    if len(window) < 2 or window[0] != _VERSION or window[1] > _TOLD_MAX:
        return [], []
    entries = 2 + window[1] * _TOLD.size
    if len(window) < entries or (len(window) - entries) % _ENTRY.size:
        return [], []
    told = [_Told(*one) for one in _TOLD.iter_unpack(window[2:entries])]
    known = [_Spawned(*one) for one in _ENTRY.iter_unpack(window[entries:])]
    return told, [one for one in known[-SPAWNED:] if abs(at_s - one.begun_s - one.lasted_s) < RUN_IDLE_S]


def _dump(told: Sequence[_Told], known: Sequence[_Spawned]) -> bytes:
    """Return both packed."""
    head = bytes((_VERSION, len(told)))
    return b"".join([head, *[_TOLD.pack(*one) for one in told], *[_ENTRY.pack(*one) for one in known]])


class SpawnDetector(StatefulDetector):
    """Looks at conversations that begin, and that another one has begun."""

    __slots__ = ("_begin", "_detector")

    def __init__(
        self,
        config: DetectorConfig,
        ladder: SeverityActions,
        reads: CallReaders,
        detector: SpawnTracker,
        *,
        begin: Callable[[Call, str], RunStart],  # of a call and its task
    ) -> None:
        super().__init__(config, ladder, reads, "spawn:")
        self._detector = detector
        self._begin = begin

    def owner(self, call: Call) -> str:
        """Return the caller of a conversation that begins; "" for one that is under way, or that nobody has begun."""
        step = call.parsed.step or self._reads.step(call)
        if step is None or step.said or step.calls or step.results:
            return ""
        return self._reads.owner(call)

    def evaluate(self, call: Call, window: bytes, now: float) -> DetectorFinding | None:
        """Judge a conversation that begins; None for one that is under way."""
        step = self.newest(call, now)
        if step is None or step.said or step.calls or not step.users:
            return None
        return self._detector.judge(window, self._begin(call, task_of(step.users)), now)
