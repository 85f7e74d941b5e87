"""The inside of a matched policy, explained: each loop detector and each rule, with what was counted and what is left,
or why it was not asked. Reads the record of a decision; `explain` puts the steps in order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from breakloop.detect.block import Block
from breakloop.detect.loop import LoopDetector
from breakloop.detect.run_ceiling import RunCeiling
from breakloop.detect.seen import Seen
from breakloop.limits.token_bucket import TokenBucket
from breakloop.policy import schema
from breakloop.policy.compile import SECRET_DESCRIPTORS
from breakloop.policy.compiled import CompiledBundle, Detector, Policy
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.rules import Rule
from breakloop.replay import explain_limits
from breakloop.replay.record import Record
from breakloop.state.ops import ENFORCED, Bucket, Op, Repeat, Repeated, Result


@dataclass(frozen=True, slots=True)
class Step:
    """One thing the engine looked at: `stage` says what kind, `subject` which, `outcome` what came of it."""

    stage: str
    subject: str
    outcome: str
    text: str
    data: dict[str, object] = field(default_factory=dict)


def hidden(descriptor: str, value: str | None) -> str:
    """Return a descriptor's value for people; keys and tokens are not shown."""
    if value is None:
        return "nothing"
    return "<hidden>" if descriptor in SECRET_DESCRIPTORS else f'"{value}"'


class PartExplainer:
    """Explains the policies of one recorded decision."""

    def __init__(
        self, source: schema.Bundle, compiled: CompiledBundle, descriptors: Descriptors, record: Record
    ) -> None:
        self._source = source
        self._compiled = compiled
        self._descriptors = descriptors
        self._record = record
        self._done: dict[int, tuple[Op, Result]] = {id(op.owner): (op, result) for op, result in record.done}
        self._all_shadow = compiled.shadow_until > record.at

    def policy(self, policy: Policy) -> Iterator[Step]:
        """Explain a policy that matches: itself, its loop detectors, its rules."""
        spec = self._source.policies[policy.index].spec
        mode = "shadow" if policy.shadow else "global_shadow" if self._all_shadow else "enforce"
        yield Step("policy", policy.id, "match", f"mode {mode}", {"mode": mode})
        yield from self._blocks(policy.id, spec.loops, policy.loops)
        if policy.breaker is not None:
            outcome, text, op = explain_limits.breaker(policy.breaker, self._record.done)
            yield Step("breaker", f"{policy.id}/circuit_breaker", self._judged(outcome, op), text)
        yield from self._rules(policy, spec)

    def default_loops(self) -> Iterator[Step]:
        """Explain the protection of calls that no policy's own loop detection covers (SPEC B-6)."""
        assert self._record.plan is not None  # noqa: S101 - only asked about decisions that were planned
        covering = next((p for p in self._record.plan.policies if p.decides_loops and not p.shadow), None)
        if covering is not None:
            yield Step("builtin", "defaults", "skipped", f"policy {covering.id} has loop detection of its own")
            return
        project = self._descriptors.project(self._record.call)
        detectors = self._compiled.project_loops.get(project, self._compiled.default_loops)
        if not detectors:
            yield Step("builtin", "defaults", "skipped", "switched off")
        for detector in _blocks_of(detectors).values():
            yield self._detector(detector, "builtin")

    def agents(self) -> Iterator[Step]:
        """Explain what the bundle says of the agent itself (SPEC B-1)."""
        agent = self._descriptors.agent(self._record.call)
        terms = self._compiled.agents.find(agent)
        if terms is None:
            return
        for detector in terms.detectors:
            yield replace(self._detector(detector, "agent"), subject=f"agents/{terms.pattern}")
        for rule in terms.rules:
            step = self._charged(rule, {}) if isinstance(rule.limiter, TokenBucket) else self._other(rule)
            yield replace(step, stage="agent", subject=f"agents/{rule.name}")
        if terms.run is not None:
            outcome, text, op = explain_limits.run(terms.run, self._record.done)
            yield Step("agent", f"agents/{terms.run.name}", self._judged(outcome, op), text)

    def _blocks(self, policy: str, blocks: Sequence[schema.AnyLoop], detectors: Sequence[Detector]) -> Iterator[Step]:
        made = _blocks_of(detectors)
        for index in range(len(blocks)):
            if index in made:
                yield self._detector(made[index], "loop")
                continue
            yield Step("loop", f"{policy}/loop_detection[{index}]", "skipped", "disabled")

    def _remembering(self, detector: Block, stage: str) -> Step:
        terms = detector.terms
        name = f"{terms.policy}/{terms.rule}"
        for op, result in self._record.done:
            seen = op.owner
            if isinstance(seen, Seen) and seen.terms is terms:
                blocked = isinstance(result, Repeated) and result.tripped
                outcome = "deny" if blocked else "pass" if isinstance(op, Repeat) else seen.action
                data: dict[str, object] = {"kind": seen.kind, "action": seen.action, "tripped": blocked}
                return Step(stage, name, self._marked(outcome, op), f"{seen.kind}: {seen.evidence}", data)
        if self._descriptors.step(self._record.call) is None:
            return Step(stage, name, "skipped", f"{terms.kind}, not an LLM request that can be read")
        return Step(stage, name, "pass", f"{terms.kind}: nothing in its memory repeats itself")

    def _detector(self, detector: Detector, stage: str) -> Step:
        if isinstance(detector, Block):
            return self._remembering(detector, stage)
        if isinstance(detector, RunCeiling):
            op, _ = self._done.get(id(detector), (None, None))
            outcome = "pass" if op is None else self._marked("deny", op)
            return Step(stage, "", outcome, f"at most {detector.why}")
        assert isinstance(detector, LoopDetector)  # noqa: S101 - there are no others
        terms = detector.terms
        name = f"{terms.policy}/{terms.rule}"
        op, result = self._done.get(id(detector), (None, None))
        if not isinstance(op, Repeat) or not isinstance(result, Repeated):
            return Step(stage, name, "skipped", f"{terms.kind}, {self._why_not_counted(detector)}")
        print_ = op.key[-32:]
        data: dict[str, object] = {"kind": terms.kind, "fingerprint": print_, "hits": result.hits, "passes": op.limit}
        data |= {"window_s": op.spec.window_s, "action": terms.action, "tripped": result.tripped}
        data |= {"shadow": op.group != ENFORCED, "blocked_for_s": math.ceil(result.wait_s)}
        within = f"{'in' if op.spec.sliding else 'gaps below'} {op.spec.window_s:g} s"
        text = f"{terms.kind} {print_[:8]}, request {result.hits}, number {op.limit + 1} trips ({within})"
        if not result.tripped:
            return Step(stage, name, "pass", text, data)
        if op.spec.denies:
            state = "" if result.fresh else "still "
            text += f", {state}blocked for {math.ceil(result.wait_s)} s"
        return Step(stage, name, self._marked("deny" if op.spec.denies else terms.action, op), text, data)

    def _why_not_counted(self, detector: LoopDetector) -> str:
        call = self._record.call
        if detector.terms.kind == "tail" and self._descriptors.chat(call) is None:
            return "not an LLM request that can be read"
        if call.body_unseen:
            return "the gateway did not send the body"
        if detector.terms.allow is not None:
            return "on its allow list"
        return "the store did not answer"

    def _rules(self, policy: Policy, spec: schema.Spec) -> Iterator[Step]:
        made = {rule.name: rule for rule in policy.rules}
        applied = False
        for rule in spec.rules:
            applied = applied or all(self._matched(key, wanted)[0] for key, wanted in rule.match.items())
            yield self._rule(made[rule.name], rule)
        if spec.fallback_limit is None:
            return
        name = f"{policy.id}/fallback_limit"
        if applied:
            yield Step("rule", name, "skipped", "a rule applies")
        elif policy.fallback is not None:
            yield self._rule(policy.fallback, spec.fallback_limit)

    def _rule(self, rule: Rule, source: schema.Rule) -> Step:
        name = f"{rule.policy}/{rule.name}"
        matches = [self._matched(key, wanted) for key, wanted in source.match.items()]
        data: dict[str, object] = {"match": [text for _, text in matches], "limit_keys": list(source.limit_keys)}
        if not all(fits for fits, _ in matches):
            why = ", ".join(text for fits, text in matches if not fits)
            return Step("rule", name, "no match", why, data)
        missing = rule.missing_keys(self._record.call)
        if missing:
            data["missing"] = missing
            text = f"the request lacks {', '.join(missing)}"
            op, _ = self._done.get(id(rule), (None, None))
            outcome = self._marked("deny", op) if rule.rejects_missing and op is not None else "skipped"
            return Step("rule", name, outcome, text, data)
        if isinstance(rule.limiter, TokenBucket):
            return self._charged(rule, data)
        return replace(self._other(rule), data=data)

    def _other(self, rule: Rule) -> Step:
        outcome, text, op = explain_limits.charges(rule, self._record.done)
        return Step("rule", f"{rule.policy}/{rule.name}", self._judged(outcome, op), text)

    def _judged(self, outcome: str, op: Op | None) -> str:
        return self._marked(outcome, op) if outcome == "deny" else outcome

    def _charged(self, rule: Rule, data: dict[str, object]) -> Step:
        name = f"{rule.policy}/{rule.name}"
        op, result = self._done.get(id(rule), (None, None))
        if not isinstance(op, Bucket):
            return Step("rule", name, "skipped", "the store did not answer", data)
        data |= {"key": op.key, "cost": op.cost, "burst": op.spec.burst, "rate": op.spec.rate}
        if not isinstance(result, float):
            return Step("rule", name, "not asked", "the request was denied before", data)
        # The store says what is left after the charge; below nothing means that it was not there.
        found = result + op.cost
        of = f"{op.spec.burst:g} (refills {op.spec.rate:g}/s)"
        charged = result >= 0 and self._record.verdict.allowed
        data |= {"tokens": result if charged else found, "charged": charged}
        if result < 0:
            text = f"costs {op.cost:g}, only {_down(found)} of {of} there"
            return Step("rule", name, self._marked("deny", op), text, data)
        if not charged:
            text = f"would pass, {_down(found)} of {of} there; not charged, the request is denied"
            return Step("rule", name, "pass", text, data)
        return Step("rule", name, "pass", f"costs {op.cost:g}, {_down(result)} of {of} left", data)

    def _matched(self, descriptor: str, wanted: str) -> tuple[bool, str]:
        value = self._descriptors.getter(descriptor)(self._record.call)
        if value == wanted:
            return True, f"{descriptor} is {hidden(descriptor, value)}"
        return False, f"{descriptor} is {hidden(descriptor, value)}, not {hidden(descriptor, wanted)}"

    def _marked(self, outcome: str, op: Op | None) -> str:
        """A shadow policy only would have done it."""
        return f"would {outcome}" if op is not None and op.group != ENFORCED else outcome


def _blocks_of(detectors: Sequence[Detector]) -> dict[int, Detector]:
    """Detectors by their block. One of several speaks for all of them: what any has found stands under its terms."""
    return {detector.terms.index: detector for detector in detectors}


def _down(tokens: float) -> str:
    """Tokens as people read them; rounded down, because what is not there cannot be spent."""
    return f"{math.floor(tokens * 100) / 100:g}"
