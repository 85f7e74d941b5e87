"""Compiles a validated bundle (`policy.schema`) to a `CompiledBundle`: policies, rules with their limiters, kill
switches and the settings of agents.

This runs once per bundle and off the request path. As much as possible is computed here, so that requests need not
compute it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo

from breakloop.detect.counting import BuiltinLoopGuard, DetectorConfig
from breakloop.detect.fingerprint import Fingerprinter
from breakloop.detect.run_steps import RunStepsLimit
from breakloop.detect.stateful import session_owner
from breakloop.limits.base import COST, MICROUSD, TOKENS, Limiter, LocalDay, Period
from breakloop.limits.budget import SETTING, CostBudget
from breakloop.limits.circuit_breaker import CircuitBreakerLimiter
from breakloop.limits.llm_tokens import LlmTokens, TokenCeilings
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.call import SECRET_HEADERS, Call, CompletionCap
from breakloop.policy.compile_detectors import (
    DetectorContext,
    default_detectors,
    expiry,
    policy_detectors,
    project_detectors,
    simhash_detector,
)
from breakloop.policy.compiled import (
    ActiveHours,
    AgentTerms,
    CompiledAgents,
    CompiledBundle,
    CompiledDetector,
    CompiledPolicy,
)
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.matching import CompiledKillSwitch, CompiledSelector, KillSwitches, Routes
from breakloop.policy.rules import AGENT, BreakerRule, CompiledRule, FallbackRule, Getter, Match, RunRule
from breakloop.policy.schema import bundle
from breakloop.policy.schema import bundle as schema
from breakloop.policy.schema.limits import CostBasedConfig, LlmTokensConfig, TokenBucketConfig
from breakloop.policy.schema.loops import Weights
from breakloop.policy.schema.types import validate
from breakloop.policy.senders import CallerProfiles, steady
from breakloop.pricing.tokens import Estimator, estimator

AGENTS: Final = "agents"  # the policy name for agent settings in verdicts and events
_STATUS: Final = 429


class AgentBudget(CostBudget):
    """The daily budget of an agent, in dollars."""

    __slots__ = ()

    reason = "agent_budget_exceeded"


def agent_terms(agents: Mapping[str, bundle.Agent], context: DetectorContext, agent_of: Getter) -> Iterator[AgentTerms]:
    """Yield the compiled settings of each agent or pattern."""
    for index, (pattern, agent) in enumerate(agents.items()):
        presence = ActiveHours(active=agent.active, hours=agent.hours, zone=agent.timezone)
        rules = tuple(_rules(agent, pattern, agent_of))
        run = None
        if agent.max_usd_per_run is not None:
            config, words = _config("run", index, SETTING), estimator("simple_word")
            owner = partial(session_owner, context.read)
            run = RunRule(pattern, agent.max_usd_per_run, config, owner=owner, estimator=words)
        yield AgentTerms(pattern, tuple(_detectors(agent, index, context)), presence, rules, run)


def _rules(agent: bundle.Agent, pattern: str, agent_of: Getter) -> Iterator[CompiledRule]:
    """Compile the rate limit and the daily budget of an agent. Each agent that a pattern matches has its own."""
    limit = agent.rate_limit
    if limit is not None:
        burst = limit.burst if limit.burst is not None else limit.requests_per_minute
        rate = min(limit.requests_per_minute / 60, burst)
        yield _rule(f"{pattern}/rate_limit", TokenBucket(rate, burst), agent_of)
    if agent.budget_usd_per_day is not None:
        day = LocalDay(ZoneInfo(agent.timezone))
        budget = AgentBudget(agent.budget_usd_per_day, day, [(100, "reject", 0)], unit=MICROUSD)
        rule = _rule(f"{pattern}/budget_usd_per_day", budget, agent_of)
        rule.estimator = estimator("simple_word")
        yield rule


def _rule(name: str, limiter: Limiter, agent_of: Getter) -> CompiledRule:
    keys = ((AGENT, agent_of),)
    return CompiledRule(name, AGENTS, match=(), keys=keys, limiter=limiter, rejects_missing=False, status=_STATUS)


def _detectors(agent: bundle.Agent, index: int, context: DetectorContext) -> Iterator[CompiledDetector]:
    if agent.max_steps_per_run is not None:
        yield RunStepsLimit(_config("run", index, "max_steps_per_run"), context.read, agent.max_steps_per_run)
    if agent.kill_switch_enabled:
        config = _config("simhash", index, "kill_switch", ("warn", "kill", "kill"))
        window, threshold = agent.kill_switch_window_size, agent.kill_switch_threshold
        yield simhash_detector(context, config, window, threshold, Weights())


def _config(
    kind: str, index: int, setting: str, actions: tuple[str, str, str] = ("reject", "reject", "reject")
) -> DetectorConfig:
    return DetectorConfig(kind, AGENTS, index, actions, _STATUS, setting=setting, key_prefix="|")


_UNITS = {"usage:usd": MICROUSD, "usage:tokens": TOKENS}


class LimiterCompiler:
    """Creates the limiters of rules."""

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self._estimators: dict[str, Estimator] = {}

    def of(self, rule: bundle.Rule) -> Limiter:
        config = rule.config
        if isinstance(config, TokenBucketConfig):
            return self._token_bucket(config)
        if isinstance(config, CostBasedConfig):
            return self._cost_budget(config)
        return _llm_tokens(config)

    def estimator(self, rule: bundle.Rule) -> Estimator:
        """Return the estimator of prompt tokens for a rule that needs one."""
        config = rule.config
        named = config.token_source.estimator if isinstance(config, LlmTokensConfig) else "simple_word"
        if named not in self._estimators:
            self._estimators[named] = estimator(named)  # shared, so that an estimate for one rule is reused by the next
        return self._estimators[named]

    def _token_bucket(self, config: TokenBucketConfig) -> TokenBucket:
        source = config.cost_source
        return TokenBucket(
            config.tokens_per_second,
            config.burst,
            fixed_cost=config.fixed_cost,
            default_cost=config.default_cost,
            cost_of=None if source == "fixed" else self._descriptors.getter(source),
        )

    def _cost_budget(self, config: CostBasedConfig) -> CostBudget:
        source = config.cost_key
        fixed = source == "fixed"
        named = not fixed and source not in _UNITS
        return CostBudget(
            config.budget,
            Period(config.period),
            [(stage.threshold_percent, stage.action, stage.delay_ms or 0) for stage in config.stages],
            unit=_UNITS.get(source, COST),
            cost=config.fixed_cost if fixed else config.default_cost,
            cost_of=self._descriptors.getter(source) if named else None,
        )


def stream_caps(rule: bundle.Rule, policy: str) -> tuple[CompletionCap, CompletionCap] | None:
    """Return the caps on streamed responses, enforced and in shadow mode, if a rule sets one."""
    config = rule.config
    if not isinstance(config, LlmTokensConfig) or not config.enforce_mid_stream:
        return None
    tokens = config.max_completion_tokens
    if tokens is None:
        return None  # the schema rejects this
    cap = CompletionCap(tokens, policy, rule.name, cuts=True)
    return cap, cap._replace(cuts=False)


def _llm_tokens(config: LlmTokensConfig) -> LlmTokens:
    ceilings = TokenCeilings(
        config.max_tokens_per_request,
        config.max_prompt_tokens,
        config.max_completion_tokens,
        config.default_max_completion,
    )
    return LlmTokens(config.tokens_per_minute, burst=config.burst, per_day=config.tokens_per_day, ceilings=ceilings)


SECRET_DESCRIPTORS = frozenset([*(f"header:{name}" for name in SECRET_HEADERS), "query:key", "query:api_key"])


def compile_bundle(
    bundle: schema.Bundle | None, digest: str, descriptors: Descriptors, secret: bytes, guard: BuiltinLoopGuard
) -> CompiledBundle:
    """Compile a bundle for the engine. None means that no policy is configured; then only the built-in protection
    applies.

    Has no side effects, because a bundle may be compiled only to validate it.
    """
    if bundle is None:
        bundle = schema.Bundle(bundle_version=1, policies=[])
        version = 0
    else:
        version = bundle.bundle_version
    maker = _Maker(descriptors, Fingerprinter(secret))
    policies = tuple(maker.policy(index, policy) for index, policy in enumerate(bundle.policies))
    default_loops = default_detectors(maker.detectors, bundle.defaults, guard)
    project_loops = project_detectors(maker.detectors, bundle, guard)
    return CompiledBundle(
        version=version,
        digest=digest,
        policies=policies,
        routes=Routes(policies),
        senders=CallerProfiles(descriptors, maker.used),
        kill_switches=KillSwitches(_switches(bundle.kill_switches), descriptors.getter),
        shadow_until=_override_until(bundle.global_shadow),
        kill_override_until=_override_until(bundle.kill_switch_override),
        expires=expiry(bundle.expires_at),
        default_loops=default_loops,
        project_loops=project_loops,
        tail_messages=maker.detectors.tail_messages,
        agents=maker.agents(bundle.agents),
        agents_with=partial(_agents_with, maker, bundle.agents),
    )


def _agents_with(
    maker: _Maker, said: Mapping[str, schema.Agent], given: Mapping[str, Mapping[str, Any]]
) -> CompiledAgents:
    """Merge settings made for single agents at run time into the bundle's settings for that agent, or for the longest
    pattern that matches it.
    """
    merged = dict(said)
    patterns = sorted((one for one in said if one.endswith("*")), key=len, reverse=True)
    for name, fields in given.items():
        base = name if name in said else next((one for one in patterns if name.startswith(one[:-1])), "")
        before = said[base].model_dump(exclude_unset=True) if base else {}
        made, _ = validate(schema.Agent, {**before, **fields})
        if made is not None:  # otherwise the two conflict, and the bundle's settings apply
            merged[name] = made
    return maker.agents(merged)


class _Maker:
    """Compiles the parts of a bundle and holds what they share."""

    def __init__(self, descriptors: Descriptors, fingerprinter: Fingerprinter) -> None:
        self._descriptors = descriptors
        self._fingerprinter = fingerprinter
        self.detectors = DetectorContext(descriptors, fingerprinter)
        self._limiters = LimiterCompiler(descriptors)
        self.used: set[str] = set()  # every descriptor that a policy names

    def agents(self, said: Mapping[str, schema.Agent]) -> CompiledAgents:
        return CompiledAgents(agent_terms(said, self.detectors, self._descriptors.agent))

    def policy(self, index: int, policy: schema.Policy) -> CompiledPolicy:
        spec = policy.spec
        names = _names_used(spec)
        sources = _sources_used(spec)
        self.used.update(names, sources)
        rules = tuple(self._rule(rule, policy.id, spec.deny_status) for rule in spec.rules)
        fallback = None
        if spec.fallback_limit is not None:
            fallback = self._rule(spec.fallback_limit, policy.id, spec.deny_status, FallbackRule)
        limiters = [rule.limiter for rule in (*rules, fallback) if rule is not None]
        return CompiledPolicy(
            id=policy.id,
            index=index,
            selector=_selector(spec.selector),
            shadow=spec.mode == "shadow",
            loops=policy_detectors(self.detectors, policy, names),
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

    def _rule(
        self, rule: schema.Rule, policy: str, status: int, kind: type[CompiledRule] = CompiledRule
    ) -> CompiledRule:
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

    def _breaker(self, breaker: schema.CircuitBreaker | None, rules: tuple[CompiledRule, ...]) -> BreakerRule | None:
        if breaker is None or not breaker.enabled or not rules:
            return None
        by_money = breaker.spend_source is not None
        unit = MICROUSD if by_money else rules[0].limiter.unit
        per_minute, reset = breaker.spend_rate_threshold_per_minute, breaker.auto_reset_after_minutes
        made = CircuitBreakerLimiter(per_minute, reset, unit=unit, alert=breaker.alert)
        return BreakerRule(rules[0], made, estimator("simple_word") if by_money else None)

    def _shown(self, name: str) -> Getter:
        """Return a getter whose values may appear in state keys and debug headers: keys and tokens are replaced by
        digests.
        """
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
    """Return the descriptors that rules read their costs from."""
    configs = [rule.config for rule in (*spec.rules, spec.fallback_limit) if rule is not None]
    sources = [config.cost_source for config in configs if isinstance(config, TokenBucketConfig)]
    return tuple(source for source in sources if source != "fixed")


def _selector(selector: schema.Selector) -> CompiledSelector:
    return CompiledSelector(
        exact=selector.path_exact,
        prefix=selector.path_prefix,
        methods=frozenset(selector.methods or ()),
        hosts=tuple(selector.hosts or ()),
    )


def _switches(switches: Iterable[schema.KillSwitch]) -> list[CompiledKillSwitch]:
    return [
        CompiledKillSwitch(index, s.scope_key, s.scope_value, s.route or "", s.reason or "", expiry(s.expires_at))
        for index, s in enumerate(switches)
    ]


def _override_until(override: schema.Override | None) -> float:
    if override is None or not override.enabled or override.expires_at is None:
        return 0.0
    return override.expires_at.timestamp()
