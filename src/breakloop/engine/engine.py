"""The engine: `Engine.decide` turns a call into a verdict with one commit of state, `Engine.settle` records its answer.

plan          determine what the call needs from the store (`plan.py`)
read windows  read the state of the detectors, which a decision updates (`procedure.py`)
detect        run each detector on the call
commit        run all operations in the store at once: counts always apply, limits are charged all or none
fold          turn the results into a verdict, with findings of shadow policies kept separate (`fold.py`)
settle        record the answer: the call is no longer in flight, and a failed call may not count

The state is in this process (`LocalStore`) or in a shared store (`remote.py`). A call is settled in the store where it
was decided, so that a charge is adjusted where it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from breakloop.clock import Clock
from breakloop.detect.steps.detector import REPORT_STREAM
from breakloop.dialects import registry
from breakloop.dialects.content import COUNTED_FROM_BYTES
from breakloop.engine.activity import ActivityRecorder, Mark
from breakloop.engine.decision_state import (
    GrantedState,
    PendingResult,
    Reserved,
    Settlement,
    Ticket,
    await_result,
    state_of,
)
from breakloop.engine.fold import OPERATOR_LANDED, ResultFolder, denial, land, no_bundle, only_limited, too_complex
from breakloop.engine.metering import Meter, adjustable_charges
from breakloop.engine.plan import Plan, Planner
from breakloop.engine.procedure import DecisionProcedure, Procedure, answer_updates, window_keys
from breakloop.engine.quarantine import HoldRules, Quarantine, held
from breakloop.errors import StateError
from breakloop.limits.base import adjustments
from breakloop.model.call import Answer, Call, Chat
from breakloop.model.counters import Tally
from breakloop.model.events import (
    BODY_NOT_UNPACKED,
    DESCRIPTOR_MISSING,
    LOOP_DETECTED,
    STORE_DEGRADED,
    Event,
    Publish,
    nowhere,
)
from breakloop.model.verdict import ALLOWED_NO_POLICY, LoopFinding, Verdict
from breakloop.policy.cache import TwoGenerationCache
from breakloop.policy.compiled import CompiledBundle, rejects_large
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.orders import NO_ORDERS, Orders
from breakloop.pricing.prices import Prices
from breakloop.store.limit_ops import ChargeBudget
from breakloop.store.ops import (
    JOINED,
    AdjustCharge,
    CommitResult,
    CountFingerprint,
    FingerprintCount,
    Op,
    Settle,
    Store,
    StoredWindow,
    denies,
)

if TYPE_CHECKING:
    from breakloop.engine.unknown_apis import UnknownApis

Failed = Callable[[Call, StateError], None]
ReadWindow = Callable[[str, float], StoredWindow]  # key and time


class LocalStore:
    """Runs decisions and settlements against a store in this process. Each method completes before it returns."""

    __slots__ = ("_clock", "_failed", "_read_window", "_tally", "store")

    def __init__(
        self, store: Store, clock: Clock, tally: Tally, failed: Failed, read_window: ReadWindow | None = None
    ) -> None:
        self.store = store
        self._clock = clock
        self._tally = tally
        self._failed = failed
        self._read_window = read_window or store.read_window

    def commit(self, call: Call, plan: Plan) -> tuple[list[Op], CommitResult]:
        """Read windows, run the detectors and commit. Raises `StateError`."""
        now = plan.steady
        if not plan.slots:  # nothing to read, so the procedure would only commit
            ops = plan.ops if now == plan.now else _in_store_time(plan.ops, plan.now - now)
            return plan.ops, self.store.commit(ops, now)
        decision = DecisionProcedure(call, plan)
        self._run(decision, now, plan.now - now)
        if decision.contended:
            self._tally.conflicts += 1
        return decision.ops, decision.result

    def _run(self, procedure: Procedure, now: float, ahead_s: float = 0.0) -> None:
        read, store = self._read_window, self.store
        while True:
            windows = [read(key, now) for key in procedure.keys]
            if not procedure.locate(windows):
                continue
            if not procedure.evaluate(windows):
                return
            ops = _in_store_time(procedure.ops, ahead_s) if ahead_s else procedure.ops
            if procedure.committed(store.commit(ops, now, procedure.writes)):
                return

    def settle(self, call: Call, ops: Sequence[Settle], *, failed: bool) -> None:
        try:
            self._tally.forgiven += self.store.settle(ops, self._clock.steady(), failed=failed)
        except StateError as error:
            self._failed(call, error)

    def correct(self, call: Call, ops: Sequence[AdjustCharge]) -> None:
        try:
            self.store.correct(ops, self._clock.steady())
        except StateError as error:
            self._failed(call, error)

    def answered(self, call: Call, answer: Answer) -> None:
        updates = answer_updates(call, answer)
        if not updates:
            return
        now, read, store = self._clock.steady(), self._read_window, self.store
        try:
            for update in updates:
                # Nobody else writes in between, so there is no conflict to look for.
                if update.evaluate([read(key, now) for key in update.keys]):
                    store.commit(update.ops, now, update.writes)
        except StateError as error:
            self._failed(call, error)


def _in_store_time(ops: Sequence[Op], ahead_s: float) -> Sequence[Op]:
    """Return the operations with ends that are times of day in the store's time; the time of day is ahead of it."""
    return [replace(op, ends=op.ends - ahead_s) if type(op) is ChargeBudget and op.limiter.dated else op for op in ops]


def repeated_event(call: Call, who: Descriptors, action: str, what: str, times: int, now: float) -> Event:
    """Return the `loop_detected` event for a streamed answer that repeats itself; `what` names what is repeated."""
    chat = call.parsed.chat
    data: dict[str, object] = {
        "caller": who.caller(call),
        "agent": who.agent(call),
        "model": chat.model if isinstance(chat, Chat) else "",
        "fingerprint": "",
        "hit_count": times,
        "cooldown_seconds": 0,
        "kind": "stream",
        "action": action,
        "policy": "",
        "evidence": f"{what} {times} times in one answer",
        "shadow": call.decision.guards_stream == REPORT_STREAM,
    }
    return Event(LOOP_DETECTED, now, data, call.identity.project, call.request_id)


PAUSE: Final = "pause"  # an action
_RESULTS_KEPT: Final = 10_000
_SETTLED: Final[Ticket] = ()  # marks a call as settled
_new: Final = tuple.__new__  # creates a named tuple in half the time of calling its class

Answered = Callable[[Call, Answer], None]


class Engine:
    """Decides calls and settles their answers. One bundle is in force at a time; `set_bundle` replaces it as a whole
    between two requests.
    """

    __slots__ = (
        "_answered",
        "_answered_before",
        "_bundle",
        "_clock",
        "_descriptors",
        "_folder",
        "_hold_rules",
        "_loaded",
        "_mark",
        "_orders",
        "_planner",
        "_publish",
        "_results",
        "_unknown_apis",
        "local",
        "meter",
        "quarantine",
        "recorder",
        "tally",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        clock: Clock,
        descriptors: Descriptors,
        *,
        publish: Publish = nowhere,
        answered: Answered | None = None,
        prices: Callable[[], Prices] | None = None,
    ) -> None:
        self._clock = clock
        self._descriptors = descriptors
        self._publish = publish
        self._unknown_apis: UnknownApis | None = None
        self._answered = answered or descriptors.answered  # called once for each answer
        self._bundle: CompiledBundle | None = None
        self._loaded: CompiledBundle | None = None
        self._orders = NO_ORDERS
        self._folder = ResultFolder(publish, self._pause)
        self.tally = Tally()
        self.local = LocalStore(store, clock, self.tally, self.store_failed)
        self.quarantine = Quarantine(store.drop, publish)
        clock.on_step.append(self.quarantine.step)
        self._hold_rules = HoldRules(self.quarantine, descriptors)
        self.meter = Meter(descriptors, clock, publish, prices)
        self._planner = Planner(descriptors, self.quarantine, self.meter, self._missing, self._count_spending)
        self.recorder: ActivityRecorder | None = None
        self._mark: Mark | None = None  # the step of the call being decided
        self._results: TwoGenerationCache[str, int] = TwoGenerationCache(
            _RESULTS_KEPT
        )  # hash of the last result of each MCP call, by fingerprint key

    @property
    def bundle(self) -> CompiledBundle | None:
        """The bundle in force, or None if none has been loaded."""
        return self._bundle

    @property
    def enforces(self) -> bool:
        """Whether a bundle is in force and `global_shadow` is off."""
        return self._bundle is not None and self._bundle.shadow_until <= self._clock.now()

    def set_bundle(self, bundle: CompiledBundle) -> None:
        """Put a bundle in force for all subsequent requests."""
        self._loaded = bundle
        self._bundle = self._orders.over(bundle)
        if self._bundle.kill_switches.keys and self.quarantine.on_stop is not None:
            self.quarantine.on_stop()

    def apply_orders(self, orders: Orders) -> None:
        """Apply operator orders on top of the bundle. They replace all previous orders."""
        self._orders = orders
        if self._loaded is not None:
            self.set_bundle(self._loaded)

    def recording(self) -> ActivityRecorder:
        """Start recording activity, if it is not recorded yet, and return the recorder. The caller has to drain it
        regularly with `ActivityRecorder.take`.
        """
        if self.recorder is None:
            self.recorder = ActivityRecorder(self._descriptors, self.meter, self._publish)
            self._folder = ResultFolder(self.recorder.tell, self._pause)
        return self.recorder

    def local_store(self, read_window: ReadWindow) -> LocalStore:
        """Return the engine's local store with a different function for reading windows."""
        return LocalStore(self.local.store, self._clock, self.tally, self.store_failed, read_window)

    def sweep_holds(self) -> None:
        """End expired holds, and apply the defaults of pauses that are due."""
        self.quarantine.sweep(self._clock.now())

    def stopped(self, call: Call) -> tuple[Verdict, str] | None:
        """Return the denial of a call in flight that an operator or a kill switch has stopped, and by which order."""
        bundle = self._bundle
        return None if bundle is None else self._planner.stopped(bundle, call, self._clock.now())

    def decide(self, call: Call) -> Verdict:
        """Decide one call with the state in this process.

        If the answer will be observed or may be reported later, `call.decision` holds what `settle` needs.
        """
        plan = self.plan(call)
        return self.count(call, plan, None) if isinstance(plan, Verdict) else self.decide_locally(call, plan)

    def decide_locally(self, call: Call, plan: Plan, local: LocalStore | None = None) -> Verdict:
        """Decide a planned call with a local store, by default the engine's own."""
        if not plan.ops and not plan.slots:
            return self.count(call, Verdict(), plan)
        try:
            if plan.slots or plan.now != plan.steady:
                ops, done = (local or self.local).commit(call, plan)
            else:  # as `LocalStore.commit` does it, without the call
                ops, rows, at = plan.ops, plan.rows, plan.rows_at
                if rows is not None and at == plan.counted and at + len(rows.keys) == len(ops):
                    done = self.local.store.commit(ops, plan.now, (), rows)
                else:
                    done = self.local.store.commit(ops, plan.now)
        except StateError as error:
            return self.count(call, self._without_store(call, plan, error), plan)
        return self.count(call, self.fold(call, plan, ops, done), plan)

    def fold(self, call: Call, plan: Plan, ops: list[Op], done: CommitResult) -> Verdict:
        """Return the verdict for a call whose operations were committed, in either store."""
        if self.recorder is not None:
            self._mark = self.recorder.begin(call, plan.now)
        if done.tightest < 0:
            verdict = self._folder.verdict(call, ops, done, plan.now)
        else:
            verdict = only_limited(ops, done, plan.now)
        if done.denied_at >= 0:
            self._hold_rules.denied(call, ops, done, verdict, plan.now)
            if type(ops[done.denied_at]) is CountFingerprint:
                keys = self._hold_rules.blocked(call, ops, done, window_keys(call, plan), plan.now)
                if verdict.loop is not None and verdict.loop.action == PAUSE:
                    verdict = self._paused(call, verdict, verdict.loop, keys, plan)
        if verdict.shadow:
            self.tally.shadowed += 1
        if verdict.allowed:
            if plan.metered:
                state = state_of(call)
                state.charges = adjustable_charges(ops, done)
                state.awaits_result = bool(state.charges)
            if plan.counted and (call.tracked or call.reported):
                ticket = self._ticket(ops, done, plan.counted + len(plan.slots))
                if ticket is not None:
                    await_result(call, ticket)
        return verdict

    def _paused(self, call: Call, denied: Verdict, loop: LoopFinding, keys: tuple[str, ...], plan: Plan) -> Verdict:
        """Hold the run of a call that was denied for a loop. Returns the denial of a paused run."""
        hold = self._hold_rules.pause(call, f"{loop.kind} loop ({loop.evidence})", keys, plan.bundle.pause, plan.now)
        verdict = held(hold, plan.now)
        own = replace(loop, cooldown_s=0)  # the pause decides how long it lasts
        verdict.policy, verdict.rule, verdict.loop, verdict.shadow = denied.policy, denied.rule, own, denied.shadow
        return verdict

    def _count_spending(self) -> None:
        """Count what granted runs spend, from now on: a person let one go on for an amount of money."""
        if self._answered != self._spent:
            self._answered_before, self._answered = self._answered, self._spent

    def _spent(self, call: Call, answer: Answer) -> None:
        state = call.decision
        hold = self.quarantine.by_key.get(state.run) if isinstance(state, GrantedState) else None
        if isinstance(state, GrantedState) and hold is not None and hold.question is not None:
            used = self.meter.used(call, answer, state.prompt_tokens)
            if used is not None and used.microusd and hold.question.id == state.pause:
                self.quarantine.use(hold, self._clock.now(), used.microusd)
        self._answered_before(call, answer)

    def _pause(self, call: Call, why: str, now: float) -> None:
        """Hold the run of a call that itself passes: a budget or a ceiling is nearly reached."""
        if self._bundle is not None:
            self._hold_rules.pause(call, why, (), self._bundle.pause, now)

    def count(self, call: Call, verdict: Verdict, plan: Plan | None) -> Verdict:
        """Count a verdict. This is the last step of every decision."""
        if plan is not None and verdict.allowed:
            if not plan.policies:
                verdict.reason = ALLOWED_NO_POLICY
            if plan.landing:
                land(verdict, OPERATOR_LANDED, f"An operator asks you to finish: {plan.landing.rstrip('.')}.")
        counts = self.tally.allowed if verdict.allowed else self.tally.denied
        counts[verdict.reason] = counts.get(verdict.reason, 0) + 1
        if self.recorder is not None:
            self.recorder.decided(call, verdict, self._mark, self._clock.now() if plan is None else plan.now)
            self._mark = None
        if verdict.tree is not None and verdict.tree.note and not verdict.note and verdict.allowed:
            verdict.note = tree_note(verdict.tree.note)
        return verdict

    def _ticket(self, ops: list[Op], done: CommitResult, counts: int) -> Ticket | None:
        """Return the counts that settling may take back, or that lead a flight. There are at most `counts`, and most
        come before the limits.
        """
        if counts == 1 and ops:  # as often: without a list
            op, result = ops[0], done.results[0]
            if type(op) is CountFingerprint and type(result) is FingerprintCount and not (result[1] or result[4]):
                return (Settle(op.spec, op.key, done.at, 0),) if op.spec.retry_free else None
        ticket: list[Settle] = []
        for op, result in zip(ops, done.results):  # noqa: B905 - as many; a keyword takes time
            if type(op) is not CountFingerprint or type(result) is not FingerprintCount:
                continue
            spec, flight = op.spec, result[4]
            if flight == JOINED:
                self.tally.joined += 1
            # If a shadow policy had been enforced, the call that it denied would have had no answer.
            elif (flight or spec.retry_free) and not (result[1] and denies(op, result)):
                ticket.append(Settle(spec, op.key, done.at, flight))
            counts -= 1
            if not counts:
                break
        return tuple(ticket) if ticket else None

    def settle(self, call: Call, answer: Answer) -> None:
        """Record how an allowed call was answered. A second answer to the same call is ignored."""
        state = state_of(call)
        ticket = state.ticket
        if ticket is _SETTLED:
            return
        state.ticket = _SETTLED
        tally = self.tally
        tally.settled += 1
        usage, failed = answer.usage, answer.failed
        if usage is not None:
            tally.input_tokens += usage.input_tokens
            tally.output_tokens += usage.output_tokens
        if failed:
            tally.failed += 1
        settlement: Settlement = state.settlement or self.local
        if ticket is not None:
            free = failed or (bool(answer.text) and self._moved_on(call, ticket[0].key, answer.text))
            is_one = len(ticket) == 1 and ticket[0].flight > 0  # as nearly always: without a list
            ended = ticket if free or is_one else [op for op in ticket if op.flight]
            if ended:
                settlement.settle(call, ended, failed=free)
        used = None
        if state.charges:
            used = self.meter.used(call, answer, state.prompt_tokens)
            made = adjustments(state.charges, used) if used is not None else []
            if made:
                settlement.correct(call, made)
        if state.windows is not None or (state.runs and not answer.calls):
            tree = call.identity.tree
            if tree is not None and tree.depth > 1 and usage is not None:
                state.microusd = self.meter.cost_microusd(call, usage) if used is None else used.microusd
            settlement.answered(call, answer)
        if self.recorder is not None:
            self.recorder.answered(call, answer, used)
        self._answered(call, answer)

    def pending_result(self, call: Call) -> PendingResult:
        """Return what to keep of a call that awaits its result."""
        state, who = state_of(call), call.identity
        charges, reserved = state.charges, None
        if charges:
            chat = call.parsed.chat
            slim = chat._replace(tail=()) if chat else None
            reserved = Reserved(charges, state.prompt_tokens, state.estimator, slim, call.upstream)
        caller, ticket, settlement = who.caller or self._descriptors.caller(call), state.ticket, state.settlement
        if not ticket:
            at = self._clock.steady()
            return PendingResult(at, caller, who.project, None, "", at, 0, (), settlement, reserved)
        first, more = ticket[0], ticket[1:]
        at = first.at
        kept_at = at if settlement is None else self._clock.steady()  # the store of this process has the same time
        key, flight = first.key, first.flight
        return PendingResult(kept_at, caller, who.project, first.spec, key, at, flight, more, settlement, reserved)

    def settle_result(self, pending: PendingResult, request_id: str, answer: Answer, *, with_charges: bool) -> None:
        """Settle a call whose result was reported. Without charges, the estimates stay."""
        self.settle(pending.call(request_id, with_charges=with_charges), answer)

    def _moved_on(self, call: Call, key: str, text: str) -> bool:
        """Return whether a repeated MCP call returned a different result than last time. Polling that returns something
        new is progress, so it is not counted, just like a failed attempt. For MCP calls only the answer shows this.
        """
        chat = call.parsed.chat
        if not isinstance(chat, Chat) or registry.DIALECTS[chat.dialect].is_llm:
            return False
        before, result = self._results.get(key), hash(text)
        self._results.put(key, result)
        return before is not None and before != result

    def plan(self, call: Call) -> Plan | Verdict:
        """Return what to commit, or the verdict if it does not depend on state."""
        bundle = self._bundle
        if bundle is None:
            return no_bundle()
        if len(call.body) > COUNTED_FROM_BYTES and not self._descriptors.is_inspectable(call):
            self.tally.unjudged += 1
            if self.enforces and rejects_large(bundle, call):
                return too_complex()
        clock = self._clock
        now = clock.now()
        plan = self._planner.plan(bundle, call, now, now - clock.ahead_s)
        if not call.body:
            return plan
        parsed = call.parsed
        chat, body = parsed.chat, parsed.body
        if body is not None and body.unread:
            self.tally.unjudged += 1
            if self.enforces and rejects_large(bundle, call):
                return too_complex()
        elif chat and not chat.message_count:
            self.tally.unjudged += 1
        elif chat is False and call.method == "POST":
            self._not_known(call)
        return plan

    def _not_known(self, call: Call) -> None:
        """Count and publish a request that looks like one of an LLM API that is not known."""
        unknown = self._unknown_apis
        if unknown is None:
            from breakloop.engine.unknown_apis import UnknownApis  # noqa: PLC0415 - most processes never need it

            unknown = self._unknown_apis = UnknownApis(self.tally.unknown_apis, self._publish, self._clock)
        unknown.note(call)

    def not_unpacked(self, call: Call, why: str) -> None:
        """Count and publish that a compressed body was not decompressed and is evaluated as received."""
        counts = self.tally.not_unpacked
        counts[why] = counts.get(why, 0) + 1
        self._publish(Event(BODY_NOT_UNPACKED, self._clock.now(), {"why": why}, request_id=call.request_id))

    def not_read(self, why: str) -> None:
        """Count an answer that was passed on without being parsed."""
        counts = self.tally.not_read
        counts[why] = counts.get(why, 0) + 1

    def repeated(self, call: Call, action: str, what: str, times: int) -> None:
        """Count and publish that a streamed answer repeats itself. `action` is what was done: "cut" or "warn"."""
        shadow = call.decision.guards_stream == REPORT_STREAM
        if action == "cut" and not shadow:
            self.tally.cut += 1
        self._publish(repeated_event(call, self._descriptors, action, what, times, self._clock.now()))

    def _missing(self, policy: str, rule: str, descriptor: str) -> None:
        missing = self.tally.missing
        missing[descriptor] = missing.get(descriptor, 0) + 1
        data = {"policy": policy, "rule": rule, "descriptor": descriptor}
        self._publish(Event(DESCRIPTOR_MISSING, self._clock.now(), data))

    def _without_store(self, call: Call, plan: Plan, error: StateError) -> Verdict:
        """Handle a failed store: allow the call without detection and mark it as degraded, unless a policy has
        `on_store_error: deny` (LD-7).
        """
        self.store_failed(call, error)
        verdict = unavailable(plan) or Verdict()
        verdict.degraded = True
        return verdict

    def store_failed(self, call: Call, error: StateError) -> None:
        """Count and publish a store error."""
        self.tally.store_errors += 1
        self._publish(Event(STORE_DEGRADED, self._clock.now(), {"error": str(error)}, request_id=call.request_id))


def tree_note(left: str) -> str:
    """Return the sentence that tells the model what is left of the budget of its tree."""
    return f"Budget: {left} left, for you and all agents that work on this task together."


def unavailable(plan: Plan) -> Verdict | None:
    """Return the denial of the first enforced policy with `on_store_error: deny`, or None."""
    for policy in plan.policies:
        shadow = policy.shadow or plan.bundle.shadow_until > plan.now
        if policy.denies_on_store_error and not shadow:
            verdict = denial("store_unavailable", policy.status, "The state store cannot be reached.")
            verdict.policy = policy.id
            verdict.retry_after_s = 1
            verdict.retry_jitter = True
            verdict.degraded = True
            return verdict
    return None
