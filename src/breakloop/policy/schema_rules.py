"""Bundle models of a policy's rules and its circuit breaker (SPEC B-1, E-3, CB-1). The algorithms' own configurations
are in `schema_limits`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, WrapValidator, model_validator

from breakloop.policy.schema_limits import CostBasedConfig, LlmTokensConfig, TokenBucketConfig
from breakloop.policy.schema_types import (
    CountFloat,
    Descriptor,
    DescriptorValue,
    Fault,
    Model,
    PositiveFloat,
    Text,
    check_descriptor_value,
    fault,
    refuse,
)

Algorithm = Literal["token_bucket", "cost_based", "token_bucket_llm"]
RuleConfig = TokenBucketConfig | CostBasedConfig | LlmTokensConfig


def _limit_keys(keys: list[str]) -> list[str]:
    faults = [Fault((at,), f'"{key}" is listed twice') for at, key in enumerate(keys) if key in keys[:at]]
    refuse(faults)
    return keys


def _match(value: Any, handler: Any) -> dict[str, str]:
    match: dict[str, str] = handler(value)
    if len(match) != len(value):
        raise fault("names one header in two spellings", "case, - and _ make no difference in a header's name")
    faults = [Fault((key,), wrong) for key, text in match.items() if (wrong := check_descriptor_value(key, text))]
    refuse(faults)
    return match


class Rule(Model):
    """A rule: which requests it counts together (`limit_keys`), which it is for (`match`), and how it limits them."""

    name: Text = Field(description="Name of the rule, unique in its policy.")
    limit_keys: Annotated[list[Descriptor], AfterValidator(_limit_keys)] = Field(
        description="Descriptors whose values share one counter; an empty list is one counter for all."
    )
    match: Annotated[dict[Descriptor, DescriptorValue], WrapValidator(_match)] = Field(
        default_factory=dict, description="Descriptors and the values they must have for the rule to apply."
    )
    on_missing: Literal["skip", "reject"] = Field(
        default="skip",
        description="What to do when a descriptor of `limit_keys` is missing: `skip` the rule or `reject`.",
    )
    algorithm: Algorithm = Field(description="How it limits: `token_bucket`, `cost_based` or `token_bucket_llm`.")

    @property
    def config(self) -> RuleConfig:
        """The algorithm's configuration."""
        raise NotImplementedError

    def _repeats_algorithm(self) -> None:
        said = self.config.algorithm
        if said is not None and said != self.algorithm:
            message = f'is "{said}", but the rule\'s algorithm is "{self.algorithm}"'
            refuse([Fault(("algorithm_config", "algorithm"), message, "leave it out here")])


class TokenBucketRule(Rule):
    """A rule with `algorithm: token_bucket`."""

    algorithm: Literal["token_bucket"] = Field(description="`token_bucket`: a steady rate with bursts.")
    algorithm_config: TokenBucketConfig = Field(description="Rate, burst and cost.")

    @property
    def config(self) -> TokenBucketConfig:
        """The algorithm's configuration."""
        return self.algorithm_config

    @model_validator(mode="after")
    def _same(self) -> TokenBucketRule:
        self._repeats_algorithm()
        return self


class CostBasedRule(Rule):
    """A rule with `algorithm: cost_based`."""

    algorithm: Literal["cost_based"] = Field(description="`cost_based`: a budget per calendar period.")
    algorithm_config: CostBasedConfig = Field(description="Budget, period, cost and stages.")

    @property
    def config(self) -> CostBasedConfig:
        """The algorithm's configuration."""
        return self.algorithm_config

    @model_validator(mode="after")
    def _same(self) -> CostBasedRule:
        self._repeats_algorithm()
        return self


class LlmTokensRule(Rule):
    """A rule with `algorithm: token_bucket_llm`."""

    algorithm: Literal["token_bucket_llm"] = Field(description="`token_bucket_llm`: tokens per minute and per day.")
    algorithm_config: LlmTokensConfig = Field(description="Tokens per minute and day, and ceilings per request.")

    @property
    def config(self) -> LlmTokensConfig:
        """The algorithm's configuration."""
        return self.algorithm_config

    @model_validator(mode="after")
    def _same(self) -> LlmTokensRule:
        self._repeats_algorithm()
        return self


def _rule_kind(value: Any) -> str | None:
    if isinstance(value, Rule):
        return value.algorithm
    if not isinstance(value, dict):
        return "token_bucket"  # its own error says that a map is needed
    algorithm = value.get("algorithm")
    return algorithm if isinstance(algorithm, str) else None


AnyRule = Annotated[
    Annotated[TokenBucketRule, Tag("token_bucket")]
    | Annotated[CostBasedRule, Tag("cost_based")]
    | Annotated[LlmTokensRule, Tag("token_bucket_llm")],
    Discriminator(_rule_kind),
]


class CircuitBreaker(Model):
    """Stops everything of one key when it spends too fast."""

    enabled: bool = Field(description="Whether the breaker is on.")
    spend_rate_threshold_per_minute: PositiveFloat = Field(
        default=0.0, description="Spend in a sliding minute that opens the breaker; required when enabled."
    )
    auto_reset_after_minutes: CountFloat = Field(
        default=0.0, description="Minutes until a probe is let through; 0 = only an operator closes it."
    )
    alert: bool = Field(default=False, description="Whether opening it raises an alert.")
    action: Literal["reject"] = Field(default="reject", description="What an open breaker does; only `reject`.")
    spend_source: Literal["usage:usd"] | None = Field(
        default=None, description="`usage:usd` for real spend; otherwise what the policy's first rule would charge."
    )

    @model_validator(mode="after")
    def _threshold(self) -> CircuitBreaker:
        if self.enabled and "spend_rate_threshold_per_minute" not in self.model_fields_set:
            refuse([Fault(("spend_rate_threshold_per_minute",), "is required when enabled")])
        return self
