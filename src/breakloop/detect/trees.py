"""Trees of agents that start each other. Two kinds of loops:

- `tree`: too many agents, too deep, or started too fast. Only the start of a new agent is denied: those at work go on.
- `spawn`: agents start agents for the same task, or hand a task back and forth.

Part of a `similarity: steps` block. Each tree of a caller has a window (`Tree`, `policy.trees`). An agent is in it from
its first request on. It is alive until it gave its final answer (text without calls), or was inactive for ten minutes.
The section of the window, 5,354 bytes at most with the default limits, and 54 bytes for each agent that higher limits
allow:

    version, number of reported loops, number of names, agents in total, their tokens and micro-dollars 23 · reported
    loops 4 x 11 · names of agents 8 x 39 · agents 92 x 54: the newest, and those at work

Agents that name an agent instead of a session as their parent may belong to any tree. They are only compared by task,
in the window of the caller.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from breakloop.detect.advice import TREE
from breakloop.detect.counting import CallReader, DetectorConfig
from breakloop.detect.stateful import (
    BLOCK,
    NOTHING,
    NOTICE,
    RUN_IDLE_S,
    Detection,
    DetectorSlot,
    Evaluation,
    StatefulDetector,
    caller_owner,
)
from breakloop.detect.steps.findings import Finding, times
from breakloop.detect.steps.fingerprints import Digest, StepFingerprinter, folded, lowered, own, steady
from breakloop.detect.steps.waiting import weight_of
from breakloop.dialects import text_actions
from breakloop.formatting import money, plural
from breakloop.model.call import NO_TREE, TOOL_DIALECTS, Answer, Call, Chat, Step, Tree
from breakloop.model.verdict import LoopFinding
from breakloop.store.keys import escape
from breakloop.store.ops import FingerprintCount, FingerprintSpec, Op

ENDED: Final = "x-agent-ended"  # header field of the last request of an agent
SPAWN: Final = "spawn"
KEPT: Final = 64  # agents whose tasks are compared, at least
_SAMPLES: Final = 16  # so many children with the same task at once are samples of one question
AT_ONCE_S: Final = 2
MINUTE_S: Final = 60
_GENERATIONS: Final = 3  # a task that was handed on so often is not sampled, however fast the agents start
_NESTED: Final = 3  # depth of the first agents that agents other than the root have started

_VERSION: Final = 3
_HEAD: Final = Struct("<BBBIQQ")
_REPORTED: Final = Struct("<8sBe")
_REPORTED_MAX: Final = 4
_ENTRY: Final = Struct("<6s6s6s6s6s6s6sHBBBBIH")
_NAME: Final = Struct("<6s33p")  # a longer name is cut
_NAMES_MAX: Final = 8
_SHOWN: Final = 3  # agents that are named as starting others
_ID_BYTES: Final = 6
_NO_ID: Final = bytes(_ID_BYTES)
_ENDED: Final = 1  # flag of an agent: it gave its final answer
_ANCESTORS: Final = 16
_TASK_MAX: Final = 16 * 1024  # characters that are compared
_TASK_MIN: Final = 20  # bytes; shorter ones ("begin", "go on") do not describe a task
_WORDS_MIN: Final = 4
_SEEN_S: Final = 30  # a time is updated after this many seconds
_COUNT_MAX: Final = 255
_SIZE_MAX: Final = 2**16 - 1
_LASTED_MAX: Final = 2**16 - 1
_TIME_MAX: Final = 2**32 - 1
_TOTAL_MAX: Final = 2**32 - 1
_SPENT_MAX: Final = 2**53
_OPENED: Final = re.compile(r"<([A-Za-z][\w-]{0,60})[^<>]{0,200}>").match
_CLOSED: Final = re.compile(r"</([A-Za-z][\w-]{0,60})>\Z").match
_MARKS: Final = b".,;:!?\"'()[]{}*`-"  # around words
# Words that the same task has or does not have.
_FILLING: Final = frozenset(
    b"a an and again also as at be by can could do for from go here i in into is it its just kindly let me more my "
    b"next now of on once or our please so still that the then there these this those to too try urgent us use using "
    b"want we will with would you your".split()
)

Bounds = tuple[float, float]  # the counts of a notice and of a block


class TreeBounds(NamedTuple):
    """The counts from which a tree is reported, and from which an agent is not started. The root is included."""

    agents: Bounds = (25, 61)  # alive
    depth: Bounds = (4, 9)
    started: Bounds = (15, 31)  # within a minute, by others than the root

    @property
    def kept(self) -> int:
        """How many agents have to be known, so that each count can reach its limit."""
        counted = [int(block) for _, block in (self.agents, self.started) if block < float("inf")]
        return max(KEPT, sum(counted))


class RunStart(NamedTuple):
    """A conversation that begins: it contains no answer of the model yet."""

    session: str
    parent: str  # session or agent that started it; "" if only the root is known
    agent: str
    task: str  # see `task_of`
    system: str = ""  # model and system prompt: some agents have their task there, and all begin with the same words
    tree: Tree = NO_TREE  # without one, only tasks are compared
    name: str = ""  # of the agent, for people; "" if the client does not name it


def task_of(users: Sequence[str]) -> str:
    """Return the task: the last text that does not consist of context in tags, as harnesses add it."""
    for text in reversed(users):
        task = _untagged(text[:_TASK_MAX])
        if task:
            return task
    return users[-1] if users else ""


class _Agent(NamedTuple):
    """An agent: digests, and its position below its ancestors."""

    session: bytes
    parent: bytes
    root: bytes  # the same in the whole tree
    agent: bytes
    task: bytes
    words: bytes  # the different words of the task
    family: bytes  # the task as it was first given, with the system prompt
    size: int  # of the task in bytes; 0: not compared
    depth: int
    run: int  # how many generations in a row have the task, this one included
    swaps: int  # for how many generations in a row the agent is that of its grandparent and not of its parent
    flags: int
    begun_s: int
    lasted_s: int  # until it was last active: a request of its own, or a child

    @property
    def alive(self) -> bool:
        return not self.flags & _ENDED


class _Reported(NamedTuple):
    identity: bytes
    level: int
    hits: float


class _Section(NamedTuple):
    """What a window contains."""

    reported: list[_Reported]
    names: dict[bytes, bytes]  # of agents, by digest
    known: list[_Agent]
    total: int  # agents that were started
    tokens: int = 0  # of all agents, without the root
    microusd: int = 0

    def named(self, key: bytes, name: str) -> dict[bytes, bytes]:
        """Return the names with one more; the same object if it is among them. The oldest is dropped."""
        if not name or key in self.names:
            return self.names
        return dict([*self.names.items(), (key, _encoded(name))][-_NAMES_MAX:])


class TreeEvaluation(Evaluation, frozen=True, gc=False):
    """What was found when an agent began."""

    refused: bool = False  # the tree is full


class TreeDetection(Detection):
    """What was found in a tree. What is said about a task differs from what is said about a number of agents."""

    __slots__ = ()

    def finding(self, op: Op, result: FingerprintCount) -> LoopFinding:
        """Return the loop as verdicts and events describe it."""
        found = super().finding(op, result)
        if self.kind != TREE:
            return found
        return replace(found, message=f"Not started: {self.evidence}. {self._advice.instead}")

    def note(self, loop: LoopFinding) -> str:
        """Return the sentence that is added to the conversation of a model that is steered."""
        if self.kind != TREE:
            return super().note(loop)
        return f"{self.evidence[0].upper()}{self.evidence[1:]}. {self._advice.instead}"


class TreeEvaluator:
    """Evaluates what happens in a tree, with what is known about it so far."""

    def __init__(
        self,
        digest: Digest,
        depth: Bounds = (4, 8),
        same_task: Bounds = (4, 8),
        limits: TreeBounds = TreeBounds(),  # noqa: B008 - immutable
    ) -> None:
        self._fingerprints = StepFingerprinter(digest)
        self._depth = depth  # generations that hand the same task on
        self._same_task = same_task
        self._limits = limits

    def evaluate_start(self, window: bytes, start: RunStart, now: float) -> Evaluation:
        """Evaluate the start of a conversation. The same request again starts nothing: it gets the same evaluation, and
        the section stays the same object."""
        at_s = min(max(int(now), 0), _TIME_MAX)
        section = _load(window, at_s)
        known, total = section.known, section.total
        text = folded(lowered(steady(own(_encoded(start.task[:_TASK_MAX])))))
        agent = self._agent(start, text, at_s)
        at = next((at for at, one in enumerate(known) if _is_same(one, agent)), len(known))
        again = known[at] if at < len(known) else None
        ancestors = _ancestors(known[:at], agent.parent, agent.agent)
        agent = self._below(agent, text, ancestors, start.tree) if again is None else _active(again, at_s)
        others = known[:at] + known[at + 1 :]
        is_new = agent.session not in [one.session for one in known]
        refused, kind = False, SPAWN
        level, finding = _choose(self._findings(others, ancestors, agent))
        if is_new and start.tree.depth > 1:
            over, found = _choose(self._limits_reached([*known, agent], agent, at_s, section))
            over = min(over, NOTICE) if start.tree.by_trace else over
            refused = over == BLOCK
            if over > level:
                level, finding, kind = over, found, TREE
        identity = self._fingerprints.of(b"loop", kind.encode(), finding.key) if finding is not None else b""
        before = section.reported
        reported = _report(before, _Reported(identity, level, finding.hits)) if finding is not None else before
        fresh = reported is not before
        if refused:
            window = _dump(section._replace(reported=reported)) if fresh else window
        elif fresh or agent is not again:
            kept = [_active(one, at_s) if one in ancestors else one for one in known]
            kept[at : at + 1] = [agent]
            kept, total = _kept(kept, self._limits.kept, at_s), min(total + is_new, _TOTAL_MAX)
            names = section.named(agent.agent, start.name)
            window = _dump(section._replace(reported=reported, names=names, known=kept, total=total))
        if finding is None:
            return Evaluation(window)
        return TreeEvaluation(window, level, kind, finding.evidence, identity.hex(), fresh, refused=refused)

    def evaluate_work(self, window: bytes, start: RunStart, now: float) -> Evaluation:
        """Evaluate a request of an agent at work, which is never denied. The section stays the same object if the agent
        was active a moment ago."""
        at_s = min(max(int(now), 0), _TIME_MAX)
        section = _load(window, at_s)
        known, total = section.known, section.total
        key = self._id(_encoded(start.session))
        if key == _NO_ID:
            return Evaluation(window)
        after = [_active(one, at_s) if one.session == key else one for one in known]
        if not any(one.session == key for one in known):  # it was forgotten, or began before this process
            one = self._agent(start, b"", max(at_s - MINUTE_S, 0))._replace(lasted_s=min(at_s, MINUTE_S))
            after, total = _kept([*known, one], self._limits.kept, at_s), max(total, len(known) + 1)
        elif all(one is before for one, before in zip(after, known, strict=True)):
            return Evaluation(window)
        return Evaluation(_dump(section._replace(known=after, total=total)))

    def used(self, window: bytes, tokens: int, microusd: int) -> bytes:
        """Return the window after an answer to an agent; the same object if it has cost nothing."""
        if len(window) < _HEAD.size or window[0] != _VERSION or not tokens + microusd:
            return window
        *head, before, cost = _HEAD.unpack_from(window)
        sums = min(before + tokens, _SPENT_MAX), min(cost + microusd, _SPENT_MAX)
        return _HEAD.pack(*head, *sums) + window[_HEAD.size :]

    def ended(self, window: bytes, session: str) -> bytes:
        """Return the window after an agent has ended; the same object if it is not in it."""
        key, section = self._id(_encoded(session)), _unpack(window)
        if not any(one.session == key and one.alive for one in section.known):
            return window
        after = [one._replace(flags=one.flags | _ENDED) if one.session == key else one for one in section.known]
        return _dump(section._replace(known=after))

    def _agent(self, start: RunStart, text: bytes, at_s: int) -> _Agent:
        """Return an agent as its first request describes it, without ancestors."""
        session, parent, agent = [self._id(_encoded(one)) for one in (start.session, start.parent, start.agent)]
        if parent == session:
            parent = _NO_ID
        root = self._id(_encoded(start.tree.root)) if start.tree.root else parent
        size = len(text) if _TASK_MIN <= len(text) <= _SIZE_MAX else 0
        task, system = self._id(text), _encoded(start.system)
        words = _words(text) if size else b""
        family = self._id((words or text) + b"\0" + steady(system[:_TASK_MAX]) + system[_TASK_MAX:])
        depth = min(max(start.tree.depth, 2), _COUNT_MAX)
        return _Agent(session, parent, root, agent, task, self._id(words), family, size, depth, 1, 0, 0, at_s, 0)

    def _below(self, agent: _Agent, text: bytes, ancestors: Sequence[_Agent], tree: Tree) -> _Agent:
        """Return an agent with what it inherits from its ancestors."""
        if not ancestors:
            return agent
        parent = ancestors[0]
        alike = next((one for one in ancestors if self._has_task(one, agent, text)), None)
        back = len(ancestors) > 1 and agent.agent == ancestors[1].agent != parent.agent
        return agent._replace(
            root=agent.root if tree.root else parent.root,
            family=agent.family if alike is None else alike.family,
            depth=agent.depth if tree.root else min(parent.depth + 1, _COUNT_MAX),
            run=1 if alike is None else min(alike.run + 1, _COUNT_MAX),
            swaps=min(parent.swaps + 1, _COUNT_MAX) if back else 0,
        )

    def _has_task(self, one: _Agent, agent: _Agent, text: bytes) -> bool:
        """Tell whether a task is that of an earlier agent: the same words, or with text added before or after it."""
        if one.task == agent.task:
            return agent.task != _NO_ID
        if one.words == agent.words != _NO_ID:
            return True
        size = one.size
        return 0 < size < len(text) and one.task in (self._id(text[-size:]), self._id(text[:size]))

    def _findings(
        self, others: Sequence[_Agent], ancestors: Sequence[_Agent], agent: _Agent
    ) -> Iterator[tuple[int, Finding]]:
        """Yield what is found about the task."""
        key = agent.root + agent.family
        if agent.run > 1:
            evidence = f"the same task was handed on {times(agent.run)}, {agent.depth} deep"
            yield _level(self._depth, agent.run), Finding(SPAWN, agent.run, key, evidence)
        if agent.swaps and ancestors:
            deep = agent.swaps + 2
            between = b"".join(sorted((agent.agent, ancestors[0].agent)))
            evidence = f"two agents hand on to each other, {deep} deep"
            yield _level(self._depth, deep), Finding(SPAWN, deep, agent.root + between, evidence)
        if agent.size and agent.root != _NO_ID:
            alike = [one for one in (*others, agent) if one.family == agent.family and one.root == agent.root]
            deep = sum([one.run >= _GENERATIONS for one in alike])
            begun = [one.begun_s for one in alike if one.run < _GENERATIONS]
            hits = deep + (_started_in_turn(begun) if begun else 0.0)
            level = _level(self._same_task, hits)
            if not level and len(begun) - _SAMPLES >= self._same_task[0]:
                level = NOTICE
            yield level, Finding(SPAWN, hits, key, f"the same task was given to {len(alike)} agents")

    def _limits_reached(
        self, agents: Sequence[_Agent], agent: _Agent, at_s: int, section: _Section
    ) -> Iterator[tuple[int, Finding]]:
        """Yield what is found about the number of agents, the new one included."""
        limits = self._limits
        alive = {one.session: one.depth for one in agents if one.alive}
        count = len(alive) + 1  # the root
        fast = 0
        if agent.depth >= _NESTED:
            fast = len({one.session for one in agents if one.depth >= _NESTED and at_s - one.begun_s < MINUTE_S})
        reached = (
            (limits.agents, count, b"agents", f"{count} agents of one tree are at work"),
            (limits.depth, agent.depth, b"depth", f"agents start agents, {agent.depth} deep"),
            (limits.started, fast, b"started", f"agents of one tree started {fast} others within a minute"),
        )
        for bounds, hits, what, evidence in reached:
            level = _level(bounds, hits)
            if level:
                total = min(section.total + 2, _TOTAL_MAX)  # with the root and this one
                who = _starters(agents, section.names)
                cost = _cost(section)
                shown = f"{evidence} ({_shape(alive.values())} by depth, {total} in total{who}{cost})"
                yield level, Finding(TREE, hits, agent.root + what, shown)

    def _id(self, raw: bytes) -> bytes:
        return self._fingerprints.plain(raw)[:_ID_BYTES] if raw else _NO_ID


class TreeDetector(StatefulDetector):
    """Evaluates agents when they begin, and knows which of them are alive."""

    __slots__ = ("_always", "evaluator")

    detection = TreeDetection

    def __init__(self, config: DetectorConfig, read: CallReader, evaluator: TreeEvaluator) -> None:
        super().__init__(config, read, "spawn:")  # names its section in stored windows: never change it
        self.evaluator = evaluator
        # A full tree stays full: unlike a loop, it is not tried again after a cooldown.
        self._always = replace(config.cooldown, limit=0, growth=1.0)

    def plan(self, call: Call, project: str, group: int, now: float) -> DetectorSlot | None:
        """Return the slot for a call that begins a conversation, or whose header fields name its tree."""
        read = self._read
        step = call.parsed.step or read.step(call)
        if step is None or ((step.said or step.calls or step.results) and not read.states_tree(call)):
            return None
        return super().plan(call, project, group, now)

    def owner(self, call: Call) -> str:
        """Return caller and tree, or the caller if the tree is not known; "" for a call that nobody started. Of a
        conversation that is under way, only header fields are looked at."""
        read = self._read
        step = call.parsed.step or read.step(call)
        if step is None:
            return ""
        if _is_under_way(step):
            if not read.states_tree(call) or _calls_tool(call):
                return ""
            tree = read.tree(call)
            return _owner(read, call, tree) if tree.depth > 1 and not tree.by_trace else ""
        tree = read.tree(call)
        if tree.depth > 1:
            return _owner(read, call, tree)
        return caller_owner(read, call) if read.parent(call) else ""

    def is_advisory(self, call: Call) -> bool:
        """Whether the window need not be written: that an agent is alive is seen at its next request, too."""
        step = self._read.step(call)
        return step is not None and _is_under_way(step)

    def evaluate(self, call: Call, window: bytes, now: float) -> Evaluation | None:
        read = self._read
        step = read.step(call)
        if step is None:
            return None
        tree = read.tree(call)
        agent = read.agent(call)
        start = RunStart(read.session(call), tree.parent or read.parent(call), agent, "", "", tree)
        if _is_under_way(step):
            found = self.evaluator.evaluate_work(window, start, now)
            return Evaluation(self.evaluator.ended(found.window, start.session)) if ENDED in call.headers else found
        if not step.users:
            return None
        task, system = task_of(step.users), read.model_and_system(call)
        name = agent if agent != read.caller(call) else ""
        return self.evaluator.evaluate_start(window, start._replace(task=task, system=system, name=name), now)

    def awaits_answer(self, call: Call, _evaluation: Evaluation) -> bool:
        return call.tracked and self._read.tree(call).depth > 1

    def answered_call(self, window: bytes, answer: Answer, call: Call) -> bytes:
        """Record what an answer has cost, and the final answer of an agent: a text that neither calls a tool nor
        contains an action."""
        usage = answer.usage
        if usage is not None:
            tokens = usage.input_tokens + usage.output_tokens
            window = self.evaluator.used(window, tokens, call.decision.microusd)
        if answer.failed or answer.calls or not answer.complete or not answer.text or text_actions.read(answer.text):
            return window
        return self.evaluator.ended(window, self._read.session(call))

    def _can_land(self, call: Call, evaluation: Evaluation) -> bool:
        """An agent that is to finish at once has been started all the same."""
        return evaluation.kind != TREE and super()._can_land(call, evaluation)

    def _cooldown(self, evaluation: Evaluation) -> FingerprintSpec:
        return self._always if isinstance(evaluation, TreeEvaluation) and evaluation.refused else self.config.cooldown


def _owner(read: CallReader, call: Call, tree: Tree) -> str:
    return f"{caller_owner(read, call)}|{escape(tree.root)}"


def _is_under_way(step: Step) -> bool:
    return bool(step.said or step.calls or step.results)


def _calls_tool(call: Call) -> bool:
    """Tell whether a request is for a tool or another agent (MCP, A2A): its session may be that of a connection, and
    not of an agent."""
    chat = call.parsed.chat
    return isinstance(chat, Chat) and chat.dialect in TOOL_DIALECTS


def _shape(depths: Iterable[int]) -> str:
    """Return how many agents are alive at each depth, from the root down: "1 > 2 > 10"."""
    found = Counter(depths)
    return " > ".join(["1", *[str(found[depth]) for depth in sorted(found)]])


def _starters(agents: Sequence[_Agent], names: dict[bytes, bytes]) -> str:
    """Return which agents started the most others, as far as they are named."""
    by_session = {one.session: one.agent for one in agents}
    started = Counter([by_session[one.parent] for one in agents if one.parent in by_session])
    most = [
        (names[agent].decode("utf-8", "replace"), count) for agent, count in started.most_common() if agent in names
    ]
    return "".join([f"; {name} started {count}" for name, count in most[:_SHOWN]])


def _cost(section: _Section) -> str:
    """Return what the agents have used so far; "" if nothing is known."""
    if not section.tokens:
        return ""
    used = plural(section.tokens, "token")
    return f"; {used}, {money(section.microusd / 1_000_000)}" if section.microusd else f"; {used}"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _words(text: bytes) -> bytes:
    """Return the different words of a task, in order of the alphabet; b"" if there are too few to compare. Marks inside
    of words stay: names of files and numbers make another task."""
    found = {word.strip(_MARKS) for word in text.split()} - _FILLING
    found.discard(b"")
    return b" ".join(sorted(found)) if len(found) >= _WORDS_MIN else b""


def _untagged(text: str) -> str:
    """Return a text without blocks in tags (`<environment_context>...</environment_context>`) before or after it."""
    text = text.strip()
    while (opened := _OPENED(text)) and (end := text.find(f"</{opened[1]}>")) >= 0:
        text = text[end + len(opened[1]) + 3 :].lstrip()
    while (closed := _CLOSED(text, max(text.rfind("</"), 0))) and (start := text.rfind(f"<{closed[1]}")) >= 0:
        text = text[:start].rstrip()
    return text


def _is_same(one: _Agent, other: _Agent) -> bool:
    return one.session == other.session and one.parent == other.parent and one.task == other.task


def _ancestors(known: Sequence[_Agent], parent: bytes, agent: bytes) -> list[_Agent]:
    """Return the ancestors, parent first; each has begun before its child."""
    found: list[_Agent] = []
    at = _parent(known, parent, agent)
    while at >= 0 and len(found) < _ANCESTORS:
        one = known[at]
        found.append(one)
        at = _parent(known[:at], one.parent, one.agent)
    return found


def _parent(known: Sequence[_Agent], parent: bytes, agent: bytes) -> int:
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


def _active(one: _Agent, at_s: int) -> _Agent:
    """Return an agent as active now; the same object if it was active a moment ago."""
    lasted = min(at_s - one.begun_s, _LASTED_MAX)
    if one.alive and lasted - one.lasted_s < _SEEN_S:
        return one
    return one._replace(lasted_s=max(lasted, one.lasted_s), flags=one.flags & ~_ENDED)


def _kept(known: list[_Agent], most: int, at_s: int) -> list[_Agent]:
    """Return the agents that are kept. Those that have ended go first, the ones that began in the last minute last."""
    excess = len(known) - most
    if excess <= 0:
        return known
    indexes = sorted(range(len(known)), key=lambda at: (known[at].alive, at_s - known[at].begun_s < MINUTE_S, at))
    dropped = set(indexes[:excess])
    return [one for at, one in enumerate(known) if at not in dropped]


def _load(window: bytes, at_s: int) -> _Section:
    """Return what a window contains, without agents that were inactive for long."""
    section = _unpack(window)
    known = [one for one in section.known if abs(at_s - one.begun_s - one.lasted_s) < RUN_IDLE_S]
    return section if len(known) == len(section.known) else section._replace(known=known)


def _unpack(window: bytes) -> _Section:
    """Return what a window contains; nothing if the data cannot be read."""
    nothing = _Section([], {}, [], 0)
    if len(window) < _HEAD.size:
        return nothing
    version, reports, named, total, tokens, microusd = _HEAD.unpack_from(window)
    names = _HEAD.size + reports * _REPORTED.size
    agents = names + named * _NAME.size
    if version != _VERSION or len(window) < agents or (len(window) - agents) % _ENTRY.size:
        return nothing
    return _Section(
        [_Reported(*one) for one in _REPORTED.iter_unpack(window[_HEAD.size : names])],
        dict(_NAME.iter_unpack(window[names:agents])),
        [_Agent(*one) for one in _ENTRY.iter_unpack(window[agents:])],
        total,
        tokens,
        microusd,
    )


def _dump(section: _Section) -> bytes:
    reported, names, known, *sums = section
    return b"".join([
        _HEAD.pack(_VERSION, len(reported), len(names), *sums),
        *[_REPORTED.pack(*one) for one in reported],
        *[_NAME.pack(*one) for one in names.items()],
        *[_ENTRY.pack(*one) for one in known],
    ])  # fmt: skip
