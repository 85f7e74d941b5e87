"""Rules of a bundle -> their limiters (SPEC L-1 to L-3). A part of `compile`."""

from __future__ import annotations

from breakloop.limits.cost_budget import CostBudget
from breakloop.limits.limiter import Limiter
from breakloop.limits.llm_tokens import Ceilings, LlmTokens
from breakloop.limits.periods import Period
from breakloop.limits.token_bucket import TokenBucket
from breakloop.limits.units import COST, MICROUSD, TOKENS
from breakloop.model.completion_cap import CompletionCap
from breakloop.policy import schema
from breakloop.policy.descriptors import Descriptors
from breakloop.pricing.estimate import Estimator, estimator

_UNITS = {"usage:usd": MICROUSD, "usage:tokens": TOKENS}


class LimiterMaker:
    """Makes limiters out of rules."""

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self._estimators: dict[str, Estimator] = {}

    def of(self, rule: schema.Rule) -> Limiter:
        """Return the limiter of a rule."""
        config = rule.config
        if isinstance(config, schema.TokenBucketConfig):
            return self._token_bucket(config)
        if isinstance(config, schema.CostBasedConfig):
            return self._cost_budget(config)
        return _llm_tokens(config)

    def estimator(self, rule: schema.Rule) -> Estimator:
        """Return what guesses the tokens of a prompt for a rule that needs it."""
        config = rule.config
        named = config.token_source.estimator if isinstance(config, schema.LlmTokensConfig) else "simple_word"
        if named not in self._estimators:
            self._estimators[named] = estimator(named)  # one for all rules: what it found for one holds for the next
        return self._estimators[named]

    def _token_bucket(self, config: schema.TokenBucketConfig) -> TokenBucket:
        source = config.cost_source
        return TokenBucket(
            config.tokens_per_second,
            config.burst,
            fixed_cost=config.fixed_cost,
            default_cost=config.default_cost,
            cost_of=None if source == "fixed" else self._descriptors.getter(source),
        )

    def _cost_budget(self, config: schema.CostBasedConfig) -> CostBudget:
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


def stream_caps(rule: schema.Rule, policy: str) -> tuple[CompletionCap, CompletionCap] | None:
    """Return the cap of streamed answers, enforced and in shadow, where a rule asks for one."""
    config = rule.config
    if not isinstance(config, schema.LlmTokensConfig) or not config.enforce_mid_stream:
        return None
    tokens = config.max_completion_tokens
    if tokens is None:
        return None  # which the schema refuses
    cap = CompletionCap(tokens, policy, rule.name, cuts=True)
    return cap, cap._replace(cuts=False)


def _llm_tokens(config: schema.LlmTokensConfig) -> LlmTokens:
    ceilings = Ceilings(
        config.max_tokens_per_request,
        config.max_prompt_tokens,
        config.max_completion_tokens,
        config.default_max_completion,
    )
    return LlmTokens(config.tokens_per_minute, burst=config.burst, per_day=config.tokens_per_day, ceilings=ceilings)
