"""Compiled rules: when a rule applies, which keys it counts by, and what it charges. Also the circuit breaker of a
policy and the limit on the cost of a run (`max_usd_per_run`).

The limiter of a rule decides the amount of a charge, and the store decides whether the charge succeeds. A run is a
session, until ten minutes pass without a request. The window of the session stores when the run began; this start
time is part of the keys of its accounts, so that a late response corrects the run that was charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import ClassVar, Final, Protocol

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import RUN_IDLE_S, DetectorSlot, Evaluation, StatefulDetector, section_tags
from breakloop.limits.base import NOTHING, Estimate, LimitDenial, Limiter
from breakloop.limits.budget import SETTING, RunBudget, RunPaid
from breakloop.limits.circuit_breaker import CircuitBreakerLimiter
from breakloop.model.call import Call, CompletionCap
from breakloop.model.verdict import Verdict
from breakloop.pricing.tokens import Estimator
from breakloop.store.keys import escape, join_values, prefix, run_key, split_values
from breakloop.store.limit_ops import ChargeBudget
from breakloop.store.ops import ENFORCED, BucketRows, CommitResult, Deny, LimitOp, Op, RuleRef

Getter = Callable[[Call], str | None]
Match = tuple[tuple[Getter, str], ...]
OnMissing = Callable[[str, str, str], None]  # policy, rule, descriptor
AGENT: Final = "agent:id"
CHARGES_MAX: Final = 64  # number of policies whose charges are cached per sender


class MeterPort(Protocol):
    """Estimates what a call may use."""

    def estimate(self, call: Call, estimator: Estimator, *, money: bool) -> Estimate:
        """Return an estimate of what a call may use."""
        ...

    def reserve(self, call: Call, estimator: Estimator, *, money: bool) -> Estimate:
        """Return the same estimate for a rule that charges it, and store it for the settlement."""
        ...

    def cap(self, call: Call, cap: CompletionCap) -> None:
        """Limit the length of a streamed response."""
        ...

    def denies(self, call: Call) -> bool:
        """Return whether a call must be denied because the price of its model is not known."""
        ...


def unpriced(rule: RuleRef, group: int) -> Deny:
    """Return the denial of a call whose model has no price although cost is limited (`unknown_model: deny`)."""
    message = "The price of this model is not known, and unknown_model is deny."
    return Deny(LimitDenial(rule, "unknown_model", message), group)


@dataclass(slots=True, eq=False)
class CompiledRule:
    """A rule of a policy: which keys it counts by (`limit_keys`), when it applies (`match`), and its limiter."""

    name: str
    policy: str
    match: Match
    limit_keys: tuple[tuple[str, Getter], ...]
    limiter: Limiter
    rejects_missing: bool
    status: int
    estimator: Estimator | None = None  # set if the limiter needs an estimate of what a call may use
    caps: tuple[CompletionCap, CompletionCap] | None = None  # caps on streams: enforced, and in shadow mode
    of_agent: bool = field(init=False)  # it counts each agent separately
    _key: str = field(init=False)

    place: ClassVar[str] = ""  # inserted before the name in keys
    denial_reason: ClassVar[str] = "missing_descriptor"

    def __post_init__(self) -> None:
        self.of_agent = any(name == AGENT for name, _ in self.limit_keys)
        self._key = f":{escape(self.policy)}:{self.place}{escape(self.name)}:"

    def applies(self, call: Call) -> bool:
        """Return whether every descriptor of `match` has the required value."""
        for get, value in self.match:  # noqa: SIM110 - a generator costs twice as much on the hot path
            if get(call) != value:
                return False
        return True

    def plan(
        self, call: Call, project: str, group: int, now: float, meter: MeterPort, missing: OnMissing
    ) -> tuple[Op, ...]:
        """Return the charges. If a descriptor is missing, return a denial, or nothing if the rule is then skipped."""
        keys = self.keys(call, project, group, missing)
        if keys is None:
            return (Deny(self, group),) if self.rejects_missing else ()
        return self.charges(call, keys, group, now, meter)

    def keys(self, call: Call, project: str, group: int, missing: OnMissing) -> list[str] | None:
        """Return the keys it counts by, one for each family of its limiter, or None if a descriptor is missing."""
        rest = self._rest(call, project)
        if rest is None:
            missing(self.policy, self.name, self.missing_keys(call)[0])
            return None
        begins = prefix(group)
        return [f"{begins}{family}{rest}" for family in self.limiter.families]

    def charges(self, call: Call, keys: Sequence[str], group: int, now: float, meter: MeterPort) -> tuple[Op, ...]:
        """Return the charges of a call under these keys, or a denial if the call can never be allowed."""
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
        """Return the key of another family for the same sender, or None if a descriptor is missing."""
        rest = self._rest(call, project)
        return None if rest is None else f"{prefix(group)}{family}{rest}"

    def _rest(self, call: Call, project: str) -> str | None:
        """Return what follows the family in a key, or None if a descriptor is missing."""
        values = [value for _, get in self.limit_keys if (value := get(call)) is not None]
        if len(values) < len(self.limit_keys):
            return None
        place = (call.identity.shard or project) if self.of_agent else project
        return f":{place}{self._key}{join_values(values) if values else ''}"

    @property
    def denied_by(self) -> tuple[str, str]:
        """Policy and rule, for the records of a denial."""
        return self.policy, self.name

    def describe_denial(self, call: Call, verdict: Verdict) -> None:
        """Fill in the verdict for a call that is denied because a descriptor is missing."""
        verdict.status = self.status
        verdict.policy, verdict.rule = self.policy, self.name
        missing = ", ".join(self.missing_keys(call))
        verdict.message = f"The request lacks {missing}, which this limit counts by."

    def missing_keys(self, call: Call) -> list[str]:
        """Return the names of the `limit_keys` that this call lacks."""
        return [name for name, get in self.limit_keys if get(call) is None]


class FallbackRule(CompiledRule):
    """The rule that applies if no other does. The `|` in its keys separates it from a rule with the same name."""

    __slots__ = ()

    place = "|"


@dataclass(frozen=True, slots=True)
class CachedCharges:
    """What the rules of one policy charge one sender: operations where they are always the same, or else the rule with
    its keys. Valid from `begins` to `ends`, because the keys of budgets contain their period.
    """

    fixed: tuple[Op, ...] | None  # all operations, if none depends on the call
    parts: tuple[tuple[tuple[Op, ...], CompiledRule | None, Sequence[str]], ...]
    begins: float
    ends: float
    rows: BucketRows | None = None  # of all operations, if they are enforced and take from token buckets


class BreakerRule:
    """The circuit breaker of a policy. It counts what the first rule of the policy would charge, by the same keys."""

    __slots__ = ("_by_money", "_rule", "limiter", "name", "policy", "status")

    def __init__(self, rule: CompiledRule, limiter: CircuitBreakerLimiter, by_money: Estimator | None = None) -> None:
        self.policy = rule.policy
        self.name = "circuit_breaker"
        self.status = rule.status
        self.limiter = limiter
        self._rule = rule
        self._by_money = by_money  # `spend_source: usage:usd`

    def label(self, values: str) -> str:
        """Return a label for display: each of the `values` from a key with its descriptor."""
        pairs = zip(self._rule.limit_keys, split_values(values), strict=False)
        return ", ".join(f"{name}={value}" for (name, _), value in pairs)

    def plan(self, call: Call, project: str, charges: Iterable[Op], group: int, meter: MeterPort) -> Op | None:
        """Return its operation, or None if the first rule charges nothing."""
        own = [op for op in charges if isinstance(op, LimitOp) and op.rule is self._rule]
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
    """The owner of the account that holds the actual cost of a run."""

    __slots__ = ("limiter", "name", "policy", "status")

    def __init__(self, rule: RunRule) -> None:
        self.limiter = RunPaid()
        self.name, self.policy, self.status = rule.name, rule.policy, rule.status


class RunRule:
    """The cost limit of an agent, or of every agent that a pattern matches. Each run has its own account."""

    __slots__ = ("_estimator", "_prefix", "config", "limiter", "name", "owner", "paid", "policy", "status", "tags")

    def __init__(
        self,
        pattern: str,
        usd: float,
        config: DetectorConfig,
        *,
        owner: Callable[[Call], str],
        estimator: Estimator,
        stages: Iterable[tuple[float, str, int]] = (),
    ) -> None:
        self.policy, self.status = config.policy, config.status
        self.name = f"{pattern}/{SETTING}"
        self.limiter = RunBudget(usd, stages)
        self.paid = RunCharge(self)
        self.config = config
        self.tags = section_tags(config, "run:usd:")
        self.owner = owner
        self._estimator = estimator
        self._prefix = f":{escape(self.policy)}:{escape(self.name)}:"

    def plan(self, call: Call, group: int, meter: MeterPort) -> tuple[DetectorSlot | Op, ...]:
        """Return slots for the charges, which can only be built once the run is known; nothing for calls other than LLM
        calls.
        """
        if meter.denies(call):
            return (unpriced(self, group),)
        estimate = meter.reserve(call, self._estimator, money=True)
        if estimate is NOTHING:
            return ()
        cost = self.limiter.cost_of(call, estimate)
        # The actual cost comes first: it is reported even if the limit denies the call.
        return DetectorSlot(_Charge(self, self.paid, 0), group), DetectorSlot(_Charge(self, self, cost), group)

    def key(self, project: str, owner: str, start: float, group: int) -> str:
        return run_key(project, self._prefix, owner, start, group)

    def reached(self, ops: Sequence[Op], done: CommitResult) -> tuple[str, tuple[str, ...]] | None:
        """Return the reason for holding a run that was denied, and the keys of its accounts.

        None if there is nothing for an operator to decide: the request alone costs more than the limit, or it would
        be allowed if the requests in flight turned out to cost nothing.
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
    """One charge of one call. The window that identifies the run must be read first."""

    __slots__ = ("_cost", "_payer", "_rule")

    def __init__(self, rule: RunRule, payer: RunRule | RunCharge, cost: int) -> None:
        self._rule = rule
        self._payer = payer
        self._cost = cost
        self.tags, self.config = rule.tags, rule.config

    def owner(self, call: Call) -> str:
        """Return the session, which identifies the run; "" if the call has none, and then nothing is charged."""
        return self._rule.owner(call)

    def evaluate(self, _call: Call, window: bytes, now: float) -> Evaluation:
        """Continue the run, or begin a new one."""
        start, last = _read(window)
        if not start or now - last >= RUN_IDLE_S:
            start = now
        elif last == now:
            return Evaluation(window)
        return Evaluation(_SECTION.pack(_VERSION, start, now))

    def operation(self, call: Call, evaluation: Evaluation, project: str, group: int) -> Op:
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
