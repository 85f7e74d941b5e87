"""Circuit breakers, for an operator (SPEC CB-2): which there are, and closing one at once. What opens them, and the
probe that closes them by itself, is the store's; who may ask is the admin API's.

A breaker is named by the key that its events carry. Keys hold no secrets: of API keys and tokens only a digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from breakloop.clock import Clock
from breakloop.model.events import BREAKER_CLOSED, Event, Publish
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.rules import BreakerRule
from breakloop.state.keys import plain
from breakloop.state.ops import BreakerKept
from breakloop.state.store import Store

OPEN, HALF_OPEN, CLOSED = "open", "half-open", "closed"
LISTED_MAX: Final = 1000
_SHADOW: Final = "shadow:"
_PARTS: Final = 5  # of a key: family, project, policy, rule, values


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
        rules = _rules(bundle)
        families = sorted({rule.limiter.family for rule in rules.values()})
        now = self._clock.now()
        found = [
            state
            for prefix in ("", _SHADOW)
            for family in families
            for state in self._states(rules, f"{prefix}{family}:", most, now)
        ]
        found.sort(key=lambda one: (one.state == CLOSED, one.shadow, one.policy, one.key))
        return found[:most]

    def reset(self, bundle: CompiledBundle | None, policy: str, key: str) -> BreakerState | None:
        """Close a breaker at once, with nothing counted against it; return what it was, None if it was not open."""
        now = self._clock.now()
        # Of keys that begin alike the open ones come first, and of these the shortest.
        found = next(self._states(_rules(bundle), key, 1, now), None)
        if found is None or (found.policy, found.key) != (policy, key) or found.state == CLOSED:
            return None
        self._store.drop((key,))
        data: dict[str, object] = {
            "policy": policy,
            "key": key,
            "rate": found.rate,
            "threshold": found.threshold,
            "unit": found.unit,
            "by": "operator",
            "shadow": found.shadow,
        }
        self._publish(Event(BREAKER_CLOSED, now, data, found.project))
        return found

    def _states(self, rules: dict[str, BreakerRule], prefix: str, most: int, now: float) -> Iterator[BreakerState]:
        for kept in self._store.breakers(prefix, now, most):
            shadow = kept.key.startswith(_SHADOW)
            parts = kept.key.removeprefix(_SHADOW).split(":")
            rule = rules.get(plain(parts[2])) if len(parts) == _PARTS else None
            if rule is not None:  # else it is of a policy that is no more
                yield _state(rule, kept, parts, now, shadow=shadow)


def _state(rule: BreakerRule, kept: BreakerKept, parts: list[str], now: float, *, shadow: bool) -> BreakerState:
    spec, since = rule.limiter.spec, kept.since
    resets = since + spec.reset_s if since is not None and spec.reset_s else None
    return BreakerState(
        policy=rule.policy,
        key=kept.key,
        label=rule.label(parts[4]),
        state=CLOSED if since is None else OPEN if resets is None or now < resets else HALF_OPEN,
        rate=round(kept.rate),
        threshold=round(spec.threshold),
        unit=rule.limiter.unit.name,
        project=plain(parts[1]),
        opened_at=since,
        resets_at=resets,
        shadow=shadow,
    )


def _rules(bundle: CompiledBundle | None) -> dict[str, BreakerRule]:
    policies = () if bundle is None else bundle.policies
    return {policy.id: policy.breaker for policy in policies if policy.breaker is not None}
