"""Explain a decision: its record -> steps in the order of evaluation.

What happened comes from the record. What did not happen (a policy that does not match, a rule that was skipped) is
determined with the engine's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import assert_never

from breakloop.clock import Clock
from breakloop.detect.counting import CountingDetector
from breakloop.detect.run_steps import RunStepsLimit
from breakloop.detect.stateful import Detection, StatefulDetector
from breakloop.engine.engine import Engine
from breakloop.engine.plan import Plan
from breakloop.limits.base import LimitDenial
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.call import Call
from breakloop.model.decision import PAUSED
from breakloop.model.verdict import Verdict
from breakloop.policy.compile import SECRET_DESCRIPTORS, kill_switch
from breakloop.policy.compiled import (
    CompiledBundle,
    CompiledDetector,
    CompiledPolicy,
    CompiledSelector,
    KillSwitches,
    Routes,
)
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.rules import BreakerRule, CompiledRule, RunRule
from breakloop.policy.schema import bundle as schema
from breakloop.policy.schema.limits import Rule
from breakloop.policy.schema.loops import AnyLoop
from breakloop.policy.tree_limits import TreeRule
from breakloop.pricing.prices import Prices
from breakloop.store.keys import fingerprint_of
from breakloop.store.limit_ops import CheckBreaker, TakeTokens
from breakloop.store.ops import (
    ENFORCED,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    LimitOp,
    Observation,
    Op,
    Result,
    Store,
    denies,
)

Done = Sequence[tuple[Op, Result]]


def charges(rule: CompiledRule | RunRule | TreeRule, done: Done) -> tuple[str, str, Op | None]:
    """Return the outcome and the description of a rule's charges, and the operation that decided."""
    own = [(op, result) for op, result in done if _rule_of(op) is rule]
    if not own:
        return "skipped", "the store did not respond", None
    words: list[str] = []
    for op, result in own:
        if isinstance(op, Deny) and isinstance(op.owner, LimitDenial):
            return "deny", op.owner.message, op
        if result is None or not isinstance(op, LimitOp):
            return "not asked", "the request was denied before", op
        if op.denies(result):
            return "deny", op.explain(result), op
        words.append(op.explain(result))
    return "pass", "; ".join(words), own[0][0]


def run(rule: RunRule, done: Done) -> tuple[str, str, Op | None]:
    """Return the outcome and the description of the cost of a run, and the operation that decided."""
    if not any(_rule_of(op) is rule for op, _ in done):
        return "skipped", "not an LLM request of a session, so nothing is charged", None
    outcome, text, op = charges(rule, done)
    return outcome, text if outcome == "not asked" else f"{text} for this run", op


def tree(rule: TreeRule, done: Done) -> tuple[str, str, Op | None]:
    """Return the outcome and the description of the budget of a tree of agents, and the operation that decided."""
    if not any(_rule_of(op) is rule for op, _ in done):
        return "skipped", "not an LLM request of a session, so nothing is charged", None
    outcome, text, op = charges(rule, done)
    return outcome, text if outcome == "not asked" else f"{text} for its tree of agents", op


def breaker(rule: BreakerRule, done: Done) -> tuple[str, str, Op | None]:
    """Return the outcome and the description of a policy's circuit breaker."""
    for op, result in done:
        if isinstance(op, CheckBreaker) and op.rule is rule:
            if result is None:
                return "not asked", "the request was denied before", op
            return "deny" if op.denies(result) else "pass", op.explain(result), op
    return "skipped", "the first rule charges nothing, so nothing is counted", None


def _rule_of(op: Op) -> object:
    match op:
        case LimitOp():
            return op.rule
        case Deny():
            return op.owner.rule if isinstance(op.owner, LimitDenial) else op.owner
        case CountFingerprint() | Observation():
            return op.owner
        case _:
            assert_never(op)


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One recorded decision. `plan` is None if nothing was planned (no bundle, or a kill switch)."""

    call: Call
    at: float
    plan: Plan | None
    done: tuple[tuple[Op, Result], ...]
    verdict: Verdict


class RecordingEngine(Engine):
    """An engine that records its last decision."""

    __slots__ = ("_done", "record")

    def __init__(
        self, store: Store, clock: Clock, descriptors: Descriptors, prices: Callable[[], Prices] | None = None
    ) -> None:
        super().__init__(store, clock, descriptors, prices=prices)
        self._done: tuple[tuple[Op, Result], ...] = ()
        self.record: DecisionRecord | None = None

    def fold(self, call: Call, plan: Plan, ops: list[Op], done: CommitResult) -> Verdict:
        self._done = tuple(zip(ops, done.results, strict=False))
        return super().fold(call, plan, ops, done)

    def count(self, call: Call, verdict: Verdict, plan: Plan | None) -> Verdict:
        counted = super().count(call, verdict, plan)
        self.record = DecisionRecord(call, self._clock.now(), plan, self._done, counted)
        self._done = ()
        return counted


@dataclass(frozen=True, slots=True)
class ExplainStep:
    """One step of the evaluation: `stage` is its kind, `subject` its object, `outcome` its result."""

    stage: str
    subject: str
    outcome: str
    text: str
    data: dict[str, object] = field(default_factory=dict)


def hidden(descriptor: str, value: str | None) -> str:
    """Return a descriptor's value for display; keys and tokens are hidden."""
    if value is None:
        return "nothing"
    return "<hidden>" if descriptor in SECRET_DESCRIPTORS else f'"{value}"'


def _blocks_of(detectors: Sequence[CompiledDetector]) -> dict[int, CompiledDetector]:
    """Group detectors by their block. A finding of any detector is shown under the terms of its block."""
    return {detector.config.index: detector for detector in detectors}


def _down(tokens: float) -> str:
    """Format tokens, rounded down: what is not there cannot be spent."""
    return f"{math.floor(tokens * 100) / 100:g}"


def decision_of(verdict: Verdict) -> str:
    """Return the verdict in one word: `deny`, `pause`, `land`, `throttle`, `warn` or `allow`."""
    if not verdict.allowed:
        return "pause" if verdict.reason == PAUSED else "deny"
    if verdict.landed:
        return "land"
    if verdict.delay_ms:
        return "throttle"
    return "warn" if verdict.warning else "allow"


class Explainer:
    """Explains one recorded decision. `source` is the bundle as written, None for the built-in protection alone."""

    def __init__(
        self, source: schema.Bundle | None, compiled: CompiledBundle, descriptors: Descriptors, record: DecisionRecord
    ) -> None:
        self._source = source if source is not None else schema.Bundle(bundle_version=1, policies=[])
        self._is_builtin = source is None
        self._compiled = compiled
        self._descriptors = descriptors
        self._record = record
        self._done: dict[int, tuple[Op, Result]] = {id(_rule_of(op)): (op, result) for op, result in record.done}

    def steps(self) -> list[ExplainStep]:
        """Return every step: what was read from the request, then what the engine did, in its order."""
        call, now, plan = self._record.call, self._record.at, self._record.plan
        steps = [self._request(call), *self._identity(call), self._bundle(now), *self._overrides(now)]
        steps += self._kill_switches(call, now)
        if plan is not None:
            matched = {policy.index for policy in plan.policies}
            for policy in self._compiled.policies:
                if policy.index in matched:
                    steps += self._policy(policy)
                else:
                    steps.append(_unmatched(policy, call))
            steps += self._default_loops(plan)
            steps += self._agents()
        steps.append(_verdict(self._record.verdict))
        return steps

    def _bundle(self, now: float) -> ExplainStep:
        bundle = self._compiled
        if self._is_builtin:
            return ExplainStep("bundle", "built-in", "info", "no policy given: only the built-in protection applies")
        expired = "" if bundle.expires > now else f", expired {_when(bundle.expires)} and still enforced"
        count = len(bundle.policies)
        text = f"version {bundle.version}, {count} {'policy' if count == 1 else 'policies'}{expired}"
        data = {"version": bundle.version, "digest": bundle.digest, "expired": bundle.expires <= now}
        return ExplainStep("bundle", bundle.digest[:12], "info", text, data)

    def _overrides(self, now: float) -> Iterator[ExplainStep]:
        named = (
            ("global_shadow", self._compiled.shadow_until, "every policy counts and logs only"),
            ("kill_switch_override", self._compiled.kill_override_until, "kill switches are skipped"),
        )
        for name, until, effect in named:
            if until > now:
                yield ExplainStep("override", name, "active", f"until {_when(until)}: {effect}")
            elif until:
                yield ExplainStep("override", name, "inactive", f"expired {_when(until)}")
            else:
                yield ExplainStep("override", name, "inactive", "not set")

    def _request(self, call: Call) -> ExplainStep:
        chat = self._descriptors.chat(call)
        kind = "HTTP"
        if chat:
            kind = f"LLM call ({chat.dialect}, {chat.model or 'no model'}, {_messages(chat.message_count)})"
        text = f"{kind}, host {call.host or '(none)'}, body {_size(call)}"
        data: dict[str, object] = {"method": call.method, "path": call.path, "host": call.host}
        data |= {"body_bytes": len(call.body), "llm": bool(chat), "model": chat.model if chat else None}
        return ExplainStep("request", f"{call.method} {call.path}", "info", text, data)

    def _identity(self, call: Call) -> list[ExplainStep]:
        read = self._descriptors
        caller, agent = read.caller(call), read.agent(call)
        known = {"caller": caller, "agent": "the caller" if agent == caller else agent}
        known |= {"session": read.session(call) or "none", "project": read.project(call)}
        return [ExplainStep("identity", name, "info", said) for name, said in known.items()]

    def _kill_switches(self, call: Call, now: float) -> Iterator[ExplainStep]:
        switches = self._source.kill_switches
        if not switches:
            yield ExplainStep("kill_switch", "none", "info", "the bundle has none")
            return
        skipped = self._compiled.kill_override_until > now
        for index, switch in enumerate(switches):
            name = f"kill_switches[{index}]"
            if skipped:
                yield ExplainStep("kill_switch", name, "skipped", "kill_switch_override is active")
            else:
                yield self._kill_switch(name, switch, call, now)

    def _kill_switch(self, name: str, switch: schema.KillSwitch, call: Call, now: float) -> ExplainStep:
        made = kill_switch(0, switch)
        what = f"{switch.scope_key} = {hidden(switch.scope_key, switch.scope_value)}"
        what += f" on {switch.route}" if switch.route else ""
        if KillSwitches([made], self._descriptors.getter).find(call, now) is not None:
            return ExplainStep("kill_switch", name, "match", what)
        value = self._descriptors.getter(switch.scope_key)(call)
        if made.expires <= now:
            why = f"expired {_when(made.expires)}"
        elif value != switch.scope_value:
            why = f"this request has {hidden(switch.scope_key, value)}"
        else:
            why = "another path"
        return ExplainStep("kill_switch", name, "no match", f"{what}: {why}")

    def _policy(self, policy: CompiledPolicy) -> Iterator[ExplainStep]:
        """Explain a matching policy: its loop detectors and its rules."""
        spec = self._source.policies[policy.index].spec
        all_shadow = self._compiled.shadow_until > self._record.at
        mode = "shadow" if policy.shadow else "global_shadow" if all_shadow else "enforce"
        yield ExplainStep("policy", policy.id, "match", f"mode {mode}", {"mode": mode})
        yield from self._blocks(policy.id, spec.loops, policy.loops)
        if policy.breaker is not None:
            found = breaker(policy.breaker, self._record.done)
            yield self._judged("breaker", f"{policy.id}/circuit_breaker", found)
        yield from self._rules(policy, spec)

    def _default_loops(self, plan: Plan) -> Iterator[ExplainStep]:
        """Explain the built-in protection of calls without loop detection of their own."""
        covering = next((p for p in plan.policies if p.decides_loops and not p.shadow), None)
        if covering is not None:
            yield ExplainStep("builtin", "defaults", "skipped", f"policy {covering.id} has its own loop detection")
            return
        project = self._descriptors.project(self._record.call)
        detectors = self._compiled.project_loops.get(project, self._compiled.default_loops)
        if not detectors:
            yield ExplainStep("builtin", "defaults", "skipped", "switched off")
        for detector in _blocks_of(detectors).values():
            yield self._detector(detector, "builtin")

    def _agents(self) -> Iterator[ExplainStep]:
        """Explain the bundle's entry for the agent."""
        agent = self._descriptors.agent(self._record.call)
        terms, trees = self._compiled.agents.find(agent), self._compiled.agents.trees
        for budget in trees.find(agent) if trees is not None else ():
            yield self._judged("agent", f"agents/{budget.name}", tree(budget, self._record.done))
        if terms is None:
            return
        for detector in terms.detectors:
            yield replace(self._detector(detector, "agent"), subject=f"agents/{terms.pattern}")
        for rule in terms.rules:
            step = self._charged(rule, {}) if isinstance(rule.limiter, TokenBucket) else self._other(rule)
            yield replace(step, stage="agent", subject=f"agents/{rule.name}")
        if terms.run is not None:
            yield self._judged("agent", f"agents/{terms.run.name}", run(terms.run, self._record.done))

    def _blocks(
        self, policy: str, blocks: Sequence[AnyLoop], detectors: Sequence[CompiledDetector]
    ) -> Iterator[ExplainStep]:
        made = _blocks_of(detectors)
        for index in range(len(blocks)):
            if index in made:
                yield self._detector(made[index], "loop")
                continue
            yield ExplainStep("loop", f"{policy}/loop_detection[{index}]", "skipped", "disabled")

    def _remembering(self, detector: StatefulDetector, stage: str) -> ExplainStep:
        config = detector.config
        name = f"{config.policy}/{config.rule}"
        for op, result in self._record.done:
            seen = _rule_of(op)
            if isinstance(seen, Detection) and seen.config is config:
                blocked = isinstance(result, FingerprintCount) and result.tripped
                outcome = "deny" if blocked else "pass" if isinstance(op, CountFingerprint) else seen.action
                data: dict[str, object] = {"kind": seen.kind, "action": seen.action, "tripped": blocked}
                return ExplainStep(stage, name, self._marked(outcome, op), f"{seen.kind}: {seen.evidence}", data)
        if self._descriptors.step(self._record.call) is None:
            return ExplainStep(stage, name, "skipped", f"{config.kind}, not a readable LLM request")
        return ExplainStep(stage, name, "pass", f"{config.kind}: no repetition in its window")

    def _detector(self, detector: CompiledDetector, stage: str) -> ExplainStep:
        if isinstance(detector, RunStepsLimit):
            op, _ = self._done.get(id(detector), (None, None))
            outcome = "pass" if op is None else self._marked("deny", op)
            return ExplainStep(stage, "", outcome, f"at most {detector.why}")
        if isinstance(detector, StatefulDetector):
            return self._remembering(detector, stage)
        assert isinstance(detector, CountingDetector)  # noqa: S101 - there are no others
        config = detector.config
        name = f"{config.policy}/{config.rule}"
        op, result = self._done.get(id(detector), (None, None))
        if not isinstance(op, CountFingerprint) or not isinstance(result, FingerprintCount):
            return ExplainStep(stage, name, "skipped", f"{config.kind}, {self._why_not_counted(detector)}")
        print_ = fingerprint_of(op.key)
        data: dict[str, object] = {"kind": config.kind, "fingerprint": print_, "hits": result.hits, "passes": op.limit}
        data |= {"window_s": op.spec.window_s, "action": config.action, "tripped": result.tripped}
        data |= {"shadow": op.group != ENFORCED, "blocked_for_s": math.ceil(result.wait_s)}
        within = f"{'in' if op.spec.sliding else 'gaps below'} {op.spec.window_s:g} s"
        text = f"{config.kind} {print_[:8]}, request {result.hits}, number {op.limit + 1} trips ({within})"
        if not result.tripped:
            return ExplainStep(stage, name, "pass", text, data)
        denied, action = denies(op, result), detector.finding(op, result).action
        if denied:
            state = "" if result.fresh else "still "
            text += f", {state}blocked for {math.ceil(result.wait_s)} s"
        elif action != config.action:
            text += ", only reported: " + ("its sender sends much else" if result.mixed else "an embedding or a ping")
        data["action"] = action
        return ExplainStep(stage, name, self._marked("deny" if denied else action, op), text, data)

    def _why_not_counted(self, detector: CountingDetector) -> str:
        call = self._record.call
        if detector.config.kind == "tail" and self._descriptors.chat(call) is None:
            return "not a readable LLM request"
        if call.body_unseen:
            return "the gateway did not send the body"
        if detector.config.allow is not None:
            return "on its allow list"
        return "the store did not respond"

    def _rules(self, policy: CompiledPolicy, spec: schema.Spec) -> Iterator[ExplainStep]:
        made = {rule.name: rule for rule in policy.rules}
        applied = False
        for rule in spec.rules:
            applied = applied or all(self._matched(key, wanted)[0] for key, wanted in rule.match.items())
            yield self._rule(made[rule.name], rule)
        if spec.fallback_limit is None:
            return
        name = f"{policy.id}/fallback_limit"
        if applied:
            yield ExplainStep("rule", name, "skipped", "a rule applies")
        elif policy.fallback is not None:
            yield self._rule(policy.fallback, spec.fallback_limit)

    def _rule(self, rule: CompiledRule, source: Rule) -> ExplainStep:
        name = f"{rule.policy}/{rule.name}"
        matches = [self._matched(key, wanted) for key, wanted in source.match.items()]
        data: dict[str, object] = {"match": [text for _, text in matches], "limit_keys": list(source.limit_keys)}
        if not all(fits for fits, _ in matches):
            why = ", ".join(text for fits, text in matches if not fits)
            return ExplainStep("rule", name, "no match", why, data)
        missing = rule.missing_keys(self._record.call)
        if missing:
            data["missing"] = missing
            text = f"the request lacks {', '.join(missing)}"
            op, _ = self._done.get(id(rule), (None, None))
            outcome = self._marked("deny", op) if rule.rejects_missing and op is not None else "skipped"
            return ExplainStep("rule", name, outcome, text, data)
        if isinstance(rule.limiter, TokenBucket):
            return self._charged(rule, data)
        return replace(self._other(rule), data=data)

    def _other(self, rule: CompiledRule) -> ExplainStep:
        return self._judged("rule", f"{rule.policy}/{rule.name}", charges(rule, self._record.done))

    def _judged(self, stage: str, subject: str, found: tuple[str, str, Op | None]) -> ExplainStep:
        outcome, text, op = found
        return ExplainStep(stage, subject, self._marked(outcome, op) if outcome == "deny" else outcome, text)

    def _charged(self, rule: CompiledRule, data: dict[str, object]) -> ExplainStep:
        name = f"{rule.policy}/{rule.name}"
        op, result = self._done.get(id(rule), (None, None))
        if not isinstance(op, TakeTokens):
            return ExplainStep("rule", name, "skipped", "the store did not respond", data)
        data |= {"key": op.key, "cost": op.cost, "burst": op.spec.burst, "rate": op.spec.rate}
        if not isinstance(result, float):
            return ExplainStep("rule", name, "not asked", "the request was denied before", data)
        # The store returns what is left after the charge; a negative value was not available.
        found = result + op.cost
        of = f"{op.spec.burst:g} (refills {op.spec.rate:g}/s)"
        charged = result >= 0 and self._record.verdict.allowed
        data |= {"tokens": result if charged else found, "charged": charged}
        if result < 0:
            text = f"costs {op.cost:g}, only {_down(found)} of {of} available"
            return ExplainStep("rule", name, self._marked("deny", op), text, data)
        if not charged:
            text = f"would pass, {_down(found)} of {of} available; not charged, the request is denied"
            return ExplainStep("rule", name, "pass", text, data)
        return ExplainStep("rule", name, "pass", f"costs {op.cost:g}, {_down(result)} of {of} left", data)

    def _matched(self, descriptor: str, wanted: str) -> tuple[bool, str]:
        value = self._descriptors.getter(descriptor)(self._record.call)
        if value == wanted:
            return True, f"{descriptor} is {hidden(descriptor, value)}"
        return False, f"{descriptor} is {hidden(descriptor, value)}, not {hidden(descriptor, wanted)}"

    def _marked(self, outcome: str, op: Op | None) -> str:
        """Mark the outcome of a shadow policy as not enforced."""
        return f"would {outcome}" if op is not None and op.group != ENFORCED else outcome


def _unmatched(policy: CompiledPolicy, call: Call) -> ExplainStep:
    """Return the reason: host, path or method, in the order in which the route index compares them."""
    selector = policy.selector

    def matches(probe: CompiledSelector) -> bool:
        return bool(Routes([replace(policy, selector=probe)]).match(call.host, call.method, call.path))

    if not matches(replace(selector, exact=None, prefix=None, methods=frozenset())):
        why = f"host {call.host or '(none)'} is not {' or '.join(selector.hosts)}"
    elif not matches(replace(selector, methods=frozenset())):
        wanted = [f"is not {selector.exact}"] if selector.exact else []
        wanted += [f"does not begin with {selector.prefix}"] if selector.prefix else []
        why = f"path {call.path} {' and '.join(wanted)}"
    else:
        why = f"method {call.method} is not {' or '.join(sorted(selector.methods))}"
    return ExplainStep("policy", policy.id, "no match", why)


def _verdict(verdict: Verdict) -> ExplainStep:
    data: dict[str, object] = {
        "decision": decision_of(verdict),
        "reason": verdict.reason,
        "status": verdict.status,
        "policy": verdict.policy,
        "rule": verdict.rule,
        "message": verdict.message,
        "delay_ms": verdict.delay_ms,
        "retry_after_s": verdict.retry_after_s,
        "shadow": [f"{s.policy}/{s.rule}: {s.action} {s.reason}" for s in verdict.shadow],
    }
    by = f", by {verdict.policy}{'/' if verdict.policy and verdict.rule else ''}{verdict.rule}"
    text = verdict.reason + (by if (verdict.policy or verdict.rule) and not verdict.allowed else "")
    if verdict.delay_ms:
        text += f", after {verdict.delay_ms} ms"
    if verdict.shadow:
        text += f"; shadow policies would have decided differently ({len(verdict.shadow)})"
    return ExplainStep("verdict", decision_of(verdict), decision_of(verdict), text, data)


def _size(call: Call) -> str:
    if call.body_unseen:
        return "not sent to breakloop"
    return f"{len(call.body)} bytes" if call.body else "none"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _when(moment: float) -> str:
    return datetime.fromtimestamp(moment, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
