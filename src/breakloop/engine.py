"""`Engine.decide`: a call goes in, a verdict comes out, with one commit of state (SPEC 6). `Engine.settle`: its answer.

plan    bundle check, overrides, kill switches, routing; each matched policy adds its operations in order
commit  the store carries them out in one: counts always, limits all or none
judge   results become a verdict; what a shadow policy found goes aside, as the last, separate step
settle  the call has its answer: it is in flight no longer, and one that failed need not count (SPEC LD-6)

Plan and judge do no I/O, so `explain`, tests and every door run the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from breakloop.clock import Clock
from breakloop.detect.step_loop import Watch
from breakloop.errors import StateError
from breakloop.judge import Judge, denial, killed, no_bundle
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.model.events import BODY_NOT_UNPACKED, DESCRIPTOR_MISSING, STORE_DEGRADED, Event, Publish, nowhere
from breakloop.model.reason import ALLOWED_NO_POLICY
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import CompiledBundle, Policy, fits
from breakloop.policy.senders import CHARGES_MAX, Sender
from breakloop.state.keys import part
from breakloop.state.ops import ENFORCED, JOINED, Bucket, Committed, Op, Repeat, Repeated, Settle
from breakloop.state.store import Store
from breakloop.windows import Windows

_SETTLED: Final[tuple[Settle, ...]] = ()  # the ticket of a call that was settled

Answered = Callable[[Call, Answer], None]


def no_session(_call: Call) -> str:
    """Every call for itself."""
    return ""


def _nobody(_call: Call, _answer: Answer) -> None:
    """Nobody wants to know."""


@dataclass(slots=True)
class Plan:
    """What one call needs from the store, and whose policies asked for it."""

    bundle: CompiledBundle
    policies: list[Policy]
    ops: list[Any]  # `Op`, and `Watch` in the place of what only a session's window tells
    now: float
    project: str = ""  # as it stands in keys
    counted: bool = False  # some of the operations are a detector's
    watched: bool = False  # some of the operations depend on the session's window


@dataclass(slots=True)
class Tally:
    """Counts since start; the metrics to come show them."""

    allowed: dict[str, int] = field(default_factory=dict)  # reason -> how many
    denied: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)  # descriptor -> rules skipped for lack of it
    not_unpacked: dict[str, int] = field(default_factory=dict)  # why -> compressed bodies judged as they came
    not_read: dict[str, int] = field(default_factory=dict)  # why -> answers that passed unread
    unjudged: int = 0  # requests whose body was too large to be judged
    store_errors: int = 0
    steered: int = 0  # requests that carried a note for the model
    faults: int = 0  # decisions that failed for a mistake of ours, and were allowed
    shadowed: int = 0
    settled: int = 0  # answers seen or reported
    failed: int = 0  # of these: 429, 5xx, none at all
    joined: int = 0  # counts not made, because an identical request was in flight
    forgiven: int = 0  # counts taken back, because the answer failed
    input_tokens: int = 0
    output_tokens: int = 0


class Engine:
    """Decides. Holds one bundle at a time; `use` swaps it whole between two requests."""

    __slots__ = ("_answered", "_bundle", "_clock", "_judge", "_project", "_publish", "_store", "_windows", "tally")

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        project: Callable[[Call], str],
        publish: Publish = nowhere,
        answered: Answered = _nobody,
        session: Callable[[Call], str] = no_session,
    ) -> None:
        self._store = store
        self._clock = clock
        self._project = project
        self._publish = publish
        self._answered = answered  # also told of each answer, once
        self._bundle: CompiledBundle | None = None
        self._judge = Judge(publish)
        self._windows = Windows(store, session)
        self.tally = Tally()

    @property
    def bundle(self) -> CompiledBundle | None:
        """The bundle in force, or None before one is loaded."""
        return self._bundle

    @property
    def enforces(self) -> bool:
        """Whether a bundle is in force and `global_shadow` is not."""
        return self._bundle is not None and self._bundle.shadow_until <= self._clock.now()

    def use(self, bundle: CompiledBundle) -> None:
        """Put a bundle in force, for every request from now on."""
        self._bundle = bundle

    def decide(self, call: Call) -> Verdict:
        """Judge one call and change state accordingly.

        Where its answer will be known or may be told (`tracked`, `reported`), `call.ticket` has what `settle` needs.
        """
        plan = self.plan(call)
        if isinstance(plan, Verdict):
            verdict = plan
        else:
            verdict = self._commit(call, plan) if plan.ops else Verdict()
            if verdict.allowed and not plan.policies:
                verdict.reason = ALLOWED_NO_POLICY
        counts = self.tally.allowed if verdict.allowed else self.tally.denied
        counts[verdict.reason] = counts.get(verdict.reason, 0) + 1
        return verdict

    def _commit(self, call: Call, plan: Plan) -> Verdict:
        try:
            if plan.watched:
                ops, done = self._windows.commit(call, plan.ops, plan.project, plan.now)
            else:
                ops, done = plan.ops, self._store.commit(plan.ops, plan.now)
        except StateError as error:
            return self._without_store(call, plan, error)
        verdict = self._judge.verdict(call, ops, done, plan.now)
        if verdict.shadow:
            self.tally.shadowed += 1
        if plan.counted and (call.tracked or call.reported) and verdict.allowed:
            call.ticket = self._ticket(ops, done)
        return verdict

    def _ticket(self, ops: list[Op], done: Committed) -> tuple[Settle, ...] | None:
        """Return what was counted and can be taken back, or leads a flight."""
        ticket: list[Settle] = []
        for index, op in enumerate(ops):
            if type(op) is not Repeat or type(result := done.results[index]) is not Repeated:
                continue
            spec, flight = op.spec, result.flight
            if flight == JOINED:
                self.tally.joined += 1
            # What a shadow policy would have denied would have had no answer.
            elif (flight or spec.retry_free) and not (result.tripped and spec.denies):
                ticket.append(Settle(spec, op.key, done.at, flight))
        return tuple(ticket) if ticket else None

    def settle(self, call: Call, answer: Answer) -> None:
        """Take note of how an allowed call was answered; a second answer to the same call is not looked at."""
        ticket: tuple[Settle, ...] | None = call.ticket
        if ticket is _SETTLED:
            return
        call.ticket = _SETTLED
        tally = self.tally
        tally.settled += 1
        usage, failed = answer.usage, answer.failed
        if usage is not None:
            tally.input_tokens += usage.input_tokens
            tally.output_tokens += usage.output_tokens
        if failed:
            tally.failed += 1
        if ticket is not None:
            self._settle(call, ticket if failed else [op for op in ticket if op.flight], failed=failed)
        if call.watched is not None:
            self._heard(call, answer)
        self._answered(call, answer)

    def _settle(self, call: Call, ops: Sequence[Settle], *, failed: bool) -> None:
        if not ops:
            return
        now = self._clock.now()
        try:
            self.tally.forgiven += self._store.settle(ops, now, failed=failed)
        except StateError as error:
            self._store_failed(call, now, error)

    def _heard(self, call: Call, answer: Answer) -> None:
        try:
            self._windows.heard(call, answer, self._clock.now())
        except StateError as error:
            self._store_failed(call, self._clock.now(), error)

    def plan(self, call: Call) -> Plan | Verdict:
        """Return what to commit, or the verdict when none of it depends on state."""
        bundle = self._bundle
        if bundle is None:
            return no_bundle()
        now = self._clock.now()
        call.sender = bundle.senders.find(call, now)
        if bundle.kill_override_until <= now:
            switch = bundle.kill_switches.find(call, now)
            if switch is not None:
                return killed(switch, now)
        all_shadow = bundle.shadow_until > now
        project_id = call.project = self._project(call)
        project = part(project_id)
        policies = bundle.routes.match(call.host, call.method, call.path)
        ops: list[Any] = []
        loops_decided = counted = watched = False
        for policy in policies:
            group = policy.index + 1 if policy.shadow or all_shadow else ENFORCED
            # Global shadow shows what would be enforced without it, so it does not change what is covered.
            loops_decided = loops_decided or (policy.decides_loops and not policy.shadow)
            for detector in policy.loops:
                count = detector.plan(call, project, group, now)
                if count is not None:
                    counted = True
                    watched = watched or isinstance(count, Watch)
                    ops.append(count)
            self._plan_rules(policy, call, project, group, ops)
        if call.body and not loops_decided:
            # The protection of LLM calls is a policy of its own, after all others; global shadow binds it too.
            group = -1 if all_shadow else ENFORCED
            for detector in bundle.project_loops.get(project_id, bundle.default_loops):
                count = detector.plan(call, project, group, now)
                if count is not None:
                    counted = True
                    watched = watched or isinstance(count, Watch)
                    ops.append(count)
        return Plan(bundle, policies, ops, now, project, counted, watched)

    def _plan_rules(self, policy: Policy, call: Call, project: str, group: int, ops: list[Op]) -> None:
        """Add what the rules of a policy charge: as remembered, where it depends on nothing but the sender."""
        sender: Sender | None = call.sender if policy.steady else None
        if sender is None:
            ops += self._charges(policy, call, project, group)[0]
            return
        place = 2 * policy.index + (group != ENFORCED)
        known = sender.charges.get(place)
        if known is None:
            known, complete = self._charges(policy, call, project, group)
            if complete and len(sender.charges) < CHARGES_MAX:
                sender.charges[place] = known  # a rule skipped for a missing descriptor is counted each time
        ops += known

    def _charges(self, policy: Policy, call: Call, project: str, group: int) -> tuple[tuple[Op, ...], bool]:
        rules = [rule for rule in policy.rules if rule.applies(call)]
        if not rules and policy.fallback is not None and not any(fits(match, call) for match in policy.unenforced):
            rules = [policy.fallback]
        planned = [rule.plan(call, project, group, self._missing) for rule in rules]
        charges = tuple(op for op in planned if op is not None)
        return charges, all(type(op) is Bucket for op in planned)

    def not_unpacked(self, call: Call, why: str) -> None:
        """Count and tell that a compressed body is judged as the bytes that came (SPEC C-9)."""
        counts = self.tally.not_unpacked
        counts[why] = counts.get(why, 0) + 1
        self._publish(Event(BODY_NOT_UNPACKED, self._clock.now(), {"why": why}, request_id=call.request_id))

    def not_read(self, why: str) -> None:
        """Count that an answer passed unread."""
        counts = self.tally.not_read
        counts[why] = counts.get(why, 0) + 1

    def _missing(self, policy: str, rule: str, descriptor: str) -> None:
        missing = self.tally.missing
        missing[descriptor] = missing.get(descriptor, 0) + 1
        data = {"policy": policy, "rule": rule, "descriptor": descriptor}
        self._publish(Event(DESCRIPTOR_MISSING, self._clock.now(), data))

    def _without_store(self, call: Call, plan: Plan, error: StateError) -> Verdict:
        """SPEC LD-7, S-4: not detected, allowed, counted, logged; unless a policy wants it otherwise."""
        self._store_failed(call, plan.now, error)
        for policy in plan.policies:
            shadow = policy.shadow or plan.bundle.shadow_until > plan.now
            if policy.denies_on_store_error and not shadow:
                verdict = denial("store_unavailable", policy.status, "The state store cannot be reached.")
                verdict.policy = policy.id
                verdict.retry_after_s = 1
                verdict.retry_jitter = True
                verdict.degraded = True
                return verdict
        verdict = Verdict() if plan.policies else Verdict(reason=ALLOWED_NO_POLICY)
        verdict.degraded = True
        return verdict

    def _store_failed(self, call: Call, now: float, error: StateError) -> None:
        self.tally.store_errors += 1
        self._publish(Event(STORE_DEGRADED, now, {"error": str(error)}, request_id=call.request_id))
