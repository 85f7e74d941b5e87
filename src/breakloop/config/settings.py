"""Every setting of a process: name, type, default, and a sentence about it (SPEC T-1, T-2). What a value may be is
`settings_checks`', where values come from `settings`', what they are used for `runtime`'s.

What settings may not say together: each alone is right, so `settings_checks` cannot see it. Everything that is wrong
is told at once.

Alert rules and their targets as settings say them (SPEC G-4). Secrets are named, never written: `env:VARIABLE` or
`file:/PATH`. Where these blocks stand is `settings_fields`' business; `alerts.configured` makes rules and targets of
them.

What a model costs, as settings say it: US dollars for a million tokens. Where these blocks stand is
`settings_fields`' business; the list of prices is put together in `price_list`.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Protocol, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    WithJsonSchema,
    model_validator,
)

from breakloop.alerts.channels import AlertTargets
from breakloop.alerts.rules import AlertRule, check_rules
from breakloop.config import validators
from breakloop.model.upstream import BUILTIN
from breakloop.policy.schema.types import CountInt, Model, PositiveInt, SchemaFault, Text, fault, refuse
from breakloop.pricing.prices import Price, from_dollars
from breakloop.store.ops import COOLDOWN_S


class CrossChecked(Protocol):
    """The settings that are looked at."""

    upstream: list[str]
    upstream_keys: list[str]
    workers: int
    state: str
    mode: Any  # one of a few words
    envoy_grpc_port: int
    policy: str


def faults(settings: CrossChecked) -> list[SchemaFault]:
    """Return what does not go together, in the order of the settings."""
    return [*_policy(settings), *_keys(settings), *_workers(settings), *_envoy(settings)]


def _policy(settings: CrossChecked) -> Iterator[SchemaFault]:
    if settings.policy == validators.POLICY_REDIS and _in_memory(settings):
        hint = "set state to the URL of that Redis; a file of this name is ./redis"
        yield SchemaFault(("policy",), "is to come from Redis, and state names none", hint)


def _keys(settings: CrossChecked) -> Iterator[SchemaFault]:
    known = {*BUILTIN, *(value.partition("=")[0] for value in settings.upstream)}
    for at, value in enumerate(settings.upstream_keys):
        if value.partition("=")[0] not in known:
            yield SchemaFault(("upstream_keys", at), "names no upstream", f"known are {', '.join(sorted(known))}")


def _workers(settings: CrossChecked) -> Iterator[SchemaFault]:
    if settings.workers > 1 and _in_memory(settings):
        message = f"{settings.workers} processes cannot share the state of memory://, so each would count for itself"
        yield SchemaFault(("workers",), message, "set state to the URL of a Redis, or workers to 1")


def _envoy(settings: CrossChecked) -> Iterator[SchemaFault]:
    if settings.envoy_grpc_port and settings.mode == "proxy":
        hint = "set mode to decision or all, or envoy_grpc_port to 0"
        yield SchemaFault(("envoy_grpc_port",), "is the decision service's, and mode is proxy", hint)


def _in_memory(settings: CrossChecked) -> bool:
    return settings.state.startswith("memory:")


Dollars = Annotated[Decimal, BeforeValidator(validators.dollars), WithJsonSchema({"type": "number", "minimum": 0})]

_CACHED = "Input read from the provider's cache; as other input if it is not set."
_CACHE_WRITE = "Input written to the provider's cache; as other input if it is not set."
_REASONING = "Output that is reasoning; as other output if it is not set."


class ModelPrice(Model):
    """What one model costs, in US dollars for a million tokens."""

    input_usd_per_million: Dollars = Field(description="Input.")
    output_usd_per_million: Dollars = Field(description="Output; 0 for models that only embed.")
    cached_usd_per_million: Dollars | None = Field(default=None, description=_CACHED)
    cache_write_usd_per_million: Dollars | None = Field(default=None, description=_CACHE_WRITE)
    reasoning_usd_per_million: Dollars | None = Field(default=None, description=_REASONING)


class AssumedPrice(Model):
    """What an unknown model is assumed to cost, in US dollars for a million tokens."""

    input_usd_per_million: Dollars | None = Field(default=None, description="Input.")
    output_usd_per_million: Dollars | None = Field(default=None, description="Output.")
    cached_usd_per_million: Dollars | None = Field(default=None, description=_CACHED)
    cache_write_usd_per_million: Dollars | None = Field(default=None, description=_CACHE_WRITE)
    reasoning_usd_per_million: Dollars | None = Field(default=None, description=_REASONING)


def price(said: ModelPrice | AssumedPrice) -> Price:
    """Return it as it is counted with."""
    return Price(
        from_dollars(said.input_usd_per_million or Decimal(0)),
        from_dollars(said.output_usd_per_million or Decimal(0)),
        _kept(said.cached_usd_per_million),
        _kept(said.cache_write_usd_per_million),
        _kept(said.reasoning_usd_per_million),
    )


def _kept(usd_per_million: Decimal | None) -> int | None:
    return None if usd_per_million is None else from_dollars(usd_per_million)


RELATIVE = "path"  # marks fields that are taken relative to the settings file
UNSAID = "unsaid"  # marks fields whose wrong values are not repeated: somebody may have put a key there

Port = Annotated[int, Field(ge=0, le=65535)]
FilePath = Annotated[str, RELATIVE]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
SomeSeconds = Annotated[float, Field(gt=0, le=86_400)]
PollSeconds = Annotated[float, Field(ge=0.1, le=300)]


class Jwt(Model):
    """How bearer tokens are verified; with none of secret, jwks_file and jwks_url they are decoded, not verified."""

    secret: SecretStr = Field(default=SecretStr(""), description="Shared secret of HMAC-signed tokens.")
    jwks_file: FilePath = Field(default="", description="File with a JSON Web Key Set.")
    jwks_url: str = Field(default="", description="URL of a JSON Web Key Set, fetched at start and every 5 minutes.")
    audience: str = Field(default="", description="The `aud` that a token must have, if any.")
    issuer: str = Field(default="", description="The `iss` that a token must have, if any.")
    leeway_seconds: Seconds = Field(default=0.0, description="How far clocks may differ.")
    algorithms: list[str] = Field(default=[], description="Allowed algorithms; empty: those that fit each key.")


class LoopGuard(Model):
    """The built-in loop protection."""

    window_seconds: PositiveInt = Field(default=60, description="Length of the sliding window.")
    max_hits: CountInt = Field(default=5, description="How many alike pass in it; 0 switches the protection off.")
    cooldown_seconds: CountInt = Field(default=COOLDOWN_S, description="How long a loop is blocked, the first time.")


class Limits(Model):
    """What one client may cost breakloop."""

    head_bytes: PositiveInt = Field(default=64 * 1024, description="Largest request head.")
    fields: PositiveInt = Field(default=200, description="Most header fields.")
    body_bytes: PositiveInt = Field(
        default=10 * 1024 * 1024, description="Largest body that is judged; the proxy lets larger ones pass unjudged."
    )
    connections: PositiveInt = Field(default=10_000, description="Most open connections.")
    idle_seconds: PositiveInt = Field(default=75, description="How long a connection may wait for its next request.")
    head_seconds: PositiveInt = Field(default=10, description="How long a request head may take.")
    body_seconds: PositiveInt = Field(default=60, description="How long a body may take without progress.")


class Tls(Model):
    """TLS of the traffic port; with neither file it speaks plain HTTP."""

    cert_file: FilePath = Field(default="", description="Certificate chain, PEM.")
    key_file: FilePath = Field(default="", description="Its private key, PEM, without a passphrase.")

    @model_validator(mode="after")
    def _both(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            missing = "key_file" if self.cert_file else "cert_file"
            raise fault(f"{missing} is missing", "set both cert_file and key_file, or neither")
        return self


# How long an unused connection to an upstream is kept when the setting leaves it open. Less than servers keep it:
# uvicorn and Node close after 5 s; public APIs, where a TLS handshake costs more, and the load balancers in front of
# them keep connections for 60 s or longer.
HTTP_IDLE_S: Final = 4.0
HTTPS_IDLE_S: Final = 45.0


class Proxy(Model):
    """How long the proxy waits for upstreams."""

    connect_seconds: SomeSeconds = Field(default=10.0, description="To connect, with TLS. Then 504.")
    answer_seconds: SomeSeconds = Field(
        default=600.0,
        description="For the head of an answer (then 504), and between two pieces of it (then it is cut).",
    )
    idle_seconds: Seconds = Field(
        default=0.0,
        description="How long an unused connection is kept for the next request; it should be less than the upstream "
        f"keeps it. 0 is automatic: {HTTP_IDLE_S:g} for http, {HTTPS_IDLE_S:g} for https.",
    )


class Prices(Model):
    """What models cost. The package has a table of prices; what is said here comes before it."""

    file: FilePath = Field(
        default="", description="Price file of LiteLLM's form (`model_prices_and_context_window.json`)."
    )
    models: dict[Text, ModelPrice] = Field(
        default={},
        description="Prices by name of the model, or `provider/model`; they come before those of the file. As a "
        "variable: JSON.",
    )
    service_tier: Literal["standard", "batch", "flex", "priority"] = Field(
        default="standard",
        description="Which of a provider's prices hold for the traffic here; models without such a price have the "
        "standard one.",
    )
    unknown_model: Literal["warn", "deny", "assume"] = Field(
        default="warn",
        description="A model without a price counts nothing and is warned of (`warn`), is denied where money is "
        "limited (`deny`), or costs what `assume` says (`assume`).",
    )
    assume: AssumedPrice = Field(default=AssumedPrice(), description="What an unknown model is assumed to cost.")

    @model_validator(mode="after")
    def _something_is_assumed(self) -> Self:
        if self.unknown_model == "assume":
            needed = ("input_usd_per_million", "output_usd_per_million")
            missing = [f"prices.assume.{name}" for name in needed if getattr(self.assume, name) is None]
            faults = [SchemaFault(("unknown_model",), "does not say what to assume", f"set {' and '.join(missing)}")]
            refuse(faults if missing else [])
        return self


class Settings(Model):
    """Everything that can be set for a process."""

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def origins(self) -> dict[str, str]:
        """Where each setting came from, by its dotted name; kept up by whoever reads settings."""
        return self._origins

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = Field(default=8787, description="Port of the traffic; 0 picks a free one.")
    admin_host: str = Field(default="127.0.0.1", min_length=1, description="Address that the admin plane listens on.")
    admin_port: Port = Field(default=8788, description="Port of the admin plane; 0 is off.")
    admin_token: SecretStr = Field(
        default=SecretStr(""),
        description="The operator's token of the admin plane; without it one is made on first start and shown once.",
    )
    admin_tokens: Annotated[
        list[Annotated[str, AfterValidator(validators.admin_token)]],
        AfterValidator(validators.admin_tokens_once),
        UNSAID,
    ] = Field(
        default=[],
        description="Further tokens of the admin plane, as NAME:ROLE:SHA256 in hex; ROLE is `viewer` or `operator`.",
    )
    admin_hosts: list[str] = Field(
        default=[], description="Further names that the admin plane may be called by, as behind a reverse proxy."
    )
    history: Annotated[str, UNSAID] = Field(
        default="",
        description="Where the past is kept: a file, `postgresql://user:password@host/database`, or `off`; else a file "
        "in data_dir, where the admin plane is on.",
    )
    history_days: PositiveInt = Field(default=30, description="For how many days.")
    history_events: PositiveInt = Field(default=1_000_000, description="How many events at the most.")
    envoy_grpc_port: Port = Field(
        default=0,
        description="Port on which Envoy may ask over gRPC (`ext_authz`); 0 is off. Needs the extra `envoy`.",
    )
    upstream: Annotated[
        list[Annotated[str, AfterValidator(validators.upstream)]],
        AfterValidator(validators.names_once),
        UNSAID,
    ] = Field(
        default=[],
        description="Upstreams as NAME=URL; the first is the default. `openai` (the default if none is given), "
        "`anthropic` and `gemini` are there unless replaced.",
    )
    upstream_keys: Annotated[
        list[Annotated[str, AfterValidator(validators.upstream_key)]],
        AfterValidator(validators.names_once),
        UNSAID,
    ] = Field(
        default=[],
        description="Provider keys that breakloop sends instead of the client's, as NAME=env:VARIABLE or "
        "NAME=file:/PATH by name of the upstream.",
    )
    upstream_ca_file: FilePath = Field(
        default="", description="Certificates, PEM, that upstreams may be signed by, beside those of the system."
    )
    callers: Annotated[
        list[Annotated[str, AfterValidator(validators.caller)]], AfterValidator(validators.keys_once), UNSAID
    ] = Field(
        default=[],
        description="Clients that may use the traffic port, as NAME=SHA256 of their key in hex "
        '(`printf %s "$KEY" | sha256sum`); empty: everybody who reaches it.',
    )
    via: bool = Field(
        default=False, description="Add Via and X-Forwarded-* towards upstreams; public LLM APIs need neither."
    )
    tls: Tls = Field(default=Tls(), description="TLS of the traffic port.")
    proxy: Proxy = Field(default=Proxy(), description="How long upstreams are waited for.")
    policy: Annotated[FilePath, AfterValidator(validators.policy)] = Field(
        default="",
        description="Policy bundle: a file, a directory of files, an HTTP(S) URL, or `redis` for what was pushed to "
        "the Redis in `state`. Without it, loop protection only.",
    )
    policy_poll_seconds: PollSeconds = Field(
        default=5.0, description="How often a URL is asked whether its bundle changed; files are looked at more often."
    )
    policy_token: SecretStr = Field(default=SecretStr(""), description="Bearer token that the policy's URL asks for.")
    policy_token_file: FilePath = Field(default="", description="File that holds the token.")
    policy_ca_file: FilePath = Field(
        default="",
        description="Certificates, PEM, that the policy's URL may be signed by, beside those of the system.",
    )
    policy_public_key_file: FilePath = Field(
        default="",
        description="Public keys of Ed25519, PEM or base64: only a bundle that is signed with one of them is taken.",
    )
    policy_hmac_secret: SecretStr = Field(
        default=SecretStr(""), description="Shared secret: only a bundle that is signed with it is taken."
    )
    policy_hmac_secret_file: FilePath = Field(default="", description="File that holds that secret.")
    state: Annotated[str, AfterValidator(validators.state), UNSAID] = Field(
        default="memory://",
        description="Where counters live: `memory://`, kept in data_dir; or a Redis or Valkey that instances share: "
        "`redis://`, `rediss://` (TLS), `redis+cluster://`, `redis+sentinel://`.",
    )
    data_dir: FilePath = Field(
        default="",
        description="Where the secret and the last good bundle are kept: `$STATE_DIRECTORY` (systemd sets it), "
        "else `$XDG_DATA_HOME/breakloop`, else `~/.local/share/breakloop`, else `.breakloop`.",
    )
    workers: PositiveInt = Field(default=1, description="Processes on the port; more than one share a Redis (`state`).")
    mode: Literal["all", "proxy", "decision"] = Field(
        default="all", description="Which doors are open: `proxy`, `decision`, or `all`."
    )
    strict: bool = Field(default=False, description="Exit when there is no valid bundle at start, instead of 503s.")
    secret: SecretStr = Field(default=SecretStr(""), description="Key of fingerprints; a fleet shares one.")
    secret_file: FilePath = Field(default="", description="File that holds the secret.")
    debug_secret: SecretStr = Field(default=SecretStr(""), description="Opens debug sessions; without it, none.")
    header_prefix: Annotated[str, AfterValidator(validators.header_prefix)] = Field(
        default="X-Breakloop-", description="How the names of our header fields begin."
    )
    trusted_proxies: list[Annotated[str, AfterValidator(validators.proxy_network)]] = Field(
        default=["127.0.0.0/8", "::1"],
        description="Peers whose X-Forwarded-For and geo headers are believed. Loopback, because the gateway that asks "
        "is usually there; empty if clients connect directly.",
    )
    project: str = Field(default="default", min_length=1, description="Name of the project.")
    project_descriptor: Annotated[str, AfterValidator(validators.descriptor)] = Field(
        default="", description="Descriptor that names a request's project, such as `header:x-project`."
    )
    shard_by: Literal["project", "agent"] = Field(
        default="project",
        description="What lies together in one slot of a Redis Cluster: all of a `project`; or all of an `agent`, and "
        "apart from it what agents of the project share. The same for all instances.",
    )
    jwt: Jwt = Field(default=Jwt(), description="How bearer tokens are verified.")
    geo_file: FilePath = Field(default="", description="MaxMind-format file for ip:country, ip:asn and so on.")
    loop_guard: LoopGuard = Field(
        default=LoopGuard(), description="Numbers of the built-in loop protection; LOOP_GUARD_* too."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged.")
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="`json` lines, `text`, or `auto`: text on a terminal."
    )
    otel_endpoint: str = Field(
        default="",
        description="Collector that traces and metrics are sent to, by OTLP over HTTP, as `http://127.0.0.1:4318`; "
        "`OTEL_EXPORTER_OTLP_ENDPOINT` too. Needs the extra `otel`; empty: none.",
    )
    limits: Limits = Field(default=Limits(), description="What one client may cost.")
    prices: Prices = Field(default=Prices(), description="What models cost.")
    alerts: list[AlertRule] = Field(
        default=[],
        description="Alert rules: which events are sent to which targets, and how often. As a variable: JSON.",
    )
    alert_targets: Annotated[AlertTargets, UNSAID] = Field(
        default={}, description="Targets of alert rules, by name. As a variable: JSON."
    )
    alert_ca_file: FilePath = Field(
        default="",
        description="Certificates, PEM, that targets of alerts may be signed by, beside those of the system.",
    )
    memory_max_entries: PositiveInt = Field(default=1_000_000, description="Most entries of each table of memory://.")
    shutdown_grace_seconds: Seconds = Field(default=10.0, description="How long running requests may take to finish.")

    @model_validator(mode="after")
    def _alerts_have_targets(self) -> Self:
        check_rules(self.alerts, self.alert_targets)
        return self

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        refuse(faults(self))
        return self
