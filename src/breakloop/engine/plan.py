"""Planning: which store operations and detectors one call needs.

The planner checks kill switches, quarantine and the agent's own terms, matches the routes, and then adds the
operations of each matched policy in order. It does no I/O, so `explain`, tests, the gateway and the library run the
same code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from breakloop.detect.counting import is_snoozed
from breakloop.detect.stateful import DetectorSlot
from breakloop.dialects.clients import end_run
from breakloop.engine.decision_state import DecisionState, grant, state_of
from breakloop.engine.fold import absent, killed
from breakloop.engine.metering import Meter
from breakloop.engine.pauses import LAND, ONCE
from breakloop.engine.quarantine import Hold, Quarantine, held, hold_key
from breakloop.model.call import Call, Chat
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import (
    AgentTerms,
    CompiledAgents,
    CompiledBundle,
    CompiledDetector,
    CompiledPolicy,
    NotNow,
)
from breakloop.policy.descriptors import CallerProfile, Descriptors
from breakloop.policy.rules import CHARGES_MAX, CachedCharges, CompiledRule
from breakloop.store.limit_ops import bucket_rows
from breakloop.store.ops import ENFORCED, BucketRows, CountFingerprint, Op

Missing = Callable[[str, str, str], None]  # policy, rule, descriptor


class Plan(msgspec.Struct, gc=False):
    """What one call needs from the store, and the policies that matched it. (A struct is created in a quarter of the
    time of a dataclass.)"""

    bundle: CompiledBundle
    policies: Sequence[CompiledPolicy]
    ops: list[Op]
    # Detectors that need a window, each with the index of the operation that its finding is inserted before.
    slots: list[tuple[int, DetectorSlot]]
    now: float  # the time of day
    steady: float  # the time by which the state of this process expires and refills
    project: str = ""  # as used in keys; `Identity.shard` also includes the agent
    profile: CallerProfile | None = None
    counted: int = 0  # detectors: each adds one operation at most
    metered: bool = False  # some charges are estimates
    landing: str = ""  # why an operator asks the run to finish; "": nobody does
    rows: BucketRows | None = None  # of the operations of a policy that are token buckets
    rows_at: int = 0  # the index of the first of these

    def add(self, planned: Op | DetectorSlot) -> None:
        """Append an operation or a detector."""
        if isinstance(planned, DetectorSlot):
            self.slots.append((len(self.ops), planned))
        else:
            self.ops.append(planned)


class Planner:
    """Builds the plan for each call."""

    __slots__ = ("_count_spending", "_descriptors", "_meter", "_missing", "_quarantine")

    def __init__(
        self,
        descriptors: Descriptors,
        quarantine: Quarantine,
        meter: Meter,
        missing: Missing,
        count_spending: Callable[[], None],
    ) -> None:
        self._descriptors = descriptors
        self._meter = meter
        self._quarantine = quarantine
        self._missing = missing
        self._count_spending = count_spending  # called when a run goes on for an amount of money

    def plan(self, bundle: CompiledBundle, call: Call, now: float, steady: float) -> Plan | Verdict:
        """Return what to commit, or the verdict if it does not depend on state."""
        if call.body:  # without a body there is little to keep, and `state_of` creates the state when it is needed
            call.decision = DecisionState(bundle.tail_messages)
        profile = bundle.senders.find(call, now)
        if bundle.kill_switches.keys and bundle.kill_override_until <= now:
            switch = bundle.kill_switches.find(call, now)
            if switch is not None:
                return end_run(call, killed(switch, now))
        all_shadow = bundle.shadow_until > now
        project_id, project = self._descriptors.assign_project(call)
        hold = None
        if self._quarantine.by_key:
            found = self._held(call, project_id, now, all_shadow=all_shadow)
            if isinstance(found, Verdict):
                return found
            hold = found
        policies = bundle.routes.match(call.host, call.method, call.path) if bundle.policies else ()
        plan = Plan(bundle, policies, [], [], now, steady, project, profile)
        if bundle.agents.terms:
            absence = self._plan_agents(bundle.agents, call, plan, -2 if all_shadow else ENFORCED)
            if absence is not None:
                return absent(absence)
        loops_decided = False
        for policy in policies:
            group = policy.index + 1 if policy.shadow or all_shadow else ENFORCED
            # Global shadow shows what would be enforced without it, so it does not change which calls are covered.
            loops_decided = loops_decided or (policy.decides_loops and not policy.shadow)
            if policy.loops:
                self._plan_detectors(policy.loops, call, plan, group)
            self._plan_rules(policy, call, plan, group)
        if call.body and not loops_decided:
            # The default loop protection comes after all policies, as one more policy. Global shadow applies to it.
            loops = bundle.project_loops.get(project_id, bundle.default_loops)
            self._plan_detectors(loops, call, plan, -1 if all_shadow else ENFORCED)
        if hold is not None:
            self._apply_hold(hold, call, plan)
        return plan

    def stopped(self, bundle: CompiledBundle, call: Call, now: float) -> tuple[Verdict, str] | None:
        """Return the denial of a call in flight if a kill switch or an operator's hold applies to it by now, and the id
        of that switch, or the key of that hold.
        """
        if bundle.kill_switches.keys and bundle.kill_override_until <= now:
            switch = bundle.kill_switches.find(call, now)
            if switch is not None:
                return end_run(call, killed(switch, now)), switch.id
        hold = self._find_hold(call, call.identity.project, now) if self._quarantine.by_key else None
        return None if hold is None or not hold.stops else (end_run(call, held(hold, now)), hold_key(hold))

    def _plan_agents(self, agents: CompiledAgents, call: Call, plan: Plan, group: int) -> NotNow | None:
        """Add what the entries of `agents` set for the agent and its tree. Returns why it may not send requests now, or
        None.
        """
        name = self._descriptors.agent(call)
        agent = agents.find(name)
        if agent is not None:
            absence = agent.presence.absent(plan.now) if group == ENFORCED else None
            if absence is not None:
                return absence
            self._plan_agent(agent, call, plan, group)
        if agents.trees is not None:
            plan.ops += agents.trees.plan(call, name, plan.project, group, plan.now, self._meter)
            self._want_usage(call, plan)
        return None

    def _plan_agent(self, agent: AgentTerms, call: Call, plan: Plan, group: int) -> None:
        """Add the limits and detectors of the agent itself, before those of all policies."""
        self._plan_detectors(agent.detectors, call, plan, group)
        for rule in agent.rules:
            if not rule.match or rule.applies(call):
                plan.ops += rule.plan(call, plan.project, group, plan.now, self._meter, self._missing)
        if agent.run is not None:
            for planned in agent.run.plan(call, group, self._meter):
                plan.add(planned)
        if agent.metered:
            self._want_usage(call, plan)

    def _want_usage(self, call: Call, plan: Plan) -> None:
        plan.metered = True
        chat = call.parsed.chat
        if isinstance(chat, Chat) and chat.stream:
            state_of(call).wants_usage = True

    def _held(self, call: Call, project: str, now: float, *, all_shadow: bool) -> Verdict | Hold | None:
        """Return the denial if the sender is held. Returns the hold if the call passes in spite of it: a person let the
        run go on, or it has calls left to finish with. Global shadow suspends automatic holds, but not those of an
        operator (K-1).
        """
        hold = self._find_hold(call, project, now)
        if hold is None or (all_shadow and not hold.by):
            return None
        if hold.grants:
            return hold
        asked = hold.lands and hold.run == self._descriptors.window(call) and self._meter.llm(call) is not None
        if asked and self._quarantine.lands(hold):
            return hold
        verdict = held(hold, now)
        return end_run(call, verdict) if verdict.never else verdict

    def _apply_hold(self, hold: Hold, call: Call, plan: Plan) -> None:
        """Change the plan of a call that passes in spite of a hold. The run of a granted one is not paused again."""
        question = hold.question
        if question is None:
            plan.landing = hold.why
            return
        grant(call, hold.key, question.id)
        for op in plan.ops:
            if type(op) is CountFingerprint and op.owner.config.action == "pause":
                op.spec = replace(op.spec, denies=False, cooldown_s=0.0)
        if question.answer == LAND:
            plan.landing = hold.why
        if question.answer in {ONCE, LAND}:
            self._quarantine.use(hold, plan.now)
        elif question.left:
            self._count_spending()

    def _find_hold(self, call: Call, project: str, now: float) -> Hold | None:
        who = self._descriptors
        return self._quarantine.find(
            project, who.caller(call), who.agent(call), lambda: who.window(call), now, lambda: who.windows_above(call)
        )

    def _plan_detectors(self, detectors: Sequence[CompiledDetector], call: Call, plan: Plan, group: int) -> None:
        # Sessions and fingerprints belong to one agent. A window shared by several agents determines its own shard.
        shard, now, snoozed = call.identity.shard, plan.now, plan.bundle.snoozed
        ops, slots = plan.ops, plan.slots
        before = len(ops) + len(slots)
        unnamed: bool | None = None
        for detector in detectors:
            if detector.of_unnamed:
                if unnamed is None:
                    unnamed = self._descriptors.derived(call)
                if not unnamed:
                    continue
            planned = detector.plan(call, shard, group, now)
            if planned is None:
                continue
            if type(planned) is DetectorSlot:
                slots.append((len(ops), planned))
            elif snoozed and is_snoozed(planned, snoozed, now):
                continue
            else:
                ops.append(planned)
        plan.counted += len(ops) + len(slots) - before

    def _plan_rules(self, policy: CompiledPolicy, call: Call, plan: Plan, group: int) -> None:
        """Add the charges of a policy's rules. Charges that depend only on the sender are cached in its profile."""
        sender = plan.profile if policy.steady else None
        charges: Sequence[Op]
        if sender is None:
            charges = self._charges(policy, call, plan, group)
        else:
            place = 2 * policy.index + (group != ENFORCED)
            known = sender.charges.get(place)
            if known is None or not known.begins <= plan.now < known.ends:
                known = self._remember(policy, call, plan, group)
                if known is not None and (len(sender.charges) < CHARGES_MAX or place in sender.charges):
                    sender.charges[place] = known
            if known is None:
                charges = self._charges(policy, call, plan, group)
            elif known.fixed is None:
                charges = self._varying(known, call, plan, group)
            else:
                charges, plan.rows, plan.rows_at = known.fixed, known.rows, len(plan.ops)
        if policy.breaker is not None:
            op = policy.breaker.plan(call, plan.project, charges, group, self._meter)
            if op is not None:
                plan.ops.append(op)
        if policy.metered:
            self._want_usage(call, plan)
        plan.ops.extend(charges)

    def _varying(self, known: CachedCharges, call: Call, plan: Plan, group: int) -> list[Op]:
        made: list[Op] = []
        for ops, rule, keys in known.parts:
            made += ops if rule is None else rule.charges(call, keys, group, plan.now, self._meter)
        return made

    def _remember(self, policy: CompiledPolicy, call: Call, plan: Plan, group: int) -> CachedCharges | None:
        """Return the charges for the sender of a call, for caching. Returns None if a descriptor is missing, which has
        to be reported for every call.
        """
        parts: list[tuple[tuple[Op, ...], CompiledRule | None, Sequence[str]]] = []
        begins, ends = -math.inf, math.inf
        for rule in _applying(policy, call):
            keys = rule.keys(call, plan.project, group, _untold)
            if keys is None:
                return None
            span = rule.limiter.cacheable_between(plan.now)
            if span is None:
                parts.append(((), rule, keys))
                continue
            begins, ends = max(begins, span[0]), min(ends, span[1])
            parts.append((rule.charges(call, keys, group, plan.now, self._meter), None, ()))
        if not all(rule is None for _, rule, _ in parts):
            return CachedCharges(None, tuple(parts), begins, ends)
        fixed = tuple(op for ops, _, _ in parts for op in ops)
        return CachedCharges(fixed, tuple(parts), begins, ends, bucket_rows(fixed))

    def _charges(self, policy: CompiledPolicy, call: Call, plan: Plan, group: int) -> list[Op]:
        made: list[Op] = []
        for rule in _applying(policy, call):
            made += rule.plan(call, plan.project, group, plan.now, self._meter, self._missing)
        return made


def _applying(policy: CompiledPolicy, call: Call) -> Sequence[CompiledRule]:
    rules = [rule for rule in policy.rules if rule.applies(call)]
    return (policy.fallback,) if not rules and policy.fallback is not None else rules


def _untold(_policy: str, _rule: str, _descriptor: str) -> None:
    """Ignore a missing descriptor: it is reported when the charge is made."""
