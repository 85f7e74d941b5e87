"""Bundle models of the rules, one for each limiter: its configuration, what can never work, the limiter that it
configures (`breakloop.limits`), and its description.

To add a limiter, write its configuration and its rule here, and add the rule to `AnyRule`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, WrapValidator, model_validator
from pydantic.config import JsonDict

from breakloop.limits.base import COST, MICROUSD, TOKENS, Limiter
from breakloop.limits.base import Period as CalendarPeriod
from breakloop.limits.budget import CostBudget
from breakloop.limits.llm_tokens import LlmTokens, TokenCeilings
from breakloop.limits.token_bucket import TokenBucket
from breakloop.model.call import Call
from breakloop.policy.descriptors import canonical
from breakloop.policy.diagnostics import did_you_mean
from breakloop.policy.schema.types import (
    LARGEST,
    Descriptor,
    DescriptorValue,
    Model,
    PositiveFloat,
    PositiveInt,
    SchemaFault,
    Text,
    check_descriptor_value,
    fault,
    refuse,
    refuse_field,
)

Period = Literal["5m", "1h", "1d", "7d", "30d"]
StageAction = Literal["warn", "steer", "throttle", "land", "pause", "reject"]
Getters = Callable[[str], Callable[[Call], str | None]]

_UNITS = {"usage:usd": MICROUSD, "usage:tokens": TOKENS}

_NAMED_SOURCE = re.compile(r"(?:header|query):[^\s&=#]+")


def _source(value: str, *words: str) -> str:
    """Check a source of cost: one of the words, a header field or a query parameter."""
    if value in words:
        return value
    if not _NAMED_SOURCE.fullmatch(value):
        forms = [*words, "header:<name>", "query:<name>"]
        raise fault(f'"{value}" is not a source of cost{did_you_mean(value, words)}', "use " + ", ".join(forms))
    return canonical(value)


CostSource = Annotated[str, AfterValidator(lambda value: _source(value, "fixed"))]
CostKey = Annotated[str, AfterValidator(lambda value: _source(value, "fixed", "usage:usd", "usage:tokens"))]


class AlgorithmConfig(Model):
    """Fields of all algorithm configurations."""

    algorithm: str | None = Field(default=None, description="Repeats the `algorithm` of the rule; must be equal.")

    def limiter(self, getter: Getters) -> Limiter:
        """Create the limiter; `getter` returns what reads a descriptor from a call."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """The limit in a few words, for the dashboard."""
        raise NotImplementedError


def _limit_keys(keys: list[str]) -> list[str]:
    faults = [SchemaFault((at,), f'"{key}" is listed twice') for at, key in enumerate(keys) if key in keys[:at]]
    refuse(faults)
    return keys


def _match(value: Any, handler: Any) -> dict[str, str]:
    match: dict[str, str] = handler(value)
    if len(match) != len(value):
        raise fault("names one header in two spellings", "case, - and _ make no difference in a header's name")
    faults = [SchemaFault((key,), wrong) for key, text in match.items() if (wrong := check_descriptor_value(key, text))]
    refuse(faults)
    return match


class Rule(Model):
    """A limit: which requests share a counter (`limit_keys`), which it applies to (`match`), and its algorithm."""

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
    algorithm: str
    algorithm_config: AlgorithmConfig

    @model_validator(mode="after")
    def _repeats_algorithm(self) -> Self:
        said = self.algorithm_config.algorithm
        if said is not None and said != self.algorithm:
            message = f'is "{said}", but the rule\'s algorithm is "{self.algorithm}"'
            refuse([SchemaFault(("algorithm_config", "algorithm"), message, "leave it out here")])
        return self


def _rule_kind(value: Any) -> str | None:
    if isinstance(value, Rule):
        return value.algorithm
    if not isinstance(value, dict):
        return "token_bucket"  # its own error says that a map is needed
    algorithm = value.get("algorithm")
    return algorithm if isinstance(algorithm, str) else None


def _rps_schema(schema: JsonDict) -> None:
    """Both spellings of the rate, exactly one of them required."""
    properties = schema["properties"]
    assert isinstance(properties, dict)  # noqa: S101 - tells mypy what pydantic always passes
    rate = properties["tokens_per_second"]
    assert isinstance(rate, dict)  # noqa: S101
    properties["rps"] = {**rate, "title": "Rps", "description": "The same as `tokens_per_second`."}
    schema["required"] = ["burst"]
    schema["oneOf"] = [{"required": ["tokens_per_second"]}, {"required": ["rps"]}]


class TokenBucketConfig(AlgorithmConfig, json_schema_extra=_rps_schema):
    """`token_bucket`: a steady rate with bursts."""

    tokens_per_second: PositiveFloat = Field(description="Tokens refilled per second; `rps` is an alias.")
    burst: PositiveFloat = Field(description="Size of the bucket, at least the rate.")
    cost_source: CostSource = Field(
        default="fixed", description="The source of a request's cost: `fixed`, `header:<name>` or `query:<name>`."
    )
    fixed_cost: PositiveFloat = Field(default=1.0, description="Tokens per request if `cost_source` is `fixed`.")
    default_cost: PositiveFloat = Field(
        default=1.0, description="Tokens per request if the header or parameter is missing or invalid."
    )

    def limiter(self, getter: Getters) -> TokenBucket:
        return TokenBucket(
            self.tokens_per_second,
            self.burst,
            fixed_cost=self.fixed_cost,
            default_cost=self.default_cost,
            cost_of=None if self.cost_source == "fixed" else getter(self.cost_source),
        )

    @property
    def words(self) -> str:
        return f"{self.tokens_per_second:g} a second, {self.burst:g} at once"

    @model_validator(mode="before")
    @classmethod
    def _rps(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "rps" not in data:
            return data
        if "tokens_per_second" in data:
            refuse_field("rps", '"rps" and "tokens_per_second" are the same field', "keep one of them")
        rest = {key: value for key, value in data.items() if key != "rps"}
        return {"tokens_per_second": data["rps"], **rest}

    @model_validator(mode="after")
    def _fits(self) -> TokenBucketConfig:
        faults = []
        if self.burst < self.tokens_per_second:
            message = f"must be at least the rate ({self.tokens_per_second:g} per second), got {self.burst:g}"
            faults.append(SchemaFault(("burst",), message, "a smaller bucket can never reach that rate"))
        elif self.cost_source == "fixed" and self.fixed_cost > self.burst:
            message = f"must be at most burst ({self.burst:g}), got {self.fixed_cost:g}"
            faults.append(SchemaFault(("fixed_cost",), message, "no request could ever pass"))
        if self.burst / self.tokens_per_second > LARGEST:
            message = f"is so low that an empty bucket never fills again, got {self.tokens_per_second:g}"
            faults.append(SchemaFault(("tokens_per_second",), message, "use a kill switch to block a client"))
        refuse(faults)
        return self


class TokenBucketRule(Rule):
    """A rule with `algorithm: token_bucket`."""

    algorithm: Literal["token_bucket"] = Field(description="`token_bucket`: a steady rate with bursts.")
    algorithm_config: TokenBucketConfig = Field(description="Rate, burst and cost.")


class Stage(Model):
    """One stage of a budget: the action above a share of it."""

    threshold_percent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = Field(
        description="Share of the budget, in percent, from which the stage applies."
    )
    action: StageAction = Field(
        description="The action of the stage: `warn`, `steer` (the model is told), `throttle`, `land` (tools are "
        "switched off, and the model is to finish), `pause` (further requests of the run wait for a person) or "
        "`reject`."
    )
    delay_ms: PositiveInt | None = Field(default=None, description="Delay in milliseconds; required for `throttle`.")

    @model_validator(mode="after")
    def _delay(self) -> Stage:
        if self.action == "throttle" and self.delay_ms is None:
            refuse_field("delay_ms", "is required for a throttle stage", "set the delay in milliseconds")
        if self.action != "throttle" and self.delay_ms is not None:
            refuse_field("delay_ms", f"has no meaning for a {self.action} stage", "only throttle delays")
        return self


class CostBasedConfig(AlgorithmConfig):
    """`cost_based`: a budget per calendar period, with stages."""

    budget: PositiveFloat = Field(description="The budget per period, in the unit of `cost_key`.")
    period: Period = Field(description="Length of the period, aligned to UTC; `30d` is the calendar month.")
    cost_key: CostKey = Field(
        default="fixed",
        description="The cost of a request: `fixed`, `header:<name>`, `query:<name>`, `usage:usd` or `usage:tokens`.",
    )
    fixed_cost: PositiveFloat = Field(default=1.0, description="Cost of a request if `cost_key` is `fixed`.")
    default_cost: PositiveFloat = Field(
        default=1.0, description="Cost if the header or parameter is missing or invalid."
    )
    staged_actions: Annotated[list[Stage], Field(min_length=1)] = Field(
        description="Stages in any order; one must reject at 100."
    )

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(sorted(self.staged_actions, key=lambda stage: stage.threshold_percent))

    def limiter(self, getter: Getters) -> CostBudget:
        fixed = self.cost_key == "fixed"
        return CostBudget(
            self.budget,
            CalendarPeriod(self.period),
            [(stage.threshold_percent, stage.action, stage.delay_ms or 0) for stage in self.stages],
            unit=_UNITS.get(self.cost_key, COST),
            cost=self.fixed_cost if fixed else self.default_cost,
            cost_of=None if fixed or self.cost_key in _UNITS else getter(self.cost_key),
        )

    @property
    def words(self) -> str:
        unit = "$" if self.cost_key == "usage:usd" else ""
        what = " tokens" if self.cost_key == "usage:tokens" else ""
        said = [f"{unit}{self.budget:,g}{what} {CalendarPeriod(self.period).words}"]
        said += [
            f"{stage.action} at {stage.threshold_percent:g} %" for stage in self.stages if stage.action != "reject"
        ]
        return ", ".join(said)

    @model_validator(mode="after")
    def _can_fire(self) -> CostBasedConfig:
        faults = _stage_faults(self.staged_actions)
        if self.cost_key == "fixed" and self.fixed_cost > self.budget:
            message = f"must be at most the budget ({self.budget:g}), got {self.fixed_cost:g}"
            faults.append(SchemaFault(("fixed_cost",), message, "no request could ever pass"))
        refuse(faults)
        return self


def _stage_faults(stages: list[Stage]) -> list[SchemaFault]:
    faults: list[SchemaFault] = []
    seen: dict[float, int] = {}
    for index, stage in enumerate(stages):
        at, percent = ("staged_actions", index, "threshold_percent"), stage.threshold_percent
        first = seen.setdefault(percent, index)
        if first != index:
            faults.append(SchemaFault(at, f"{percent:g} is already used by staged_actions[{first}]", "one stage each"))
        elif stage.action == "reject" and percent != 100:
            hint = "requests are rejected only when the budget is used up; lower the budget, or use throttle here"
            faults.append(SchemaFault(at, f"a reject stage at {percent:g} can never fire, it must be at 100", hint))
    if not any(stage.action == "reject" for stage in stages):
        hint = "add {threshold_percent: 100, action: reject}"
        faults.append(SchemaFault(("staged_actions",), "reject stage missing: no stage rejects at 100", hint))
    return faults


class CostBasedRule(Rule):
    """A rule with `algorithm: cost_based`."""

    algorithm: Literal["cost_based"] = Field(description="`cost_based`: a budget per calendar period.")
    algorithm_config: CostBasedConfig = Field(description="Budget, period, cost and stages.")


class TokenSource(Model):
    """How tokens are estimated before the response reports them."""

    estimator: Literal["simple_word", "header_hint", "tokenizer"] = Field(
        default="simple_word",
        description="`simple_word` (length / 4), `header_hint` (X-Token-Estimate) or `tokenizer`.",
    )


class LlmTokensConfig(AlgorithmConfig):
    """`token_bucket_llm`: tokens per minute and per day, reserved before the call and settled after it."""

    tokens_per_minute: PositiveInt = Field(description="Tokens refilled per minute.")
    tokens_per_day: PositiveInt | None = Field(default=None, description="Tokens per UTC day.")
    burst_tokens: PositiveInt | None = Field(
        default=None, description="Size of the bucket; default `tokens_per_minute`."
    )
    max_tokens_per_request: PositiveInt | None = Field(
        default=None, description="Maximum tokens per request, prompt and response."
    )
    max_prompt_tokens: PositiveInt | None = Field(default=None, description="Maximum tokens of a prompt.")
    max_completion_tokens: PositiveInt | None = Field(default=None, description="Maximum tokens of a response.")
    default_max_completion: PositiveInt = Field(
        default=1000, description="Tokens reserved for the response if the request sets no maximum."
    )
    enforce_mid_stream: bool = Field(
        default=False, description="Whether a streamed response that exceeds `max_completion_tokens` is ended."
    )
    token_source: TokenSource = Field(default_factory=TokenSource, description="How tokens are estimated.")

    @property
    def burst(self) -> int:
        return self.burst_tokens if self.burst_tokens is not None else self.tokens_per_minute

    def limiter(self, getter: Getters) -> LlmTokens:  # noqa: ARG002 - a request names no cost here
        ceilings = TokenCeilings(
            self.max_tokens_per_request, self.max_prompt_tokens, self.max_completion_tokens, self.default_max_completion
        )
        return LlmTokens(self.tokens_per_minute, burst=self.burst, per_day=self.tokens_per_day, ceilings=ceilings)

    @property
    def words(self) -> str:
        said = [f"{self.tokens_per_minute:,} tokens a minute"]
        if self.tokens_per_day is not None:
            said.append(f"{self.tokens_per_day:,} a day")
        ceilings = {
            "a request": self.max_tokens_per_request,
            "a prompt": self.max_prompt_tokens,
            "an answer": self.max_completion_tokens,
        }
        said += [f"at most {most:,} {what}" for what, most in ceilings.items() if most is not None]
        return ", ".join(said)

    @model_validator(mode="after")
    def _can_work(self) -> LlmTokensConfig:
        if self.burst < self.tokens_per_minute:
            message = f"must be at least tokens_per_minute ({self.tokens_per_minute}), got {self.burst}"
            refuse_field("burst_tokens", message, "a smaller bucket can never reach that rate")
        if self.enforce_mid_stream and self.max_completion_tokens is None:
            refuse_field("enforce_mid_stream", "needs max_completion_tokens", "set the maximum tokens of a response")
        refuse([found for low, high, hint in self._orders() if (found := self._at_most(low, high, hint))])
        return self

    def _orders(self) -> list[tuple[str, str, str]]:
        bucket = "tokens_per_minute" if self.burst_tokens is None else "burst_tokens"
        orders = [
            ("max_tokens_per_request", bucket, "a request that large can never pass"),
            ("max_tokens_per_request", "tokens_per_day", "a request that large can never pass"),
            ("max_prompt_tokens", "max_tokens_per_request", "that limit always rejects first"),
            ("max_completion_tokens", "max_tokens_per_request", "that limit always rejects first"),
        ]
        if "default_max_completion" in self.model_fields_set:
            no_room = "a request that sets no maximum could never pass"
            orders += [
                ("default_max_completion", "max_completion_tokens", "it would always be reduced to that"),
                ("default_max_completion", "max_tokens_per_request", no_room),
            ]
        return orders

    def _at_most(self, low: str, high: str, hint: str) -> SchemaFault | None:
        value, bound = getattr(self, low), getattr(self, high)
        if value is None or bound is None or value <= bound:
            return None
        return SchemaFault((low,), f"must be at most {high} ({bound}), got {value}", hint)


class LlmTokensRule(Rule):
    """A rule with `algorithm: token_bucket_llm`."""

    algorithm: Literal["token_bucket_llm"] = Field(description="`token_bucket_llm`: tokens per minute and per day.")
    algorithm_config: LlmTokensConfig = Field(description="Tokens per minute and day, and limits per request.")


AnyRule = Annotated[
    Annotated[TokenBucketRule, Tag("token_bucket")]
    | Annotated[CostBasedRule, Tag("cost_based")]
    | Annotated[LlmTokensRule, Tag("token_bucket_llm")],
    Discriminator(_rule_kind),
]
