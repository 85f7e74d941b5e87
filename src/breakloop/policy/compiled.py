"""A bundle as the engine uses it: immutable, in evaluation order, every descriptor resolved to a function.
`compile` makes it from the validated schema; nothing here reads YAML, time or the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from breakloop.detect.loop import LoopTerms
from breakloop.detect.watch import Watch
from breakloop.limits.circuit_breaker import CircuitBreaker
from breakloop.limits.limiter import NOTHING, Estimate, Limiter, Refusal
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.policy.kill_switch import KillSwitches
from breakloop.policy.presence import Presence
from breakloop.policy.routes import Routes, Selector
from breakloop.policy.senders import Senders
from breakloop.pricing.estimate import Estimator
from breakloop.state.keys import joined, part
from breakloop.state.ops import Op, Refuse, Repeat

Getter = Callable[[Call], str | None]
Match = tuple[tuple[Getter, str], ...]


class Detector(Protocol):
    """A compiled loop detector: one that counts fingerprints, or one that remembers."""

    terms: LoopTerms

    def plan(self, call: Call, project: str, group: int, now: float) -> Repeat | Watch | None:
        """Return what it needs from the store, or what stands for that until a window is read."""
        ...


OnMissing = Callable[[str, str, str], None]  # policy, rule, descriptor


def fits(match: Match, call: Call) -> bool:
    """Tell whether every descriptor of a `match` has its value."""
    for get, value in match:  # noqa: SIM110 - a generator costs twice as much on the hot path
        if get(call) != value:
            return False
    return True


class Metering(Protocol):
    """Who knows what a call may use."""

    def estimate(self, call: Call, estimator: Estimator, *, money: bool) -> Estimate:
        """Return what a call may use."""
        ...

    def denies(self, call: Call) -> bool:
        """Tell whether a call may not pass because nobody knows what its model costs."""
        ...


class Rule:
    """One rule of a policy: whom it counts (`limit_keys`), when (`match`), and its limiter."""

    __slots__ = ("_key", "_keys", "_match", "estimator", "limiter", "name", "policy", "rejects_missing", "status")

    place = ""  # in keys, in front of the name
    refusal: Final = "missing_descriptor"

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
        self.estimator: Estimator | None = None  # set where the limiter needs to know what a call may use
        self._key = f":{part(policy)}:{self.place}{part(name)}:"

    def applies(self, call: Call) -> bool:
        """Tell whether every `match` descriptor has its value."""
        return not self._match or fits(self._match, call)

    def plan(
        self, call: Call, project: str, group: int, now: float, meter: Metering, missing: OnMissing
    ) -> tuple[Op, ...]:
        """Return the charges, a refusal for a missing descriptor, or nothing when the rule is skipped for it."""
        values: list[str] = []
        for name, get in self._keys:
            value = get(call)
            if value is None:
                missing(self.policy, self.name, name)
                return (Refuse(self, group),) if self.rejects_missing else ()
            values.append(value)
        rest = f":{project}{self._key}{joined(values) if values else ''}"
        limiter = self.limiter
        shadow = "shadow:" if group else ""
        keys = [f"{shadow}{family}{rest}" for family in limiter.families]
        if self.estimator is None:
            return limiter.charges(call, keys, self, group, now, NOTHING)
        money = limiter.needs == "microusd"
        if money and meter.denies(call):
            message = "The price of this model is not known, and unknown_model is deny."
            return (Refuse(Refusal(self, "unknown_model", message), group),)
        estimate = meter.estimate(call, self.estimator, money=money)
        call.prompt_tokens = estimate.prompt_tokens
        return limiter.charges(call, keys, self, group, now, estimate)

    def key(self, call: Call, project: str, group: int, family: str) -> str | None:
        """Return a key of another family for the same sender; None where a descriptor is missing."""
        values = [get(call) for _, get in self._keys]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return f"{'shadow:' if group else ''}{family}:{project}{self._key}{joined(known) if known else ''}"

    @property
    def refusal_at(self) -> tuple[str, str]:
        """Where a refusal comes from, for records: policy and rule."""
        return self.policy, self.name

    def refused(self, call: Call, verdict: Verdict) -> None:
        """Say why a call that lacks a descriptor is denied."""
        verdict.status = self.status
        verdict.policy, verdict.rule = self.policy, self.name
        missing = ", ".join(self.missing_keys(call))
        verdict.message = f"The request lacks {missing}, which this limit counts by."

    def missing_keys(self, call: Call) -> list[str]:
        """Return the names of `limit_keys` that this call lacks."""
        return [name for name, get in self._keys if get(call) is None]


class Fallback(Rule):
    """The rule for whoever no other rule is for. A bare `|` keeps its counters apart from a rule of the same name."""

    __slots__ = ()

    place = "|"


class BreakerRule:
    """The circuit breaker of a policy: counts what its first rule would charge, by that rule's keys (SPEC CB-1)."""

    __slots__ = ("_by_money", "_rule", "limiter", "name", "policy", "status")

    def __init__(self, rule: Rule, limiter: CircuitBreaker, by_money: Estimator | None = None) -> None:
        self.policy = rule.policy
        self.name = "circuit_breaker"
        self.status = rule.status
        self.limiter = limiter
        self._rule = rule
        self._by_money = by_money  # `spend_source: usage:usd`

    def plan(self, call: Call, project: str, charges: Iterable[Op], group: int, meter: Metering) -> Op | None:
        """Return what it counts, or None where the first rule charges nothing."""
        own = [op for op in charges if op.owner is self._rule]
        if not own:
            return None
        if self._by_money is None:
            amount = self._rule.limiter.spend(own)
        else:
            amount = meter.estimate(call, self._by_money, money=True).microusd
        key = self._rule.key(call, project, group, self.limiter.family) if amount else None
        return None if key is None else self.limiter.plan(key, amount, self, group)


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy, compiled."""

    id: str
    index: int
    selector: Selector
    shadow: bool
    loops: tuple[Detector, ...]
    decides_loops: bool  # it has a `loop_detection` of its own, even a disabled one
    rules: tuple[Rule, ...]
    fallback: Rule | None
    breaker: BreakerRule | None
    status: int
    denies_on_store_error: bool
    rejects_large_bodies: bool
    descriptors: tuple[tuple[str, Getter], ...]  # all it names, for debug headers and `explain`
    metered: bool  # some of its rules charge what an answer corrects
    steady: bool  # what its rules do depends on nothing but the sender (`policy.senders`)


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """What holds for one agent beside the policies."""

    pattern: str  # as the bundle names it
    detectors: tuple[Detector, ...]
    presence: Presence
    rules: tuple[Rule, ...] = ()  # its rate limit and its daily budget

    @property
    def metered(self) -> bool:
        """Whether it charges what an answer corrects."""
        return any(rule.limiter.needs for rule in self.rules)


class Agents:
    """Settings by agent: by its name, else by the longest pattern that fits."""

    __slots__ = ("_named", "_prefixes")

    def __init__(self, terms: Iterable[AgentTerms]) -> None:
        made = list(terms)
        self._named = {one.pattern: one for one in made if not one.pattern.endswith("*")}
        patterns = [one for one in made if one.pattern.endswith("*")]
        self._prefixes = sorted(patterns, key=lambda one: len(one.pattern), reverse=True)

    def __bool__(self) -> bool:
        return bool(self._named or self._prefixes)

    @property
    def metered(self) -> bool:
        """Whether any of them charges what an answer corrects."""
        return any(one.metered for one in (*self._named.values(), *self._prefixes))

    def find(self, agent: str) -> AgentTerms | None:
        """Return what is said of an agent, or None."""
        named = self._named.get(agent)
        if named is not None:
            return named
        return next((one for one in self._prefixes if agent.startswith(one.pattern[:-1])), None)


@dataclass(frozen=True, slots=True)
class CompiledBundle:
    """Everything one request is judged by. Swapped whole: a request sees one bundle."""

    version: int
    digest: str
    policies: tuple[Policy, ...]
    routes: Routes[Policy]
    senders: Senders
    kill_switches: KillSwitches
    shadow_until: float  # `global_shadow` is active before this time
    kill_override_until: float
    expires: float
    default_loops: tuple[Detector, ...]
    project_loops: dict[str, tuple[Detector, ...]]  # projects with a `loop_guard` of their own
    agents: Agents
