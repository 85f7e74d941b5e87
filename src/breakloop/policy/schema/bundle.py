"""The policy bundle as pydantic models: attribute names are the bundle's field names. `policy.load` reads the text and
locates problems; `policy.compile` creates from the models what the engine uses. The JSON Schema for editors
(`breakloop schema`) is made from the models, so that it cannot disagree.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from breakloop.policy.diagnostics import did_you_mean
from breakloop.policy.paths import normalise_host
from breakloop.policy.schema.limits import AnyRule, CostBasedRule
from breakloop.policy.schema.loops import SEVERITIES, AnyLoop, LoopBlocks, Weights, refuse_unreachable
from breakloop.policy.schema.types import (
    CountFloat,
    CountInt,
    Descriptor,
    DescriptorValue,
    Model,
    PositiveFloat,
    PositiveInt,
    Route,
    SchemaFault,
    Shorthand,
    Text,
    Timestamp,
    check_descriptor_value,
    check_path,
    fault,
    refuse,
    refuse_field,
    require,
)

# fmt: off
METHODS = (
    "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "COPY", "LOCK", "MKCOL", "MOVE",
    "PROPFIND", "PROPPATCH", "SEARCH", "UNLOCK", "BIND", "REBIND", "UNBIND", "ACL", "REPORT", "MKACTIVITY", "CHECKOUT",
    "MERGE", "M-SEARCH", "NOTIFY", "SUBSCRIBE", "UNSUBSCRIBE", "PURGE", "MKCALENDAR", "LINK", "UNLINK", "SOURCE",
    "QUERY",
)
# fmt: on
_HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?")


def _path(value: str) -> str:
    check_path(value, f'pathPrefix matches everything below it; write "{value.split("*", 1)[0]}"')
    return value


def _method(value: str) -> str:
    if value in METHODS:
        return value
    if value.upper() in METHODS:
        raise fault(f'"{value}" is not in upper case, so it can never match', f'write "{value.upper()}"')
    raise fault(f'unknown method "{value}"{did_you_mean(value.upper(), METHODS)}')


def _host(value: str) -> str:
    for mark, what in (("://", "a scheme"), ("@", "a user"), ("/", "a path"), ("?", "a query"), ("#", "a fragment")):
        if mark in value:
            bare = re.split(r"[/?#]", value.split("://", 1)[-1])[0].rpartition("@")[2]
            raise fault(f'"{value}" has {what}, a host is only a name', f'write "{bare}"')
    if "*" in value:
        raise fault(f'"{value}" has a wildcard', "list each host, or leave hosts out to match every host")
    host = normalise_host(value)
    if host.startswith("["):
        return _ipv6_host(host)
    if not host.isascii():
        raise fault(f'"{value}" contains characters that are encoded in a request', _punycode(host))
    if not _HOST.fullmatch(host) or ".." in host:
        raise fault(f'"{value}" is not a host name')
    return host


def _ipv6_host(host: str) -> str:
    try:
        return f"[{IPv6Address(host[1:-1])}]"
    except ValueError:
        raise fault(f'"{host}" is not an IPv6 address in brackets') from None


def _punycode(host: str) -> str:
    try:
        return f'write "{host.encode("idna").decode("ascii")}"'
    except UnicodeError:
        return "write it in its ASCII form (xn--...)"


class Selector(Model):
    """The requests a policy applies to; without a path, every path."""

    path_exact: Annotated[str, AfterValidator(_path)] | None = Field(
        default=None, alias="pathExact", description="The whole path."
    )
    path_prefix: Annotated[str, AfterValidator(_path)] | None = Field(
        default=None, alias="pathPrefix", description="The beginning of the path; `/v1/` matches `/v1/x` and not `/v1`."
    )
    methods: Annotated[list[Annotated[str, AfterValidator(_method)]], Field(min_length=1)] | None = Field(
        default=None, description="HTTP methods in upper case; without it, every method."
    )
    hosts: Annotated[list[Annotated[str, AfterValidator(_host)]], Field(min_length=1)] | None = Field(
        default=None,
        description="Host names, without scheme and path; a port is ignored; without it, every host. Compared with "
        "what the client sends as `Host`, which it can choose.",
    )


class CircuitBreaker(Model):
    """Denies all requests of a key that spends too fast."""

    enabled: bool = Field(description="Whether the breaker is on.")
    spend_rate_threshold_per_minute: PositiveFloat = Field(
        default=0.0, description="Spend in a sliding minute that opens the breaker; required when enabled."
    )
    auto_reset_after_minutes: CountFloat = Field(
        default=0.0,
        description="Minutes until a probe request is allowed; with 0, only an operator closes the breaker.",
    )
    alert: bool = Field(default=False, description="Whether opening it raises an alert.")
    action: Literal["reject"] = Field(default="reject", description="What an open breaker does; only `reject`.")
    spend_source: Literal["usage:usd"] | None = Field(
        default=None, description="`usage:usd` for actual spend; by default, what the policy's first rule charges."
    )

    @model_validator(mode="after")
    def _threshold(self) -> CircuitBreaker:
        if self.enabled:
            require(self, "spend_rate_threshold_per_minute")
        return self


_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)|([01]\d|2[0-3]):([0-5]\d)-24:00")
_HOURS_HINT = 'write "08:00-18:00", or [8, 18]; "22:00-06:00" spans midnight'


def _hour_pair(value: Any) -> Any:
    """Turn `[8, 18]` into `08:00-18:00`."""
    if not isinstance(value, list):
        return value
    whole = len(value) == 2 and all(type(hour) is int and 0 <= hour <= 24 for hour in value)
    if not whole or value[0] == 24:
        raise fault("must be two hours from 0 to 24", _HOURS_HINT)
    return f"{value[0]:02}:00-{value[1]:02}:00"


def _hours(value: str) -> str:
    if not _HOURS.fullmatch(value):
        raise fault(f'"{value}" is not a valid time range', _HOURS_HINT)
    start, end = value.split("-")
    if start == end:
        hint = "leave allowed_hours out for the whole day, or set active: false for never"
        raise fault(f'"{value}" begins and ends at the same time', hint)
    return value


def _timezone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (OSError, ValueError, KeyError):  # a directory, a path that is no name, not found
        raise fault(f'unknown time zone "{value}"', "write a name like Europe/Paris or UTC") from None
    return value


class RateLimit(Model):
    """A limit on the requests of an agent."""

    requests_per_minute: PositiveInt = Field(description="Requests per minute.")
    burst: PositiveInt | None = Field(default=None, description="Size of a burst; default `requests_per_minute`.")


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        wrong = parts.scheme not in {"http", "https"} or not parts.hostname or (parts.port or 1) < 1
    except ValueError:
        wrong = True
    if wrong:
        raise fault("is not an HTTP URL", "write it like https://agents.example/stop")
    return value


class StopWebhook(Model):
    """A URL of the agent's own program, which is called when an operator kills the agent."""

    url: Annotated[str, AfterValidator(_http_url)] = Field(description="Where to send the POST request.")
    allow_private: bool = Field(
        default=False, description="Whether it may be at a private address; by default only public ones are called."
    )


class Agent(Model):
    """Settings of one agent, or of all agents that match a pattern. Limits are counted for each caller and agent."""

    active: bool = Field(default=True, description="Whether the agent may send requests.")
    budget_usd_per_day: PositiveFloat | None = Field(
        default=None, description="Budget in dollars per day, in the agent's time zone."
    )
    allowed_hours: (
        Annotated[
            str,
            AfterValidator(_hours),
            Shorthand(_hour_pair, {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
        ]
        | None
    ) = Field(default=None, description="Working hours: `08:00-18:00`, over midnight `22:00-06:00`, or `[8, 18]`.")
    timezone: Annotated[str, AfterValidator(_timezone)] = Field(
        default="UTC", description="Time zone of hours and budget."
    )
    rate_limit: RateLimit | None = Field(default=None, description="Rate limit of its requests.")
    stop_webhook: StopWebhook | None = Field(
        default=None, description="What is called when an operator kills the agent, so that its program ends, too."
    )
    kill_switch_enabled: bool = Field(default=False, description="Whether a run of similar requests quarantines it.")
    kill_switch_window_size: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=20, description="Number of recent requests to compare."
    )
    kill_switch_threshold: PositiveFloat = Field(default=10.0, description="The score above which it is quarantined.")
    max_steps_per_run: PositiveInt | None = Field(
        default=None, description="Maximum number of steps of a run; only an operator resets it."
    )
    max_usd_per_run: PositiveFloat | None = Field(
        default=None, description="Maximum cost of a run in dollars; only an operator resets it."
    )
    land_at_percent: Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Share of `max_steps_per_run`, `max_usd_per_run`, `budget_usd_per_day`, `max_usd_per_tree` and "
        "`max_tokens_per_tree`, in percent, from which requests are landed: tools are switched off, and the model is "
        "to finish.",
    )
    pause_at_percent: Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)] | None = Field(
        default=None,
        description="Share of `max_steps_per_run`, `max_usd_per_run` and `budget_usd_per_day`, in percent, from which "
        "a run is paused: a person is asked whether it may go on.",
    )
    max_runs_per_hour: PositiveInt | None = Field(
        default=None,
        description="Maximum number of runs that open in an hour: requests that begin a conversation. Hours begin on "
        "the hour.",
    )
    max_usd_per_tree: PositiveFloat | None = Field(
        default=None,
        description="Maximum cost in dollars of all agents of a tree (which started each other) together; checked "
        "against the total of the tree whenever this agent sends a request.",
    )
    max_tokens_per_tree: PositiveInt | None = Field(
        default=None, description="The same in tokens, of prompts and responses."
    )
    tell_tree_budget: bool | None = Field(
        default=None,
        description="Whether each request gets a sentence that tells the model what is left of the tree's budget.",
    )

    @property
    def hours(self) -> tuple[int, int] | None:
        """Start and end in minutes of the day; the end is the smaller one when it goes over midnight."""
        if self.allowed_hours is None:
            return None
        start, end = ((int(t[:2]) * 60 + int(t[3:])) for t in self.allowed_hours.split("-"))
        return start, end

    def stages(self) -> list[tuple[float, str, int]]:
        """Return the stages of its budgets that land requests or pause runs."""
        given = (self.land_at_percent, "land", 0), (self.pause_at_percent, "pause", 0)
        return [(percent, action, delay_ms) for percent, action, delay_ms in given if percent is not None]

    @model_validator(mode="after")
    def _has_ceilings(self) -> Agent:
        ceilings = (self.max_steps_per_run, self.max_usd_per_run, self.budget_usd_per_day)
        trees = (self.max_usd_per_tree, self.max_tokens_per_tree)
        if self.land_at_percent is not None and all(one is None for one in ceilings + trees):
            hint = "set max_steps_per_run, max_usd_per_run, budget_usd_per_day, max_usd_per_tree or max_tokens_per_tree"
            refuse_field("land_at_percent", "has no effect here", hint)
        if self.pause_at_percent is not None and all(one is None for one in ceilings):
            hint = "set max_steps_per_run, max_usd_per_run or budget_usd_per_day"
            refuse_field("pause_at_percent", "has no effect here", hint)
        if self.land_at_percent is not None and self.land_at_percent == self.pause_at_percent:
            refuse_field("pause_at_percent", "is the same as land_at_percent", "one of them has to come first")
        return self

    @model_validator(mode="after")
    def _reachable(self) -> Agent:
        if self.kill_switch_enabled:
            hint = "lower the threshold or widen the window"
            refuse_unreachable(self, "kill_switch_threshold", "kill_switch_window_size", Weights(), hint)
        return self


class LoopGuard(Model):
    """Values of a project for the built-in `tail` detector; omitted fields keep their defaults."""

    window_seconds: PositiveInt | None = Field(default=None, description="Length of the sliding window.")
    max_hits: CountInt | None = Field(
        default=None, description="Equal requests allowed within the window; 0 turns it off."
    )
    cooldown_seconds: CountInt | None = Field(
        default=None, description="Seconds for which a detected fingerprint is blocked."
    )


class Project(Model):
    """Settings of one project."""

    loop_guard: LoopGuard | None = Field(default=None, description="Values for the built-in loop detector.")


def _fallback_name(value: Any) -> Any:
    return {**value, "name": "fallback_limit"} if isinstance(value, dict) and "name" not in value else value


class Spec(Model):
    """The content of a policy."""

    selector: Selector = Field(description="The requests it applies to.")
    mode: Literal["enforce", "shadow"] = Field(
        default="enforce", description="`enforce`, or `shadow` to count and log without affecting requests."
    )
    rules: list[AnyRule] = Field(default_factory=list, description="Limits, evaluated in this order.")
    fallback_limit: Annotated[AnyRule, BeforeValidator(_fallback_name)] | None = Field(
        default=None,
        description="The limit of requests that no rule matches; written like a rule, the name is optional.",
    )
    loop_detection: LoopBlocks | None = Field(default=None, description="One loop detector or a list.")
    circuit_breaker: CircuitBreaker | None = Field(
        default=None, description="Denies requests of a key that spends too fast."
    )
    deny_status: Annotated[int, Field(ge=400, le=599)] = Field(
        default=429, description="HTTP status of this policy's denials."
    )
    on_large_body: Literal["pass", "reject"] = Field(
        default="pass",
        description="What to do with a body that cannot be inspected at a bounded cost, because it is larger than "
        "`limits.body_bytes`, holds more than 200,000 JSON values (50,000 in one message), or would take too long to "
        "decode for another reason: `pass` allows it without looking into it, `reject` returns 413.",
    )
    on_store_error: Literal["allow", "deny"] = Field(default="allow", description="The decision when the store fails.")

    @property
    def all_rules(self) -> list[AnyRule]:
        """The rules and the fallback."""
        return [*self.rules, *([] if self.fallback_limit is None else [self.fallback_limit])]

    @property
    def loops(self) -> tuple[AnyLoop, ...]:
        """The loop detectors, none or more."""
        return tuple(self.loop_detection or ())

    @model_validator(mode="after")
    def _whole(self) -> Spec:
        breaker = self.circuit_breaker
        if breaker is not None and breaker.enabled and not self.rules and breaker.spend_source is None:
            hint = "add a rule, or set spend_source: usage:usd"
            refuse_field("circuit_breaker", "is enabled, but there is no rule to take the spend from", hint)
        return self


class Policy(Model):
    """One policy: a selector, limits and detectors."""

    id: Text = Field(description="Name of the policy, unique in the bundle.")
    spec: Spec = Field(description="The content of the policy.")


class KillSwitch(Model):
    """Denies all requests of a caller, agent, header value or other descriptor, before any policy is evaluated."""

    scope_key: Descriptor = Field(description="The descriptor to compare.")
    scope_value: DescriptorValue = Field(description="The value it must have.")
    route: Route | None = Field(default=None, description="A path, or a prefix that ends with `*`.")
    reason: str | None = Field(default=None, description="The reason, shown to people.")
    expires_at: Timestamp | None = Field(default=None, description="When it expires; by default, when it is removed.")

    @model_validator(mode="after")
    def _can_match(self) -> KillSwitch:
        wrong = check_descriptor_value(self.scope_key, self.scope_value)
        if wrong:
            refuse_field("scope_value", wrong, "one address; ranges are not supported")
        return self


class Override(Model):
    """A temporary override; an expired one is inactive, not an error."""

    enabled: bool = Field(description="Whether the override is on.")
    reason: Annotated[str, Field(max_length=256)] | None = Field(
        default=None, description="The reason, at most 256 characters; required when enabled."
    )
    expires_at: Timestamp | None = Field(default=None, description="When it expires; required when enabled.")

    @model_validator(mode="after")
    def _accounted_for(self) -> Override:
        faults = []
        if self.enabled and not (self.reason or "").strip():
            faults.append(SchemaFault(("reason",), "is required when enabled", "state why it is on"))
        if self.enabled and self.expires_at is None:
            faults.append(SchemaFault(("expires_at",), "is required when enabled", "an override must expire"))
        refuse(faults)
        return self


def _defaults_kind(value: Any) -> str:
    return "off" if isinstance(value, str) else "blocks"


DefaultLoops = Annotated[
    Annotated[Literal["off"], Tag("off")] | Annotated[LoopBlocks, Tag("blocks")], Discriminator(_defaults_kind)
]


class Defaults(Model):
    """Defaults for requests without a policy of their own."""

    loop_detection: DefaultLoops | None = Field(
        default=None,
        description="Loop detectors of LLM and MCP calls that no policy with loop detection covers; `off` for none.",
    )

    @property
    def loops(self) -> tuple[AnyLoop, ...]:
        """The detectors; empty when switched off, and when `loop_detection` is None: then the built-in block holds."""
        said = self.loop_detection
        return () if said is None or isinstance(said, str) else tuple(said)


class Pause(Model):
    """How long a person has to answer for a run that `pause` holds, and what happens in the meantime and after it."""

    answer_within_minutes: Annotated[float, Field(gt=0, le=7 * 24 * 60, allow_inf_nan=False)] = Field(
        default=30.0, description="How long a person has to answer."
    )
    then: Literal["deny", "land", "continue"] = Field(
        default="deny",
        description="What happens without an answer: `deny` holds the run until a person releases it, a day at the "
        "most; `land` lets the model finish; `continue` lets the run go on until it is detected again.",
    )
    hold_open_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        default=0.0,
        description="How long the gateway holds a request of a paused run open before it returns 429; 0: not at all.",
    )


class Bundle(Model):
    """A versioned set of policies, applied as a whole or not at all."""

    schema_ref: str | None = Field(
        default=None, alias="$schema", description="Location of the schema for editors; ignored."
    )
    bundle_version: PositiveInt = Field(description="Version of the bundle; it must not decrease.")
    issued_at: Timestamp | None = Field(default=None, description="When the bundle was issued.")
    expires_at: Timestamp | None = Field(
        default=None,
        description="When the bundle should be replaced. After that it stays in force, and an event is published.",
    )
    policies: list[Policy] = Field(description="The policies, evaluated in this order.")
    kill_switches: list[KillSwitch] = Field(
        default_factory=list, description="Kill switches, evaluated before the policies."
    )
    global_shadow: Override | None = Field(
        default=None, description="While active, every policy behaves as in shadow mode."
    )
    kill_switch_override: Override | None = Field(default=None, description="While active, kill switches are skipped.")
    defaults: Defaults = Field(default_factory=Defaults, description="Defaults where no policy applies.")
    pause: Pause = Field(default_factory=Pause, description="How runs wait that the action `pause` holds.")
    agents: dict[Text, Agent] = Field(
        default_factory=dict, description="Settings by agent id, or by a pattern with `*`."
    )
    projects: dict[Text, Project] = Field(default_factory=dict, description="Settings by project id.")

    @property
    def pauses(self) -> bool:
        """Whether anything in it pauses runs."""
        specs = [policy.spec for policy in self.policies]
        blocks = [*self.defaults.loops, *(block for spec in specs for block in spec.loops)]
        budgets = [rule for spec in specs for rule in spec.all_rules if isinstance(rule, CostBasedRule)]
        actions = [block.action_for(severity) for block in blocks for severity in SEVERITIES]
        actions += [stage.action for rule in budgets for stage in rule.algorithm_config.stages]
        return "pause" in actions or any(agent.pause_at_percent is not None for agent in self.agents.values())

    @model_validator(mode="after")
    def _times(self) -> Bundle:
        if self.issued_at and self.expires_at and self.expires_at <= self.issued_at:
            refuse_field("expires_at", "must be later than issued_at")
        return self


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def bundle_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a bundle."""
    schema = Bundle.model_json_schema(by_alias=True)
    _name_optional(schema["$defs"])
    return {"$schema": DIALECT, **schema, "title": "breakloop policy bundle"}


def _name_optional(definitions: dict[str, Any]) -> None:
    """A `fallback_limit` is a rule whose name may be left out."""
    limit = definitions["Spec"]["properties"]["fallback_limit"]
    rules = [choice["$ref"].rsplit("/", 1)[1] for choice in limit["anyOf"][0]["oneOf"]]
    for rule in rules:
        required = [field for field in definitions[rule]["required"] if field != "name"]
        definitions[f"{rule}Fallback"] = {**definitions[rule], "title": f"{rule}Fallback", "required": required}
    limit["anyOf"][0] = {"oneOf": [{"$ref": f"#/$defs/{rule}Fallback"} for rule in rules]}
