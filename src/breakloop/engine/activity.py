"""Activity records for the history: totals per agent and loop, and the last steps of each session.

The engine records activity only if it is enabled. The cost per request is a few additions and two short digests.
Only names, digests and counts are stored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

import xxhash

from breakloop.engine.decision_state import state_of
from breakloop.engine.metering import Meter
from breakloop.model.call import CHARS_A_TOKEN, Answer, Call, Step, Tree, Usage
from breakloop.model.decision import PAUSED
from breakloop.model.events import (
    LOOP_DETECTED,
    Activity,
    AgentUse,
    Event,
    LoopKey,
    LoopUse,
    Publish,
    TreeNodeUse,
    Who,
)
from breakloop.model.verdict import Verdict
from breakloop.policy.cache import TwoGenerationCache
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.trees import states_tree
from breakloop.store.ops import ActualUse

AGENTS_MOST: Final = 10_000  # per interval; further agents are summed under `*`
LOOPS_MOST: Final = 10_000
SHADOW_MOST: Final = 1_000
NODES_MOST: Final = 10_000
_ROOTS_KEPT: Final = 5_000
_TRAILS_KEPT: Final = 5_000
STEPS_KEPT: Final = 40
_TOOLS_SHOWN: Final = 3
_NAME_SHOWN: Final = 60
_COUNTED: Final = frozenset(("exact", "tail"))  # kinds that count requests, which passed until it tripped
_ELSE: Final = "*"

Mark = list[object]  # at, tools, step, result, size, failed, verdict: as in `StepMark`


class ActivityRecorder:
    """Records the activity of one engine."""

    __slots__ = (
        "_activity", "_current", "_descriptors", "_has_roots", "_meter", "_output", "_publish", "_roots", "_trails",
    )  # fmt: skip

    def __init__(self, descriptors: Descriptors, meter: Meter, publish: Publish) -> None:
        self._descriptors = descriptors
        self._meter = meter
        self._publish = publish
        self._activity = Activity()
        self._trails: TwoGenerationCache[str, deque[Mark]] = TwoGenerationCache(_TRAILS_KEPT)
        self._output: TwoGenerationCache[str, int] = TwoGenerationCache(
            _TRAILS_KEPT
        )  # tokens of each agent's last answer
        self._current: deque[Mark] | None = None
        # Sessions that started others, by caller: their own requests name no tree.
        self._has_roots = False
        self._roots: TwoGenerationCache[str, bool] = TwoGenerationCache(_ROOTS_KEPT)

    def take(self) -> Activity:
        """Return the activity since the last call of this method."""
        taken, self._activity = self._activity, Activity()
        return taken

    # -- called by the engine ----------------------------------------------------------------------------------------

    def begin(self, call: Call, now: float) -> Mark | None:
        """Record the step of a call before it is decided. Events until `decided` include the steps up to it."""
        self._current = None
        step = call.parsed.step
        if not isinstance(step, Step):
            return None
        session = self._descriptors.window(call)
        if not session:
            return None
        trail = self._trails.get(session)
        if trail is None:
            trail = deque(maxlen=STEPS_KEPT)
            self._trails.put(session, trail)
        mark = _mark(step, now)
        trail.append(mark)
        self._current = trail
        return mark

    def decided(self, call: Call, verdict: Verdict, mark: Mark | None, now: float) -> None:
        self._current = None
        who = self._who(call)
        use = self._activity.agents.get(who) or self._first_use(who)
        use.requests += 1
        use.last_at = now
        if call.body:
            chat = call.parsed.chat or self._descriptors.head(call)
            if chat is not None:
                use.model = chat.model
        if not verdict.allowed:
            use.denied += 1
        if self._has_roots or states_tree(call):
            node = self._node(call, self._descriptors.tree(call), who)
            if node is not None:
                node.requests += 1
                node.denied += not verdict.allowed
                node.last_at = now
        if mark is not None and (verdict.loop is not None or verdict.note or not verdict.allowed):
            mark[-1] = _word(verdict)
        if verdict.loop is not None:
            self._looped(call, verdict, who)
        for found in verdict.shadow:
            key = (who[0], found.policy, found.rule, found.reason)
            if key in self._activity.shadow or len(self._activity.shadow) < SHADOW_MOST:
                self._activity.shadow[key] = self._activity.shadow.get(key, 0) + 1

    def answered(self, call: Call, answer: Answer, used: ActualUse | None = None) -> None:
        """Count the tokens and cost of an answer. `used` is what limits were charged, if that was computed."""
        who = self._who(call)
        use = self._activity.agents.get(who) or self._first_use(who)
        if answer.failed:
            use.failed += 1
        usage = answer.usage
        if usage is None:
            return
        cost = self._meter.cost_microusd(call, usage) if used is None else used.microusd
        use.input_tokens += usage.input_tokens
        use.output_tokens += usage.output_tokens
        use.cost_microusd += cost
        self._output.put("\0".join(who), usage.output_tokens)
        node = None if call.identity.tree is None else self._node(call, call.identity.tree, who)
        if node is not None:
            node.tokens += usage.input_tokens + usage.output_tokens
            node.cost_microusd += cost
        looped = state_of(call).loop
        if looped is not None:
            loop = self._loop(looped)
            loop.passed_tokens += usage.input_tokens + usage.output_tokens
            loop.passed_microusd += cost

    def tell(self, event: Event) -> None:
        """Publish an event, with the preceding steps if it reports a loop."""
        trail = self._current
        if trail is not None and event.name == LOOP_DETECTED:
            event = replace(event, data={**event.data, "steps": [list(mark) for mark in trail]})
        self._publish(event)

    # -- totals ------------------------------------------------------------------------------------------------------

    def _who(self, call: Call) -> Who:
        known, who = call.identity, self._descriptors
        return known.project or who.project(call), known.caller or who.caller(call), known.agent or who.agent(call)

    def _first_use(self, who: Who) -> AgentUse:
        agents = self._activity.agents
        if len(agents) >= AGENTS_MOST:
            who = (who[0], _ELSE, _ELSE)
        return agents.setdefault(who, AgentUse())

    def _node(self, call: Call, tree: Tree, who: Who) -> TreeNodeUse | None:
        """Return the sums of a session in a tree of several; None for all others."""
        session, root, (project, caller, agent) = self._descriptors.session(call), tree.root, who
        if not session:
            return None
        if root and root != session:
            self._has_roots = True
            self._roots.put(f"{caller}\0{root}", True)
        elif self._roots.get(f"{caller}\0{session}"):
            root = session
        else:
            return None
        trees, key = self._activity.trees, (project, caller, root, session)
        node = trees.get(key)
        if node is None and len(trees) < NODES_MOST:
            node = trees[key] = TreeNodeUse(agent=agent, parent=tree.parent)
        return node

    def _looped(self, call: Call, verdict: Verdict, who: Who) -> None:
        assert verdict.loop is not None  # noqa: S101 - the caller has checked
        key = state_of(call).loop = (*who, verdict.loop.fingerprint)
        loop, found = self._loop(key), verdict.loop
        before = found.hit_count - 1 if found.fresh and found.kind in _COUNTED else 0
        if before <= 0 and verdict.allowed:
            loop.passed += 1
            return
        tokens = len(call.body) // CHARS_A_TOKEN
        answer = self._output.get("\0".join(who)) or 0
        cost = self._meter.cost_microusd(call, Usage(tokens, answer))
        if before > 0:  # requests that passed before the loop was detected, estimated at the cost of this one
            loop.passed += before
            loop.passed_tokens += before * (tokens + answer)
            loop.passed_microusd += before * cost
        if verdict.allowed:
            loop.passed += 1
            return
        loop.stopped += 1
        loop.stopped_tokens += tokens + answer
        loop.stopped_microusd += cost

    def _loop(self, key: LoopKey) -> LoopUse:
        loops = self._activity.loops
        use = loops.get(key)
        if use is None:
            if len(loops) >= LOOPS_MOST:
                key = (key[0], _ELSE, _ELSE, _ELSE)
            use = loops.setdefault(key, LoopUse())
        return use


def _mark(step: Step, now: float) -> Mark:
    calls, results = step.calls, step.results
    if len(calls) == len(results) == 1:  # the most common case: same result as below in a third of the time
        name, arguments = calls[0]
        came, failed = results[0][:2]
        return [now, name[:_NAME_SHOWN], _digest(f"{name}\0{arguments}"), _digest(came), len(came), failed, "pass"]
    names = [made.name[:_NAME_SHOWN] for made in calls[:_TOOLS_SHOWN]]
    more = len(calls) - len(names)
    tools = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    done = "\0".join([f"{made.name}\0{made.arguments}" for made in calls]) or step.said
    came = "\0".join([result.text for result in results] or step.users)
    failed = any(result.error for result in results)
    return [now, tools, _digest(done), _digest(came), len(came), failed, "pass"]


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode("utf-8", "replace")) if text else ""


def _word(verdict: Verdict) -> str:
    if not verdict.allowed:
        return "pause" if verdict.reason == PAUSED else "deny"
    if verdict.landed:
        return "land"
    if verdict.note:
        return "steer"
    if verdict.loop is not None and verdict.delay_ms:
        return "throttle"
    return "warn" if verdict.loop is not None else "pass"
