"""Circuit breakers, for an operator (SPEC CB-2): which there are, and closing one at once. What opens them, and the
probe that closes them by itself, is the store's; who may ask is the admin API's.

A breaker is named by the key that its events carry. Keys hold no secrets: of API keys and tokens only a digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from breakloop.clock import Clock
from breakloop.model.events import BREAKER_CLOSED, Event, Publish
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.rules import BreakerRule
from breakloop.store.keys import SHADOW, RuleKey, parse_rule_key, project_of
from breakloop.store.ops import Store, StoredBreaker

OPEN, HALF_OPEN, CLOSED = "open", "half-open", "closed"
LISTED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class BreakerState:
    """One breaker, for people and the admin API. Amounts are in `unit`, whole."""

    policy: str
    key: str  # as events name it
    label: str  # whose it is, for people: `header:x-team=blue`
    state: str  # "open", "half-open" (the next request is the probe) or "closed"
    rate: int  # spent in the last minute
    threshold: int
    unit: str
    project: str
    opened_at: float | None = None
    resets_at: float | None = None  # None: only an operator closes it, or it is closed
    shadow: bool = False  # of a policy in shadow: it denies nothing


class Breakers:
    """The breakers of a bundle's policies."""

    __slots__ = ("_clock", "_publish", "_store")

    def __init__(self, store: Store, clock: Clock, publish: Publish) -> None:
        self._store = store
        self._clock = clock
        self._publish = publish

    def states(self, bundle: CompiledBundle | None, most: int = LISTED_MAX) -> list[BreakerState]:
        """Return up to `most` of them, open ones first. Raises `StateError` where the store cannot be asked."""
        now = self._clock.now()
        kept = [one for prefix in prefixes(bundle) for one in self._store.breakers(prefix, now, most)]
        return states(bundle, kept, now)[:most]

    def reset(self, bundle: CompiledBundle | None, policy: str, key: str) -> BreakerState | None:
        """Close a breaker at once, with nothing counted against it; return what it was, None if it was not open."""
        now = self._clock.now()
        # Of keys that begin alike the open ones come first, and of these the shortest.
        found = find(bundle, self._store.breakers(key, now, 1), policy, key, now)
        if found is not None:
            self._store.drop((key,))
            self._publish(closed(found, now))
        return found


def prefixes(bundle: CompiledBundle | None) -> list[str]:
    """Return how the keys of a bundle's breakers begin."""
    families = sorted({rule.limiter.family for rule in _rules(bundle).values()})
    return [f"{shadow}{family}:" for shadow in ("", SHADOW) for family in families]


def states(bundle: CompiledBundle | None, kept: Iterable[StoredBreaker], now: float) -> list[BreakerState]:
    """Return what a store keeps, as people see it, open ones first; without those of policies that are no more."""
    rules, found = _rules(bundle), []
    for one in kept:
        key = parse_rule_key(one.key)
        rule = None if key is None else rules.get(key.policy)
        if key is not None and rule is not None:
            found.append(_state(rule, one, key, now))
    found.sort(key=lambda one: (one.state == CLOSED, one.shadow, one.policy, one.key))
    return found


def find(
    bundle: CompiledBundle | None, kept: Iterable[StoredBreaker], policy: str, key: str, now: float
) -> BreakerState | None:
    """Return the breaker of this name, if it is open."""
    for found in states(bundle, kept, now):
        if (found.policy, found.key) == (policy, key) and found.state != CLOSED:
            return found
    return None


def closed(found: BreakerState, now: float) -> Event:
    """Return what is told of a breaker that an operator has closed."""
    data: dict[str, object] = {
        "policy": found.policy,
        "key": found.key,
        "rate": found.rate,
        "threshold": found.threshold,
        "unit": found.unit,
        "by": "operator",
        "shadow": found.shadow,
    }
    return Event(BREAKER_CLOSED, now, data, found.project)


def _state(rule: BreakerRule, kept: StoredBreaker, key: RuleKey, now: float) -> BreakerState:
    spec, since = rule.limiter.spec, kept.since
    resets = since + spec.reset_s if since is not None and spec.reset_s else None
    return BreakerState(
        policy=rule.policy,
        key=kept.key,
        label=rule.label(key.values),
        state=CLOSED if since is None else OPEN if resets is None or now < resets else HALF_OPEN,
        rate=round(kept.rate),
        threshold=round(spec.threshold),
        unit=rule.limiter.unit.name,
        project=project_of(key.place),
        opened_at=since,
        resets_at=resets,
        shadow=key.shadow,
    )


def _rules(bundle: CompiledBundle | None) -> dict[str, BreakerRule]:
    policies = () if bundle is None else bundle.policies
    return {policy.id: policy.breaker for policy in policies if policy.breaker is not None}
