"""Bundle models of the limiters' configurations: their shapes, and what can never work. `breakloop.limits` counts."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic.config import JsonDict

from breakloop.policy.descriptors import canonical
from breakloop.policy.diagnostics import did_you_mean
from breakloop.policy.schema.types import (
    LARGEST,
    Model,
    PositiveFloat,
    PositiveInt,
    SchemaFault,
    fault,
    refuse,
    refuse_field,
)

Period = Literal["5m", "1h", "1d", "7d", "30d"]
StageAction = Literal["warn", "throttle", "reject"]

_NAMED_SOURCE = re.compile(r"(?:header|query):[^\s&=#]+")


def _source(value: str, *words: str) -> str:
    """Check a source of cost: one of the words, a header field or a query parameter."""
    if value in words:
        return value
    if not _NAMED_SOURCE.fullmatch(value):
        forms = [*words, "header:<name>", "query:<name>"]
        raise fault(f'"{value}" is no source of cost{did_you_mean(value, words)}', "use " + ", ".join(forms))
    return canonical(value)


CostSource = Annotated[str, AfterValidator(lambda value: _source(value, "fixed"))]
CostKey = Annotated[str, AfterValidator(lambda value: _source(value, "fixed", "usage:usd", "usage:tokens"))]


class AlgorithmConfig(Model):
    """Fields of all algorithm configurations."""

    algorithm: str | None = Field(default=None, description="Repeats the `algorithm` of the rule; must be equal.")


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
            faults.append(SchemaFault(("burst",), message, "a smaller bucket can never give that rate"))
        elif self.cost_source == "fixed" and self.fixed_cost > self.burst:
            message = f"must be at most burst ({self.burst:g}), got {self.fixed_cost:g}"
            faults.append(SchemaFault(("fixed_cost",), message, "no request could ever pass"))
        if self.burst / self.tokens_per_second > LARGEST:
            message = f"is so low that an empty bucket never fills again, got {self.tokens_per_second:g}"
            faults.append(SchemaFault(("tokens_per_second",), message, "to stop somebody for good, use a kill switch"))
        refuse(faults)
        return self


class Stage(Model):
    """One stage of a budget: the action above a share of it."""

    threshold_percent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = Field(
        description="Share of the budget, in percent, from which the stage applies."
    )
    action: StageAction = Field(description="The action of the stage: `warn`, `throttle` or `reject`.")
    delay_ms: PositiveInt | None = Field(default=None, description="Delay in milliseconds; required for `throttle`.")

    @model_validator(mode="after")
    def _delay(self) -> Stage:
        if self.action == "throttle" and self.delay_ms is None:
            refuse_field("delay_ms", "is required for a throttle stage", "say by how many milliseconds to delay")
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
            hint = "a request is only refused once the budget is used up; lower the budget, or use throttle here"
            faults.append(SchemaFault(at, f"a reject stage at {percent:g} can never fire, it must be at 100", hint))
    if not any(stage.action == "reject" for stage in stages):
        hint = "add {threshold_percent: 100, action: reject}"
        faults.append(SchemaFault(("staged_actions",), "reject stage missing: no stage rejects at 100", hint))
    return faults


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

    @model_validator(mode="after")
    def _can_work(self) -> LlmTokensConfig:
        if self.burst < self.tokens_per_minute:
            message = f"must be at least tokens_per_minute ({self.tokens_per_minute}), got {self.burst}"
            refuse_field("burst_tokens", message, "a smaller bucket can never give that rate")
        if self.enforce_mid_stream and self.max_completion_tokens is None:
            refuse_field("enforce_mid_stream", "needs max_completion_tokens", "say how many tokens an answer may have")
        refuse([found for low, high, hint in self._orders() if (found := self._at_most(low, high, hint))])
        return self

    def _orders(self) -> list[tuple[str, str, str]]:
        bucket = "tokens_per_minute" if self.burst_tokens is None else "burst_tokens"
        orders = [
            ("max_tokens_per_request", bucket, "a request that large can never pass"),
            ("max_tokens_per_request", "tokens_per_day", "a request that large can never pass"),
            ("max_prompt_tokens", "max_tokens_per_request", "that limit always refuses first"),
            ("max_completion_tokens", "max_tokens_per_request", "that limit always refuses first"),
        ]
        if "default_max_completion" in self.model_fields_set:
            no_room = "a request that names no maximum could never pass"
            orders += [
                ("default_max_completion", "max_completion_tokens", "it would always be cut down to that"),
                ("default_max_completion", "max_tokens_per_request", no_room),
            ]
        return orders

    def _at_most(self, low: str, high: str, hint: str) -> SchemaFault | None:
        value, bound = getattr(self, low), getattr(self, high)
        if value is None or bound is None or value <= bound:
            return None
        return SchemaFault((low,), f"must be at most {high} ({bound}), got {value}", hint)
