"""Circuit breakers as operators see them: list them, and close one immediately.

The store opens breakers, and closes them after a successful probe; the admin API decides who may use this. A breaker
is named by the key in its events. Keys contain no secrets: API keys and tokens appear only as digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from breakloop.clock import Clock
from breakloop.errors import StateError
from breakloop.model.events import BREAKER_CLOSED, Event, Publish
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.rules import BreakerRule
from breakloop.store.keys import SHADOW, RuleKey, parse_rule_key, project_of
from breakloop.store.ops import Store, StoredAccount, StoredBreaker

OPEN, HALF_OPEN, CLOSED = "open", "half-open", "closed"
LISTED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class BreakerState:
    """One breaker, for display and the admin API. Amounts are whole numbers of `unit`."""

    policy: str
    key: str  # as in events
    label: str  # the descriptor values, for display: `header:x-team=blue`
    state: str  # "open", "half-open" (the next request is the probe) or "closed"
    rate: int  # spent in the last minute
    threshold: int
    unit: str
    project: str
    opened_at: float | None = None
    resets_at: float | None = None  # None if it is closed, or if only an operator closes it
    shadow: bool = False  # belongs to a shadow policy and denies nothing


class StoredLimits(Protocol):
    """The state of limits in a store, for operators. Times are times of day."""

    async def breakers(self, prefix: str, most: int) -> list[StoredBreaker]:
        """Return the breakers whose key begins with `prefix`, open ones first. Raises `StateError`."""
        ...

    async def accounts(self, prefix: str, most: int) -> list[StoredAccount]:
        """Return the accounts whose key begins with `prefix`, the most used first. Raises `StateError`."""
        ...

    def drop(self, keys: Sequence[str], then: Callable[[StateError | None], None]) -> None: ...


class LocalLimits:
    """The state of limits in a store of this process, whose times are steady."""

    __slots__ = ("_clock", "_store")

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def breakers(self, prefix: str, most: int) -> list[StoredBreaker]:
        found, ahead_s = self._store.breakers(prefix, self._clock.steady(), most), self._clock.ahead_s
        return [one if one.since is None else one._replace(since=one.since + ahead_s) for one in found]

    async def accounts(self, prefix: str, most: int) -> list[StoredAccount]:
        found, ahead_s = self._store.accounts(prefix, self._clock.steady(), most), self._clock.ahead_s
        return [one._replace(ends=one.ends + ahead_s) for one in found]

    def drop(self, keys: Sequence[str], then: Callable[[StateError | None], None]) -> None:
        self._store.drop(keys)
        then(None)


def ignore(_error: StateError | None) -> None:
    """Ignore whether keys were dropped: the operator has been answered."""


class Breakers:
    """The breakers of the policies in force. Methods raise `StateError` if the store is not available."""

    __slots__ = ("_bundle", "_clock", "_publish", "_stored")

    def __init__(
        self, stored: StoredLimits, bundle: Callable[[], CompiledBundle | None], clock: Clock, publish: Publish
    ) -> None:
        self._stored = stored
        self._bundle = bundle
        self._clock = clock
        self._publish = publish

    async def states(self) -> list[BreakerState]:
        """Return the breakers, open ones first."""
        bundle = self._bundle()
        kept = [one for prefix in prefixes(bundle) for one in await self._stored.breakers(prefix, LISTED_MAX)]
        return states(bundle, kept, self._clock.now())[:LISTED_MAX]

    async def reset(self, policy: str, key: str) -> BreakerState | None:
        """Close a breaker immediately and reset its count. Returns its previous state, or None if it was not open."""
        now = self._clock.now()
        # For keys with the same prefix, the store returns open breakers first, and the shortest key first among them.
        found = find(self._bundle(), await self._stored.breakers(key, 1), policy, key, now)
        if found is not None:
            self._stored.drop((key,), ignore)
            self._publish(closed(found, now))
        return found


def prefixes(bundle: CompiledBundle | None) -> list[str]:
    """Return the key prefixes of a bundle's breakers."""
    families = sorted({rule.limiter.family for rule in _rules(bundle).values()})
    return [f"{shadow}{family}:" for shadow in ("", SHADOW) for family in families]


def states(bundle: CompiledBundle | None, kept: Iterable[StoredBreaker], now: float) -> list[BreakerState]:
    """Return the stored breakers as `BreakerState`, open ones first. Breakers of policies that no longer exist are left
    out.
    """
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
    """Return the breaker with this policy and key if it is open."""
    for found in states(bundle, kept, now):
        if (found.policy, found.key) == (policy, key) and found.state != CLOSED:
            return found
    return None


def closed(found: BreakerState, now: float) -> Event:
    """Return the event for a breaker that an operator has closed."""
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
