"""Schema -> `CompiledBundle`. Runs once per bundle, off the request path; what can be worked out early is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from breakloop.detect.fingerprint import Fingerprinter
from breakloop.limits.circuit_breaker import CircuitBreaker
from breakloop.limits.units import MICROUSD
from breakloop.model.call import SECRET_HEADERS, Call
from breakloop.policy import schema
from breakloop.policy.compile_agents import agent_terms
from breakloop.policy.compile_limits import LimiterMaker, stream_caps
from breakloop.policy.compile_loops import LoopGuard, LoopMaker, expiry
from breakloop.policy.compiled import Agents, CompiledBundle, Policy
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.kill_switch import KillSwitch, KillSwitches
from breakloop.policy.routes import Routes, Selector
from breakloop.policy.rules import BreakerRule, Fallback, Getter, Match, Rule
from breakloop.policy.schema_types import validate
from breakloop.policy.senders import Senders, steady
from breakloop.pricing.estimate import estimator

SECRET_DESCRIPTORS = frozenset([*(f"header:{name}" for name in SECRET_HEADERS), "query:key", "query:api_key"])


def compile_bundle(
    bundle: schema.Bundle | None, digest: str, descriptors: Descriptors, secret: bytes, guard: LoopGuard
) -> CompiledBundle:
    """Return the bundle ready for the engine. None stands for "no policy configured": the built-in protection only.

    Changes nothing outside the bundle that it returns: a bundle may be compiled only to validate it.
    """
    if bundle is None:
        bundle = schema.Bundle(bundle_version=1, policies=[])
        version = 0
    else:
        version = bundle.bundle_version
    maker = _Maker(descriptors, Fingerprinter(secret))
    policies = tuple(maker.policy(index, policy) for index, policy in enumerate(bundle.policies))
    default_loops = maker.loops.of_defaults(bundle.defaults, guard)
    project_loops = maker.loops.of_projects(bundle, guard)
    return CompiledBundle(
        version=version,
        digest=digest,
        policies=policies,
        routes=Routes(policies),
        senders=Senders(descriptors, maker.used),
        kill_switches=KillSwitches(_switches(bundle.kill_switches), descriptors.getter),
        shadow_until=_override_until(bundle.global_shadow),
        kill_override_until=_override_until(bundle.kill_switch_override),
        expires=expiry(bundle.expires_at),
        default_loops=default_loops,
        project_loops=project_loops,
        tail_messages=maker.loops.tail_messages,
        agents=maker.agents(bundle.agents),
        agents_with=partial(_agents_with, maker, bundle.agents),
    )


def _agents_with(maker: _Maker, said: Mapping[str, schema.Agent], given: Mapping[str, Mapping[str, Any]]) -> Agents:
    """Lay what was set for single agents over what the bundle says of them, or of the longest pattern that fits."""
    merged = dict(said)
    patterns = sorted((one for one in said if one.endswith("*")), key=len, reverse=True)
    for name, fields in given.items():
        base = name if name in said else next((one for one in patterns if name.startswith(one[:-1])), "")
        before = said[base].model_dump(exclude_unset=True) if base else {}
        made, _ = validate(schema.Agent, {**before, **fields})
        if made is not None:  # else the two do not go together, and the bundle's holds
            merged[name] = made
    return maker.agents(merged)


class _Maker:
    """Carries what every part of a bundle needs to be compiled."""

    def __init__(self, descriptors: Descriptors, fingerprinter: Fingerprinter) -> None:
        self._descriptors = descriptors
        self._fingerprinter = fingerprinter
        self.loops = LoopMaker(descriptors, fingerprinter)
        self._limiters = LimiterMaker(descriptors)
        self.used: set[str] = set()  # every descriptor that a policy names

    def agents(self, said: Mapping[str, schema.Agent]) -> Agents:
        return Agents(agent_terms(said, self.loops.watchers, self._descriptors.agent))

    def policy(self, index: int, policy: schema.Policy) -> Policy:
        spec = policy.spec
        names = _names_used(spec)
        sources = _sources_used(spec)
        self.used.update(names, sources)
        rules = tuple(self._rule(rule, policy.id, spec.deny_status) for rule in spec.rules)
        fallback = None
        if spec.fallback_limit is not None:
            fallback = self._rule(spec.fallback_limit, policy.id, spec.deny_status, Fallback)
        limiters = [rule.limiter for rule in (*rules, fallback) if rule is not None]
        return Policy(
            id=policy.id,
            index=index,
            selector=_selector(spec.selector),
            shadow=spec.mode == "shadow",
            loops=self.loops.of_policy(policy, names),
            decides_loops=bool(spec.loops),
            rules=rules,
            fallback=fallback,
            breaker=self._breaker(spec.circuit_breaker, rules),
            status=spec.deny_status,
            denies_on_store_error=spec.on_store_error == "deny",
            rejects_large_bodies=spec.on_large_body == "reject" and spec.mode == "enforce",
            descriptors=tuple((name, self._shown(name)) for name in names),
            metered=any(limiter.needs for limiter in limiters),
            steady=self._descriptors.project_is_steady and all(steady(name) for name in (*names, *sources)),
        )

    def _match(self, rule: schema.Rule) -> Match:
        return tuple((self._descriptors.getter(key), value) for key, value in rule.match.items())

    def _rule(self, rule: schema.Rule, policy: str, status: int, kind: type[Rule] = Rule) -> Rule:
        limiter = self._limiters.of(rule)
        made = kind(
            rule.name,
            policy,
            match=self._match(rule),
            keys=tuple((key, self._shown(key)) for key in rule.limit_keys),
            limiter=limiter,
            rejects_missing=rule.on_missing == "reject",
            status=status,
        )
        if limiter.needs:
            made.estimator = self._limiters.estimator(rule)
            made.caps = stream_caps(rule, policy)
        return made

    def _breaker(self, breaker: schema.CircuitBreaker | None, rules: tuple[Rule, ...]) -> BreakerRule | None:
        if breaker is None or not breaker.enabled or not rules:
            return None
        by_money = breaker.spend_source is not None
        unit = MICROUSD if by_money else rules[0].limiter.unit
        per_minute, reset = breaker.spend_rate_threshold_per_minute, breaker.auto_reset_after_minutes
        made = CircuitBreaker(per_minute, reset, unit=unit, alert=breaker.alert)
        return BreakerRule(rules[0], made, estimator("simple_word") if by_money else None)

    def _shown(self, name: str) -> Getter:
        """A descriptor as state keys and debug fields may hold it: of keys and tokens only a digest (SPEC Y-1)."""
        getter = self._descriptors.getter(name)
        if name not in SECRET_DESCRIPTORS:
            return getter
        digest = self._fingerprinter.digest

        def hidden(call: Call) -> str | None:
            value = getter(call)
            return None if value is None else digest([name, value])

        return hidden


def _names_used(spec: schema.Spec) -> tuple[str, ...]:
    rules: list[schema.Rule] = [*spec.rules]
    if spec.fallback_limit is not None:
        rules.append(spec.fallback_limit)
    return tuple(sorted({name for rule in rules for name in (*rule.limit_keys, *rule.match)}))


def _sources_used(spec: schema.Spec) -> tuple[str, ...]:
    """Where rules read their costs from."""
    configs = [rule.config for rule in (*spec.rules, spec.fallback_limit) if rule is not None]
    sources = [config.cost_source for config in configs if isinstance(config, schema.TokenBucketConfig)]
    return tuple(source for source in sources if source != "fixed")


def _selector(selector: schema.Selector) -> Selector:
    return Selector(
        exact=selector.path_exact,
        prefix=selector.path_prefix,
        methods=frozenset(selector.methods or ()),
        hosts=tuple(selector.hosts or ()),
    )


def _switches(switches: Iterable[schema.KillSwitch]) -> list[KillSwitch]:
    return [
        KillSwitch(index, s.scope_key, s.scope_value, s.route or "", s.reason or "", expiry(s.expires_at))
        for index, s in enumerate(switches)
    ]


def _override_until(override: schema.Override | None) -> float:
    if override is None or not override.enabled or override.expires_at is None:
        return 0.0
    return override.expires_at.timestamp()
