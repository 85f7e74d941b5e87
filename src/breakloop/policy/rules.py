"""One rule of a policy, compiled: when it applies, whom it counts, what it charges; and the circuit breaker in front of
a policy's rules. What a charge is worth is its limiter's to say, whether it is made the store's.

`max_usd_per_run` (SPEC B-1, G-1): which run a call belongs to, and what is charged to it. A run is a session, until
ten minutes without a request; the session's window remembers when it began, and that start names its accounts, so that
a late answer corrects the run that was charged. What the charges come to is `limits.run_budget`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final, Protocol

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import RUN_IDLE_S, DetectorSlot, Evaluation, StatefulDetector, section_tags
from breakloop.limits.base import NOTHING, Estimate, LimitDenial, Limiter
from breakloop.limits.budget import SETTING, RunBudget, RunPaid
from breakloop.limits.circuit_breaker import CircuitBreakerLimiter
from breakloop.model.call import Call, CompletionCap
from breakloop.model.verdict import Verdict
from breakloop.pricing.tokens import Estimator
from breakloop.store.keys import escape, join_values, prefix, run_key, split_values
from breakloop.store.ops import ENFORCED, Charge, ChargeBudget, CommitResult, Deny, Op, RuleRef

Getter = Callable[[Call], str | None]
Match = tuple[tuple[Getter, str], ...]
OnMissing = Callable[[str, str, str], None]  # policy, rule, descriptor
AGENT: Final = "agent:id"


def fits(match: Match, call: Call) -> bool:
    """Tell whether every descriptor of a `match` has its value."""
    for get, value in match:  # noqa: SIM110 - a generator costs twice as much on the hot path
        if get(call) != value:
            return False
    return True


class MeterPort(Protocol):
    """Who knows what a call may use."""

    def estimate(self, call: Call, estimator: Estimator, *, money: bool) -> Estimate:
        """Return what a call may use."""
        ...

    def reserve(self, call: Call, estimator: Estimator, *, money: bool) -> Estimate:
        """Return the same for a rule that charges it, and keep it for the settlement."""
        ...

    def cap(self, call: Call, cap: CompletionCap) -> None:
        """Limit the length of a streamed answer."""
        ...

    def denies(self, call: Call) -> bool:
        """Tell whether a call may not pass because nobody knows what its model costs."""
        ...


def unpriced(rule: RuleRef, group: int) -> Deny:
    """Return the refusal of a call whose model has no price, where money is counted (`unknown_model: deny`)."""
    message = "The price of this model is not known, and unknown_model is deny."
    return Deny(LimitDenial(rule, "unknown_model", message), group)


class CompiledRule:
    """One rule of a policy: whom it counts (`limit_keys`), when (`match`), and its limiter."""

    __slots__ = (
        "_key", "_keys", "_match", "caps", "estimator", "limiter", "name", "of_agent", "policy", "rejects_missing",
        "status",
    )  # fmt: skip

    place = ""  # in keys, in front of the name
    denial_reason: Final = "missing_descriptor"

    def __init__(
        self,
        name: str,
        policy: str,
        *,
        match: Match,
        keys: tuple[tuple[str, Getter], ...],
        limiter: Limiter,
        rejects_missing: bool,
        status: int,
    ) -> None:
        self.name = name
        self.policy = policy
        self.limiter = limiter
        self.rejects_missing = rejects_missing
        self.status = status
        self._match = match
        self._keys = keys
        self.of_agent = any(name == AGENT for name, _ in keys)  # it counts each agent by itself
        self.estimator: Estimator | None = None  # set where the limiter needs to know what a call may use
        self.caps: tuple[CompletionCap, CompletionCap] | None = None  # of streams: enforced, and in shadow
        self._key = f":{escape(policy)}:{self.place}{escape(name)}:"

    def applies(self, call: Call) -> bool:
        """Tell whether every `match` descriptor has its value."""
        return not self._match or fits(self._match, call)

    def plan(
        self, call: Call, project: str, group: int, now: float, meter: MeterPort, missing: OnMissing
    ) -> tuple[Op, ...]:
        """Return the charges, a refusal for a missing descriptor, or nothing when the rule is skipped for it."""
        keys = self.keys(call, project, group, missing)
        if keys is None:
            return (Deny(self, group),) if self.rejects_missing else ()
        return self.charges(call, keys, group, now, meter)

    def keys(self, call: Call, project: str, group: int, missing: OnMissing) -> list[str] | None:
        """Return whom it counts, as keys: one for each family of its limiter. None where a descriptor is missing."""
        values: list[str] = []
        for name, get in self._keys:
            value = get(call)
            if value is None:
                missing(self.policy, self.name, name)
                return None
            values.append(value)
        rest = f":{self._place(call, project)}{self._key}{join_values(values) if values else ''}"
        begins = prefix(group)
        return [f"{begins}{family}{rest}" for family in self.limiter.families]

    def charges(self, call: Call, keys: Sequence[str], group: int, now: float, meter: MeterPort) -> tuple[Op, ...]:
        """Return what a call is charged under these keys, or the refusal of one that can never pass."""
        limiter, estimator = self.limiter, self.estimator
        if estimator is None:
            return limiter.charges(call, keys, self, group, now, NOTHING)
        money = limiter.needs == "microusd"
        if money and meter.denies(call):
            return (unpriced(self, group),)
        estimate = meter.reserve(call, estimator, money=money)
        if self.caps is not None:
            meter.cap(call, self.caps[group != ENFORCED])
        return limiter.charges(call, keys, self, group, now, estimate)

    def key(self, call: Call, project: str, group: int, family: str) -> str | None:
        """Return a key of another family for the same sender; None where a descriptor is missing."""
        values = [get(call) for _, get in self._keys]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        place, values_told = self._place(call, project), join_values(known) if known else ""
        return f"{prefix(group)}{family}:{place}{self._key}{values_told}"

    def _place(self, call: Call, project: str) -> str:
        return (call.identity.shard or project) if self.of_agent else project

    @property
    def denied_by(self) -> tuple[str, str]:
        """Where a refusal comes from, for records: policy and rule."""
        return self.policy, self.name

    def describe_denial(self, call: Call, verdict: Verdict) -> None:
        """Say why a call that lacks a descriptor is denied."""
        verdict.status = self.status
        verdict.policy, verdict.rule = self.policy, self.name
        missing = ", ".join(self.missing_keys(call))
        verdict.message = f"The request lacks {missing}, which this limit counts by."

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of its `limit_keys`, as its keys hold them."""
        return tuple(name for name, _ in self._keys)

    def missing_keys(self, call: Call) -> list[str]:
        """Return the names of `limit_keys` that this call lacks."""
        return [name for name, get in self._keys if get(call) is None]


class FallbackRule(CompiledRule):
    """The rule for whoever no other rule is for. A bare `|` keeps its counters apart from a rule of the same name."""

    __slots__ = ()

    place = "|"


class BreakerRule:
    """The circuit breaker of a policy: counts what its first rule would charge, by that rule's keys (SPEC CB-1)."""

    __slots__ = ("_by_money", "_rule", "limiter", "name", "policy", "status")

    def __init__(self, rule: CompiledRule, limiter: CircuitBreakerLimiter, by_money: Estimator | None = None) -> None:
        self.policy = rule.policy
        self.name = "circuit_breaker"
        self.status = rule.status
        self.limiter = limiter
        self._rule = rule
        self._by_money = by_money  # `spend_source: usage:usd`

    def label(self, values: str) -> str:
        """Return whose breaker it is, for people: `values` as they stand in its key, each with its descriptor."""
        names = self._rule.key_names
        return ", ".join(f"{name}={value}" for name, value in zip(names, split_values(values), strict=False))

    def plan(self, call: Call, project: str, charges: Iterable[Op], group: int, meter: MeterPort) -> Op | None:
        """Return what it counts, or None where the first rule charges nothing."""
        own = [op for op in charges if isinstance(op, Charge) and op.rule is self._rule]
        if not own:
            return None
        if self._by_money is None:
            amount = self._rule.limiter.total(own)
        else:
            amount = meter.estimate(call, self._by_money, money=True).microusd
        key = self._rule.key(call, project, group, self.limiter.family) if amount else None
        return None if key is None else self.limiter.plan(key, amount, self, group)


_SECTION: Final = Struct("<Bdd")
_VERSION: Final = 1


class RunCharge:
    """Owns the account of what a run has really cost."""

    __slots__ = ("limiter", "name", "policy", "status")

    def __init__(self, rule: RunRule) -> None:
        self.limiter = RunPaid()
        self.name, self.policy, self.status = rule.name, rule.policy, rule.status


class RunRule:
    """The ceiling of one agent, or of all that a pattern names: each run has its own."""

    __slots__ = ("_estimator", "_prefix", "config", "limiter", "name", "owner", "paid", "policy", "status", "tags")

    def __init__(
        self, pattern: str, usd: float, config: DetectorConfig, *, owner: Callable[[Call], str], estimator: Estimator
    ) -> None:
        self.policy, self.status = config.policy, config.status
        self.name = f"{pattern}/{SETTING}"
        self.limiter = RunBudget(usd)
        self.paid = RunCharge(self)
        self.config = config
        self.tags = section_tags(config, "run:usd:")
        self.owner = owner
        self._estimator = estimator
        self._prefix = f":{escape(self.policy)}:{escape(self.name)}:"

    def plan(self, call: Call, group: int, meter: MeterPort) -> tuple[DetectorSlot | Op, ...]:
        """Return what stands for the charges until the run is known; nothing for what is no LLM call."""
        if meter.denies(call):
            return (unpriced(self, group),)
        estimate = meter.reserve(call, self._estimator, money=True)
        if estimate is NOTHING:
            return ()
        cost = self.limiter.cost_of(call, estimate)
        # What was paid comes first: it is told even where the ceiling denies.
        return DetectorSlot(_Charge(self, self.paid, 0), group), DetectorSlot(_Charge(self, self, cost), group)

    def key(self, project: str, owner: str, start: float, group: int) -> str:
        """Return the key of a run's account."""
        return run_key(project, self._prefix, owner, start, group)

    def reached(self, ops: Sequence[Op], done: CommitResult) -> tuple[str, tuple[str, ...]] | None:
        """Return why a run that was denied is to be held, and the keys of its accounts.

        None where a person has nothing to decide: the request alone costs more than any run may, or it would pass if
        what is in flight were answered and cost nothing.
        """
        op = ops[done.denied_at]
        own = [
            (one, result)
            for one, result in zip(ops, done.results, strict=True)
            if isinstance(one, ChargeBudget) and one.rule is self.paid
        ]
        paid = sum([int(result) for one, result in own if one.group == op.group and isinstance(result, int)])
        if not isinstance(op, ChargeBudget) or not op.spec.budget - paid < op.cost <= op.spec.budget:
            return None
        words = self.limiter.unit.words
        why = f"{words(op.spec.budget)} ({SETTING}), of which {words(paid)} were spent"
        return why, (op.key, *[one.key for one, _ in own])


class _Charge(StatefulDetector):
    """One charge of one call, while the window is read that says which run it is."""

    __slots__ = ("_cost", "_payer", "_rule")

    def __init__(self, rule: RunRule, payer: RunRule | RunCharge, cost: int) -> None:
        self._rule = rule
        self._payer = payer
        self._cost = cost
        self.tags, self.config = rule.tags, rule.config

    def owner(self, call: Call) -> str:
        """Return the session, which is the run; "" where a call has none, and then nothing is charged."""
        return self._rule.owner(call)

    def evaluate(self, _call: Call, window: bytes, now: float) -> Evaluation:
        """Go on with the run, or begin one."""
        start, last = _read(window)
        if not start or now - last >= RUN_IDLE_S:
            start = now
        elif last == now:
            return Evaluation(window)
        return Evaluation(_SECTION.pack(_VERSION, start, now))

    def operation(self, call: Call, evaluation: Evaluation, project: str, group: int) -> Op:
        """Return the charge."""
        payer = self._payer
        start, now = _read(evaluation.window)
        key = self._rule.key(project, self.owner(call), start, group)
        if payer is not self._rule:
            key += ":paid"
        return payer.limiter.plan(key, self._cost, payer, group, now)


def _read(window: bytes) -> tuple[float, float]:
    if len(window) != _SECTION.size or window[0] != _VERSION:
        return 0.0, 0.0
    _, start, last = _SECTION.unpack(window)
    return start, last
