"""The policy bundle as pydantic models (SPEC B-1): attribute names are the bundle's field names. Reading text and
locating problems is `policy.load`'s work; what the engine uses is made of this by `policy.compile`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from breakloop.policy.schema_agents import Agent, LoopGuard, Project, RateLimit
from breakloop.policy.schema_limits import CostBasedConfig, LlmTokensConfig, Stage, TokenBucketConfig, TokenSource
from breakloop.policy.schema_loop import (
    AnyLoop,
    ExactLoop,
    LoopBlock,
    LoopBlocks,
    SimhashLoop,
    TailLoop,
    Weights,
)
from breakloop.policy.schema_loop_base import (
    Action,
    Allow,
    AllowEntry,
    AllowRoute,
    ExpectRepeats,
    Ladder,
    LoopBase,
    Severity,
)
from breakloop.policy.schema_rules import (
    AnyRule,
    CircuitBreaker,
    CostBasedRule,
    LlmTokensRule,
    Rule,
    RuleConfig,
    TokenBucketRule,
)
from breakloop.policy.schema_selector import Selector
from breakloop.policy.schema_steps import LoopKey, StepsLoop, StepsTool
from breakloop.policy.schema_types import (
    Descriptor,
    DescriptorValue,
    Fault,
    Model,
    PositiveInt,
    Route,
    Text,
    Timestamp,
    check_descriptor_value,
    refuse,
)

__all__ = [
    "Action",
    "Agent",
    "Allow",
    "AllowEntry",
    "AllowRoute",
    "AnyLoop",
    "AnyRule",
    "Bundle",
    "CircuitBreaker",
    "CostBasedConfig",
    "CostBasedRule",
    "Defaults",
    "ExactLoop",
    "ExpectRepeats",
    "FallbackLimit",
    "KillSwitch",
    "Ladder",
    "LlmTokensConfig",
    "LlmTokensRule",
    "LoopBase",
    "LoopBlock",
    "LoopGuard",
    "LoopKey",
    "Override",
    "Policy",
    "Project",
    "RateLimit",
    "Rule",
    "RuleConfig",
    "Selector",
    "Severity",
    "SimhashLoop",
    "Spec",
    "Stage",
    "StepsLoop",
    "StepsTool",
    "TailLoop",
    "TokenBucketConfig",
    "TokenBucketRule",
    "TokenSource",
    "Weights",
]

FallbackLimit = Rule  # its name may be left out in the bundle; it is "fallback_limit" then


def _fallback_name(value: Any) -> Any:
    return {**value, "name": "fallback_limit"} if isinstance(value, dict) and "name" not in value else value


class Spec(Model):
    """What a policy does."""

    selector: Selector = Field(description="Which requests it is for.")
    mode: Literal["enforce", "shadow"] = Field(
        default="enforce", description="`enforce`, or `shadow` to count and log only, without changing an answer."
    )
    rules: list[AnyRule] = Field(default_factory=list, description="Limits, evaluated in this order.")
    fallback_limit: Annotated[AnyRule, BeforeValidator(_fallback_name)] | None = Field(
        default=None,
        description="The limit for requests that no rule matches; written like a rule, its name may be left out.",
    )
    loop_detection: LoopBlocks | None = Field(default=None, description="One loop detector or a list of them.")
    circuit_breaker: CircuitBreaker | None = Field(default=None, description="Stops what spends too fast.")
    deny_status: Annotated[int, Field(ge=400, le=599)] = Field(
        default=429, description="HTTP status of this policy's denials."
    )
    on_large_body: Literal["pass", "reject"] = Field(
        default="pass",
        description="What the proxy does with a body larger than `limits.body_bytes`: `pass` lets it through unjudged, "
        "`reject` answers 413.",
    )
    on_store_error: Literal["allow", "deny"] = Field(
        default="allow", description="What to do with a request when the store fails."
    )

    @property
    def loops(self) -> tuple[AnyLoop, ...]:
        """The loop detectors, none or more."""
        return tuple(self.loop_detection or ())

    @model_validator(mode="after")
    def _whole(self) -> Spec:
        breaker = self.circuit_breaker
        if breaker is not None and breaker.enabled and not self.rules and breaker.spend_source is None:
            hint = "add a rule, or set spend_source: usage:usd"
            refuse([Fault(("circuit_breaker",), "is enabled, but there is no rule to take the spend from", hint)])
        return self


class Policy(Model):
    """One policy: for which requests, and what it does with them."""

    id: Text = Field(description="Name of the policy, unique in the bundle.")
    spec: Spec = Field(description="What the policy does.")


class KillSwitch(Model):
    """Stops everything of one caller, agent, header value and so on, before any policy is looked at."""

    scope_key: Descriptor = Field(description="The descriptor to look at.")
    scope_value: DescriptorValue = Field(description="The value it must have.")
    route: Route | None = Field(default=None, description="A path, or the beginning of one with `*` at the end.")
    reason: str | None = Field(default=None, description="Why, for people.")
    expires_at: Timestamp | None = Field(
        default=None, description="Until when it holds; without it, until it is removed."
    )

    @model_validator(mode="after")
    def _can_match(self) -> KillSwitch:
        wrong = check_descriptor_value(self.scope_key, self.scope_value)
        if wrong:
            refuse([Fault(("scope_value",), wrong, "one address; ranges are not supported")])
        return self


class Override(Model):
    """A temporary override; an expired one is inactive, not an error."""

    enabled: bool = Field(description="Whether it is on.")
    reason: Annotated[str, Field(max_length=256)] | None = Field(
        default=None, description="Why, at most 256 characters; required when enabled."
    )
    expires_at: Timestamp | None = Field(default=None, description="Until when it holds; required when enabled.")

    @model_validator(mode="after")
    def _accounted_for(self) -> Override:
        faults = []
        if self.enabled and not (self.reason or "").strip():
            faults.append(Fault(("reason",), "is required when enabled", "say why, for whoever finds it on"))
        if self.enabled and self.expires_at is None:
            faults.append(Fault(("expires_at",), "is required when enabled", "an override must end by itself"))
        refuse(faults)
        return self


def _defaults_kind(value: Any) -> str:
    return "off" if isinstance(value, str) else "blocks"


DefaultLoops = Annotated[
    Annotated[Literal["off"], Tag("off")] | Annotated[LoopBlocks, Tag("blocks")], Discriminator(_defaults_kind)
]


class Defaults(Model):
    """What holds where no policy says otherwise."""

    loop_detection: DefaultLoops | None = Field(
        default=None, description="Loop detectors for LLM and MCP calls that no policy's own covers; `off` for none."
    )

    @property
    def loops(self) -> tuple[AnyLoop, ...]:
        """The detectors; empty when switched off, and when `loop_detection` is None: then the built-in block holds."""
        said = self.loop_detection
        return () if said is None or isinstance(said, str) else tuple(said)


class Bundle(Model):
    """A versioned set of policies, applied whole or not at all."""

    schema_ref: str | None = Field(
        default=None, alias="$schema", description="Where editors find the schema; not used."
    )
    bundle_version: PositiveInt = Field(description="Version of the bundle; it must not go back.")
    issued_at: Timestamp | None = Field(default=None, description="When the bundle was made.")
    expires_at: Timestamp | None = Field(
        default=None,
        description="When the bundle should have been replaced; it goes on being enforced and an event says so.",
    )
    policies: list[Policy] = Field(description="The policies, evaluated in this order.")
    kill_switches: list[KillSwitch] = Field(default_factory=list, description="Stops, looked at before the policies.")
    global_shadow: Override | None = Field(
        default=None, description="While active, every policy behaves as in shadow mode."
    )
    kill_switch_override: Override | None = Field(default=None, description="While active, kill switches are skipped.")
    defaults: Defaults = Field(default_factory=Defaults, description="Settings where no policy says otherwise.")
    agents: dict[Text, Agent] = Field(
        default_factory=dict, description="Settings by agent id, or by a pattern with `*`."
    )
    projects: dict[Text, Project] = Field(default_factory=dict, description="Settings by project id.")

    @model_validator(mode="after")
    def _times(self) -> Bundle:
        if self.issued_at and self.expires_at and self.expires_at <= self.issued_at:
            refuse([Fault(("expires_at",), "must be later than issued_at")])
        return self
