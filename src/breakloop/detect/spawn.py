"""Kind `spawn`: agents that start agents for the same task, or hand a task back and forth.

Part of a `similarity: steps` block. It looks at conversations that begin and that another conversation started. The
section of the caller's window, 3,054 bytes at most:

    version 1 and number of loops 1 · reported loops 4 x 11 · the last 64 spawned conversations x 47
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from breakloop.detect.counting import CallReader, DetectorConfig
from breakloop.detect.stateful import BLOCK, NOTHING, NOTICE, RUN_IDLE_S, Evaluation, StatefulDetector, caller_owner
from breakloop.detect.steps.findings import Finding, times
from breakloop.detect.steps.fingerprints import Digest, StepFingerprinter, folded, lowered, own, steady
from breakloop.detect.steps.waiting import weight_of
from breakloop.model.call import Call

KIND: Final = "spawn"
SPAWNED: Final = 64
SAMPLES: Final = 16  # so many children with the same task at once are samples of one question
AT_ONCE_S: Final = 2
_GENERATIONS: Final = 3  # a task that was handed on so often is not sampled, however fast the agents start

_VERSION: Final = 1
_REPORTED: Final = Struct("<8sBe")
_REPORTED_MAX: Final = 4
_ENTRY: Final = Struct("<6s6s6s6s6s6sHBBBIH")
_ID_BYTES: Final = 6
_NO_ID: Final = bytes(_ID_BYTES)
_ANCESTORS: Final = 16
_TASK_MAX: Final = 16 * 1024  # characters that are compared
_TASK_MIN: Final = 20  # bytes; shorter ones ("begin", "go on") do not describe a task
_SEEN_S: Final = 30  # a time is updated after this many seconds
_COUNT_MAX: Final = 255
_SIZE_MAX: Final = 2**16 - 1
_TIME_MAX: Final = 2**32 - 1
_OPENED: Final = re.compile(r"<([A-Za-z][\w-]{0,60})[^<>]{0,200}>").match
_CLOSED: Final = re.compile(r"</([A-Za-z][\w-]{0,60})>\Z").match

Bounds = tuple[float, float]  # notice, block


class RunStart(NamedTuple):
    """A conversation that begins: it contains no answer of the model yet."""

    session: str
    parent: str  # session or agent that started it; "" if only the trace is known
    root: str  # trace id, or ""
    agent: str
    task: str  # see `task_of`
    system: str = ""  # model and system prompt: some agents have their task there, and all begin with the same words


def task_of(users: Sequence[str]) -> str:
    """Return the task: the last text that does not consist of context in tags, as harnesses add it."""
    for text in reversed(users):
        task = _untagged(text[:_TASK_MAX])
        if task:
            return task
    return users[-1] if users else ""


class _Spawned(NamedTuple):
    """A spawned conversation: digests, and its position below its ancestors."""

    session: bytes
    parent: bytes
    root: bytes  # the same in the whole tree
    agent: bytes
    task: bytes
    family: bytes  # the task as it was first given, with the system prompt
    size: int  # of the task in bytes; 0: not compared
    depth: int
    run: int  # how many generations in a row have the task, this one included
    swaps: int  # for how many generations in a row the agent is that of its grandparent and not of its parent
    begun_s: int
    lasted_s: int  # until it was last active: a child, or the same request again


class _Reported(NamedTuple):
    identity: bytes
    level: int
    hits: float


class SpawnDetector(StatefulDetector):
    """Evaluates conversations when they begin."""

    __slots__ = ("_depth", "_fingerprints", "_same_task")

    def __init__(
        self,
        config: DetectorConfig,
        read: CallReader,
        digest: Digest,
        depth: Bounds = (4, 8),
        same_task: Bounds = (4, 8),
    ) -> None:
        super().__init__(config, read, "spawn:")
        self._fingerprints = StepFingerprinter(digest)
        self._depth = depth
        self._same_task = same_task

    def owner(self, call: Call) -> str:
        """Return the caller; "" if the conversation is under way or no other conversation started it."""
        read = self._read
        step = call.parsed.step or read.step(call)
        if step is None or step.said or step.calls or step.results:
            return ""
        return caller_owner(read, call) if read.parent(call) or read.trace(call) else ""

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        step = self._read.step(call)
        if step is None or step.said or step.calls or not step.users:
            return None
        read = self._read
        names = (read.session(call), read.parent(call), read.trace(call), read.agent(call))
        return self.evaluate_start(window, RunStart(*names, task_of(step.users), read.model_and_system(call)), now)

    def evaluate_start(self, window: bytes, start: RunStart, now: float) -> Evaluation:
        """Evaluate the start of a conversation. The same request again starts nothing: it gets the same evaluation, and
        the section stays the same object."""
        at_s = min(max(int(now), 0), _TIME_MAX)
        reported, known = _load(window, at_s)
        text = folded(lowered(steady(own(_encoded(start.task[:_TASK_MAX])))))
        spawned = self._spawned(start, text, at_s)
        at = next((at for at, one in enumerate(known) if _is_same(one, spawned)), len(known))
        again = known[at] if at < len(known) else None
        ancestors = _ancestors(known[:at], spawned.parent, spawned.agent)
        spawned = self._below(spawned, text, ancestors) if again is None else _active(again, at_s)
        others = known[:at] + known[at + 1 :]
        level, finding = _choose(self._findings(others, ancestors, spawned))
        identity = self._fingerprints.of(b"loop", KIND.encode(), finding.key) if finding is not None else b""
        after = _report(reported, _Reported(identity, level, finding.hits)) if finding is not None else reported
        fresh = after is not reported
        if fresh or spawned is not again:
            kept = [_active(one, at_s) if one in ancestors else one for one in known]
            kept[at : at + 1] = [spawned]
            window = _dump(after, kept[-SPAWNED:])
        if finding is None:
            return Evaluation(window)
        return Evaluation(window, level, KIND, finding.evidence, identity.hex(), fresh)

    def _spawned(self, start: RunStart, text: bytes, at_s: int) -> _Spawned:
        """Return a conversation as its first request describes it, without ancestors."""
        session, parent, agent = [self._id(_encoded(one)) for one in (start.session, start.parent, start.agent)]
        if parent == session:
            parent = _NO_ID
        root = parent if parent != _NO_ID else self._id(_encoded(start.root))
        size = len(text) if _TASK_MIN <= len(text) <= _SIZE_MAX else 0
        task, system = self._id(text), _encoded(start.system)
        family = self._id(text + b"\0" + steady(system[:_TASK_MAX]) + system[_TASK_MAX:])
        return _Spawned(session, parent, root, agent, task, family, size, 1, 1, 0, at_s, 0)

    def _below(self, spawned: _Spawned, text: bytes, ancestors: Sequence[_Spawned]) -> _Spawned:
        """Return a conversation with what it inherits from its ancestors."""
        if not ancestors:
            return spawned
        parent = ancestors[0]
        alike = next((one for one in ancestors if self._has_task(one, spawned.task, text)), None)
        back = len(ancestors) > 1 and spawned.agent == ancestors[1].agent != parent.agent
        return spawned._replace(
            root=parent.root,
            family=spawned.family if alike is None else alike.family,
            depth=min(parent.depth + 1, _COUNT_MAX),
            run=1 if alike is None else min(alike.run + 1, _COUNT_MAX),
            swaps=min(parent.swaps + 1, _COUNT_MAX) if back else 0,
        )

    def _has_task(self, one: _Spawned, task: bytes, text: bytes) -> bool:
        """Tell whether a task is that of an earlier conversation, with or without text added before or after it."""
        if one.task == task:
            return task != _NO_ID
        size = one.size
        return 0 < size < len(text) and one.task in (self._id(text[-size:]), self._id(text[:size]))

    def _findings(
        self, others: Sequence[_Spawned], ancestors: Sequence[_Spawned], spawned: _Spawned
    ) -> Iterator[tuple[int, Finding]]:
        key = spawned.root + spawned.family
        if spawned.run > 1:
            evidence = f"the same task was handed on {times(spawned.run)}, {spawned.depth} deep"
            yield _level(self._depth, spawned.run), Finding(KIND, spawned.run, key, evidence)
        if spawned.swaps and ancestors:
            deep = spawned.swaps + 2
            between = b"".join(sorted((spawned.agent, ancestors[0].agent)))
            evidence = f"two agents hand on to each other, {deep} deep"
            yield _level(self._depth, deep), Finding(KIND, deep, spawned.root + between, evidence)
        if spawned.size and spawned.root != _NO_ID:
            alike = [one for one in (*others, spawned) if one.family == spawned.family and one.root == spawned.root]
            deep = sum([one.run >= _GENERATIONS for one in alike])
            begun = [one.begun_s for one in alike if one.run < _GENERATIONS]
            hits = deep + (_started_in_turn(begun) if begun else 0.0)
            level = _level(self._same_task, hits)
            if not level and len(begun) - SAMPLES >= self._same_task[0]:
                level = NOTICE
            yield level, Finding(KIND, hits, key, f"the same task was given to {len(alike)} agents")

    def _id(self, raw: bytes) -> bytes:
        return self._fingerprints.plain(raw)[:_ID_BYTES] if raw else _NO_ID


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _untagged(text: str) -> str:
    """Return a text without blocks in tags (`<environment_context>...</environment_context>`) before or after it."""
    text = text.strip()
    while (opened := _OPENED(text)) and (end := text.find(f"</{opened[1]}>")) >= 0:
        text = text[end + len(opened[1]) + 3 :].lstrip()
    while (closed := _CLOSED(text, max(text.rfind("</"), 0))) and (start := text.rfind(f"<{closed[1]}")) >= 0:
        text = text[:start].rstrip()
    return text


def _is_same(one: _Spawned, other: _Spawned) -> bool:
    return one.session == other.session and one.parent == other.parent and one.task == other.task


def _ancestors(known: Sequence[_Spawned], parent: bytes, agent: bytes) -> list[_Spawned]:
    """Return the ancestors, parent first; each has begun before its child."""
    found: list[_Spawned] = []
    at = _parent(known, parent, agent)
    while at >= 0 and len(found) < _ANCESTORS:
        one = known[at]
        found.append(one)
        at = _parent(known[:at], one.parent, one.agent)
    return found


def _parent(known: Sequence[_Spawned], parent: bytes, agent: bytes) -> int:
    """Return the index of a parent, -1 for none. It is identified by its session, else by the name of another agent."""
    if parent == _NO_ID:
        return -1
    indexes = range(len(known) - 1, -1, -1)
    by_session = next((at for at in indexes if known[at].session == parent), -1)
    if by_session >= 0 or parent == agent:
        return by_session
    return next((at for at in indexes if known[at].agent == parent), -1)


def _started_in_turn(begun_s: Iterable[int]) -> float:
    """Return how many were started one after the other: several at once count once, and slow ones less."""
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
    """Return the finding with the highest level; the first of equals."""
    best: tuple[int, Finding | None] = (NOTHING, None)
    for level, finding in findings:
        if level > best[0]:
            best = (level, finding)
    return best


def _report(reported: list[_Reported], now: _Reported) -> list[_Reported]:
    """Return the reported loops with this one; the same list if it was reported at this level and half the count."""
    before = next((one for one in reported if one.identity == now.identity), None)
    if before is not None and now.level <= before.level and now.hits < 2 * before.hits:
        return reported
    return [*[one for one in reported if one is not before], now][-_REPORTED_MAX:]


def _active(one: _Spawned, at_s: int) -> _Spawned:
    """Return a conversation as active now; the same object if it was active a moment ago."""
    lasted = min(at_s - one.begun_s, 2**16 - 1)
    return one._replace(lasted_s=lasted) if lasted - one.lasted_s >= _SEEN_S else one


def _load(window: bytes, at_s: int) -> tuple[list[_Reported], list[_Spawned]]:
    """Return reported loops and conversations, without those inactive for long; nothing if the data cannot be read."""
    if len(window) < 2 or window[0] != _VERSION or window[1] > _REPORTED_MAX:
        return [], []
    entries = 2 + window[1] * _REPORTED.size
    if len(window) < entries or (len(window) - entries) % _ENTRY.size:
        return [], []
    reported = [_Reported(*one) for one in _REPORTED.iter_unpack(window[2:entries])]
    known = [_Spawned(*one) for one in _ENTRY.iter_unpack(window[entries:])]
    return reported, [one for one in known[-SPAWNED:] if abs(at_s - one.begun_s - one.lasted_s) < RUN_IDLE_S]


def _dump(reported: Sequence[_Reported], known: Sequence[_Spawned]) -> bytes:
    head = bytes((_VERSION, len(reported)))
    return b"".join([head, *[_REPORTED.pack(*one) for one in reported], *[_ENTRY.pack(*one) for one in known]])
