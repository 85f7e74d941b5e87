"""Every setting of a process: name, type, default, description and checks.

`docs/reference/settings.md` is generated from these models. Each check of a single value returns the value, or raises
an error with a message and a hint. Where the values come from is in `config.loader`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, SecretStr, WithJsonSchema, model_validator

from breakloop.alerts.channels import AlertTargets
from breakloop.alerts.channels.base import Url
from breakloop.alerts.rules import AlertRule, check_rules
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.errors import SettingsError
from breakloop.model.upstream import BUILTIN, UpstreamUrlError, parse_named
from breakloop.policy import descriptors
from breakloop.policy.client import ClientIp, is_loopback
from breakloop.policy.schema.types import (
    CountInt,
    DenyStatus,
    Model,
    PositiveInt,
    SchemaFault,
    Text,
    fault,
    refuse,
    refuse_field,
)
from breakloop.pricing.prices import Price, from_dollars
from breakloop.store.redis.url import is_redis_url, parse_redis_url

HISTORY_OFF: Final = "off"
POLICY_REDIS: Final = "redis"  # the bundle is in the Redis of `state`
_POLICY_HINT: Final = "write a path, https://HOST/PATH, or redis"
_HASH: Final = 'use the first word of: printf %s "$KEY" | sha256sum'
_DOLLARS_HINT: Final = "US dollars per million tokens, such as 2.50"
_USD_MAX: Final = 1_000_000
_NAME: Final = "[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
_NO_KEY: Final = sha256(b"").hexdigest()
# Header fields of others. If one of them started with our prefix, it would not be forwarded.
_FIELDS_OF_OTHERS: Final = (
    "accept-encoding",
    "anthropic-version",
    "content-type",
    "mcp-session-id",
    "openai-organization",
    "x-agent-id",
    "x-api-key",
    "x-forwarded-for",
    "x-goog-api-key",
    "x-original-uri",
    "x-stainless-lang",
)


def _policy(value: str) -> str:
    """A path, an HTTP(S) URL, or `redis`."""
    if "://" not in value:
        return value
    try:
        url = urlsplit(value)
        usable = bool(url.hostname) and url.port != 0
    except ValueError:
        raise fault("is not a URL", _POLICY_HINT) from None
    if url.scheme not in {"http", "https"} or not usable or url.fragment or not re.fullmatch(r"[!-~]+", value):
        raise fault("is not a URL of a bundle", _POLICY_HINT)
    if url.username is not None or url.password is not None:
        raise fault("contains credentials", "remove them from the URL and set policy_token")
    return value


def _state(value: str) -> str:
    """`memory://` or the URL of a Redis."""
    if value == "memory://":
        return value
    if not is_redis_url(value):
        raise fault("is not a store", "write memory://, or the URL of a Redis: redis://HOST:6379/0")
    try:
        parse_redis_url(value)
    except SettingsError as error:
        raise fault(str(error), "for example redis://user:password@host:6379/0") from None
    return value


def _proxy_network(value: str) -> str:
    """An address, a network, or `unix`."""
    try:
        ClientIp((value,))
    except SettingsError:
        raise fault(f'"{value}" is not an address or a network', "write 10.0.0.0/8, 10.1.2.3 or unix") from None
    return value


def _upstream(value: str) -> str:
    try:
        parse_named(value)
    except UpstreamUrlError as error:
        raise fault(error.message, error.hint) from None
    return value


def _upstream_key(value: str) -> str:
    """NAME=env:VARIABLE or NAME=file:/PATH, never the key itself."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*=(?:env:[A-Za-z_][A-Za-z0-9_]*|file:/.+)", value):
        raise fault(
            "must be NAME=env:VARIABLE or NAME=file:/PATH",
            "do not write the key itself; write openai=env:OPENAI_API_KEY",
        )
    return value


def _hashed(value: str, pattern: str, form: str) -> str:
    """NAME=SHA256 or NAME:ROLE:SHA256."""
    match = re.fullmatch(pattern + "([0-9A-Fa-f]{64})", value)
    if match is None:
        raise fault(f"must be {form}", _HASH)
    if match[1].lower() == _NO_KEY:
        raise fault("is the SHA-256 of an empty string: the variable was not set", _HASH)
    return value


def _once(part: Callable[[str], str], message: str, hint: str) -> AfterValidator:
    """Return a check that no two entries of a list have the same part. `{}` in the message stands for it."""

    def check(values: list[str]) -> list[str]:
        parts = [part(value) for value in values]
        repeated = [(at, one) for at, one in enumerate(parts) if one in parts[:at]]
        refuse([SchemaFault((at,), message.format(one), hint) for at, one in repeated])
        return values

    return AfterValidator(check)


def _header_prefix(value: str) -> str:
    """A prefix of header names that no other software uses."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*-", value):
        raise fault("is not a prefix of header names", "use letters, digits and hyphens, with a hyphen at the end")
    taken = next((name for name in _FIELDS_OF_OTHERS if name.startswith(value.lower())), "")
    if taken:
        raise fault(
            f"is also the prefix of {taken}, which would not be forwarded", "use a prefix of your own, such as X-Own-"
        )
    return value


def _descriptor(value: str) -> str:
    """The name of a descriptor, or empty."""
    wrong = descriptors.fault(value) if value else None
    if wrong is not None:
        raise fault(*wrong)
    return value


def _dollars(value: Any) -> Decimal:
    """An amount with at most six decimal places. Numbers in YAML are read as they are written there."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise fault("must be a number", _DOLLARS_HINT)
    try:
        amount = Decimal(str(value).strip())
    except InvalidOperation:
        raise fault(f'must be a number, got "{value!s:.40}"', _DOLLARS_HINT) from None
    if not amount.is_finite() or not 0 <= amount <= _USD_MAX:
        raise fault(f"must be 0 to {_USD_MAX}, got {amount}", _DOLLARS_HINT)
    if amount != round(amount, 6):
        raise fault(f"{amount} has more than six decimal places", _DOLLARS_HINT)
    return amount


Dollars = Annotated[Decimal, BeforeValidator(_dollars), WithJsonSchema({"type": "number", "minimum": 0})]
_NAMES_ONCE: Final = _once(lambda value: value.partition("=")[0], 'duplicate name "{}"', "remove one")
Upstreams = Annotated[list[Annotated[str, AfterValidator(_upstream)]], _NAMES_ONCE]
UpstreamKeys = Annotated[list[Annotated[str, AfterValidator(_upstream_key)]], _NAMES_ONCE]
# A name may have several keys, so that a client can rotate its key.
Callers = Annotated[
    list[Annotated[str, AfterValidator(lambda value: _hashed(value, f"{_NAME}=", "NAME=SHA256"))]],
    _once(lambda v: v[-64:].lower(), "has the same key as another entry", "give each caller its own key"),
]
_ADMIN_TOKEN: Final = "NAME:ROLE:SHA256 with the role viewer or operator"
# A token has one name, which the audit log shows.
AdminTokens = Annotated[
    list[Annotated[str, AfterValidator(lambda value: _hashed(value, f"{_NAME}:(?:viewer|operator):", _ADMIN_TOKEN))]],
    _once(lambda v: v[-64:].lower(), "has the same token as another entry", "give each its own token"),
]

_CACHED = "Input read from the provider's cache. Default: the price of input."
_CACHE_WRITE = "Input written to the provider's cache. Default: the price of input."
_REASONING = "Reasoning output. Default: the price of output."


class AssumedPrice(Model):
    """The assumed price of unknown models, in US dollars per million tokens."""

    input_usd_per_million: Dollars | None = Field(default=None, description="Input.")
    output_usd_per_million: Dollars | None = Field(default=None, description="Output.")
    cached_usd_per_million: Dollars | None = Field(default=None, description=_CACHED)
    cache_write_usd_per_million: Dollars | None = Field(default=None, description=_CACHE_WRITE)
    reasoning_usd_per_million: Dollars | None = Field(default=None, description=_REASONING)

    @property
    def price(self) -> Price:
        """The same in integer micro-dollars."""
        return Price(
            _microusd(self.input_usd_per_million) or 0,
            _microusd(self.output_usd_per_million) or 0,
            _microusd(self.cached_usd_per_million),
            _microusd(self.cache_write_usd_per_million),
            _microusd(self.reasoning_usd_per_million),
        )


def _microusd(usd_per_million: Decimal | None) -> int | None:
    return None if usd_per_million is None else from_dollars(usd_per_million)


class ModelPrice(AssumedPrice):
    """The price of one model, in US dollars per million tokens."""

    input_usd_per_million: Dollars = Field(description="Input.")
    output_usd_per_million: Dollars = Field(description="Output; 0 for embedding models.")


RELATIVE = "path"  # marks paths that are relative to the settings file
UNSAID = "unsaid"  # marks fields whose invalid values are not repeated in messages: they may contain a secret

Port = Annotated[int, Field(ge=0, le=65535)]
FilePath = Annotated[str, RELATIVE]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
PositiveSeconds = Annotated[float, Field(gt=0, le=86_400)]
PollSeconds = Annotated[float, Field(ge=0.1, le=300)]


class Jwt(Model):
    """Verification of bearer tokens. Without secret, jwks_file and jwks_url, tokens are decoded but not verified."""

    secret: SecretStr = Field(default=SecretStr(""), description="Shared secret for HMAC-signed tokens.")
    jwks_file: FilePath = Field(default="", description="File with a JSON Web Key Set (JWKS).")
    jwks_url: str = Field(default="", description="URL of a JSON Web Key Set, fetched at start and every 5 minutes.")
    audience: str = Field(default="", description="Required `aud` claim; empty: not checked.")
    issuer: str = Field(default="", description="Required `iss` claim; empty: not checked.")
    leeway_seconds: Seconds = Field(default=0.0, description="Allowed clock difference.")
    algorithms: list[str] = Field(
        default=[], description="Allowed signature algorithms; empty: those that fit each key."
    )


_GUARD: Final = BuiltinLoopGuard()


class LoopGuard(Model):
    """The built-in loop protection."""

    window_seconds: PositiveInt = Field(default=_GUARD.window_seconds, description="Length of the sliding window.")
    max_hits: CountInt = Field(
        default=_GUARD.max_hits,
        description="Number of identical requests that are allowed in the window; 0 disables the protection.",
    )
    cooldown_seconds: CountInt = Field(
        default=_GUARD.cooldown_seconds, description="How long a loop is denied after its first detection."
    )
    deny_status: DenyStatus = Field(
        default="auto",
        description="HTTP status of a denied loop: `auto` for 429 where the client stops on it, and 400 where it would "
        "retry; or a status from 400 to 599.",
    )


class Limits(Model):
    """Limits of the traffic port."""

    head_bytes: PositiveInt = Field(default=64 * 1024, description="Maximum size of a request head.")
    fields: PositiveInt = Field(default=200, description="Maximum number of header fields.")
    body_bytes: PositiveInt = Field(
        default=10 * 1024 * 1024,
        description="Maximum size of an inspected body; the proxy forwards larger ones without inspection.",
    )
    connections: PositiveInt = Field(default=10_000, description="Maximum number of open client connections.")
    connections_per_peer: CountInt = Field(
        default=0,
        description="Maximum number of open connections of one address (IPv6: of a /64 network); 0: three quarters of "
        "`connections`. Loopback and `trusted_proxies` are exempt. Raise it if all clients connect through an address "
        "that is not a trusted proxy, such as a TCP load balancer.",
    )
    idle_seconds: PositiveInt = Field(default=75, description="How long a connection may be idle between requests.")
    head_seconds: PositiveInt = Field(default=10, description="How long a client may take to send a request head.")
    body_seconds: PositiveInt = Field(default=60, description="How long a client may pause while sending a body.")


class Tls(Model):
    """TLS of the traffic port. Without the two files, it serves plain HTTP."""

    cert_file: FilePath = Field(default="", description="Certificate chain in PEM format.")
    key_file: FilePath = Field(
        default="", description="Private key of the certificate in PEM format, without a passphrase."
    )

    @model_validator(mode="after")
    def _both(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            missing = "key_file" if self.cert_file else "cert_file"
            raise fault(f"{missing} is missing", "set both cert_file and key_file, or neither")
        return self


# Default idle time of connections to upstreams. It has to be shorter than the server's: uvicorn and Node close after
# 5 s; public APIs, where a TLS handshake costs more, and their load balancers close after 60 s or later.
HTTP_IDLE_S: Final = 4.0
HTTPS_IDLE_S: Final = 45.0


class Proxy(Model):
    """Timeouts of the proxy towards upstreams."""

    connect_seconds: PositiveSeconds = Field(
        default=10.0, description="Timeout for connecting, including the TLS handshake; then the status is 504."
    )
    answer_seconds: PositiveSeconds = Field(
        default=600.0,
        description="Timeout for the response head (then the status is 504), and between two chunks of the response "
        "(then it is cut).",
    )
    idle_seconds: Seconds = Field(
        default=0.0,
        description="How long an idle connection is kept for the next request; it should be shorter than the idle "
        f"timeout of the upstream. 0 is automatic: {HTTP_IDLE_S:g} for http, {HTTPS_IDLE_S:g} for https.",
    )


class Prices(Model):
    """Prices of models. They take precedence over the price table of the package."""

    file: FilePath = Field(
        default="", description="Price file in the format of LiteLLM (`model_prices_and_context_window.json`)."
    )
    models: dict[Text, ModelPrice] = Field(
        default={},
        description="Prices by `model` or `provider/model`. They take precedence over the price file. In a variable, "
        "as JSON.",
    )
    service_tier: Literal["standard", "batch", "flex", "priority"] = Field(
        default="standard",
        description="Which of the provider's prices apply; models without a price for this tier have the standard "
        "price.",
    )
    unknown_model: Literal["warn", "deny", "assume"] = Field(
        default="warn",
        description="Requests for a model without a price: count as free, with a warning (`warn`); are denied by rules "
        "that limit money (`deny`); or have the price in `assume` (`assume`).",
    )
    assume: AssumedPrice = Field(
        default=AssumedPrice(), description="Price of unknown models, with `unknown_model: assume`."
    )

    @model_validator(mode="after")
    def _has_assumed_price(self) -> Self:
        if self.unknown_model == "assume":
            needed = ("input_usd_per_million", "output_usd_per_million")
            missing = [f"prices.assume.{name}" for name in needed if getattr(self.assume, name) is None]
            if missing:
                refuse_field("unknown_model", "needs an assumed price", f"set {' and '.join(missing)}")
        return self


class Settings(Model):
    """All settings of a process."""

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def proxy_trusts(self) -> bool:
        """Whether the reverse proxy trusts `trusted_proxies`, or only the decision service does."""
        return "trusted_proxies" in self.model_fields_set or not is_loopback(self.host)

    @property
    def origins(self) -> dict[str, str]:
        """Origin of each value, by the dotted name of the setting; filled by `config.loader`."""
        return self._origins

    host: str = Field(default="127.0.0.1", min_length=1, description="Address of the traffic port.")
    port: Port = Field(default=8787, description="Traffic port; 0 selects a free port.")
    admin_host: str = Field(default="127.0.0.1", min_length=1, description="Address of the admin port.")
    admin_port: Port = Field(
        default=8788, description="Port of the admin plane (API, dashboard, metrics); 0 disables it."
    )
    admin_token: SecretStr = Field(
        default=SecretStr(""),
        description="Operator token of the admin plane. If empty, one is generated at the first start and shown once.",
    )
    admin_tokens: Annotated[AdminTokens, UNSAID] = Field(
        default=[],
        description="Further tokens of the admin plane, as NAME:ROLE:SHA256 with the SHA-256 of the token in hex. "
        "ROLE is `viewer` or `operator`.",
    )
    admin_hosts: list[str] = Field(
        default=[],
        description="Further host names under which the admin plane may be requested, for example behind a reverse "
        "proxy.",
    )
    dashboard_url: Url = Field(
        default="",
        description="URL under which people open the dashboard, for links in alerts. If empty, that of the admin port, "
        "unless it listens on all interfaces.",
    )
    history: Annotated[str, UNSAID] = Field(
        default="",
        description="Database of the history: a file, `postgresql://user:password@host/database`, or `off`. If empty, "
        "a file in data_dir if the admin plane is enabled.",
    )
    history_days: PositiveInt = Field(default=30, description="How many days the history is kept.")
    history_events: PositiveInt = Field(default=1_000_000, description="Maximum number of events in the history.")
    envoy_grpc_port: Port = Field(
        default=0,
        description="Port for Envoy's `ext_authz` and `ext_proc` filters over gRPC; 0 disables it. Needs the extra "
        "`envoy`.",
    )
    upstream: Annotated[Upstreams, UNSAID] = Field(
        default=[],
        description="Upstreams as NAME=URL; the first is the default. `openai` (the default if the list is empty), "
        "`anthropic` and `gemini` are built in and can be replaced.",
    )
    upstream_keys: Annotated[UpstreamKeys, UNSAID] = Field(
        default=[],
        description="API keys that breakloop sends instead of the client's, as NAME=env:VARIABLE or NAME=file:/PATH. "
        "NAME is the name of an upstream.",
    )
    upstream_ca_file: FilePath = Field(
        default="", description="Additional CA certificates for upstreams, in PEM format."
    )
    callers: Annotated[Callers, UNSAID] = Field(
        default=[],
        description="Clients and gateways that may use the traffic port, as NAME=SHA256 with the SHA-256 of their key "
        'in hex (`printf %s "$KEY" | sha256sum`). If empty, no key is required.',
    )
    via: bool = Field(
        default=False, description="Add Via and X-Forwarded-* to forwarded requests; public LLM APIs need neither."
    )
    tls: Tls = Field(default=Tls(), description="TLS of the traffic port.")
    proxy: Proxy = Field(default=Proxy(), description="Timeouts towards upstreams.")
    policy: Annotated[FilePath, AfterValidator(_policy)] = Field(
        default="",
        description="Source of the policy bundle: a file, a directory, an HTTP(S) URL, or `redis` for the bundle that "
        "was pushed to the Redis in `state`. If empty, only the built-in loop protection is active.",
    )
    policy_poll_seconds: PollSeconds = Field(
        default=5.0, description="How often the URL of a bundle is polled; files are checked more often."
    )
    policy_token: SecretStr = Field(default=SecretStr(""), description="Bearer token for the URL in `policy`.")
    policy_token_file: FilePath = Field(default="", description="File that contains this token.")
    policy_ca_file: FilePath = Field(
        default="", description="Additional CA certificates for the URL in `policy`, in PEM format."
    )
    policy_public_key_file: FilePath = Field(
        default="",
        description="File with Ed25519 public keys, PEM or base64. If set, a bundle must be signed with one of them.",
    )
    policy_hmac_secret: SecretStr = Field(
        default=SecretStr(""), description="Shared secret. If set, a bundle must be signed with it."
    )
    policy_hmac_secret_file: FilePath = Field(default="", description="File that contains this secret.")
    state: Annotated[str, AfterValidator(_state), UNSAID] = Field(
        default="memory://",
        description="The store: `memory://`, saved to data_dir; or a Redis or Valkey that instances share: `redis://`, "
        "`rediss://` (TLS), `redis+cluster://`, `redis+sentinel://`.",
    )
    data_dir: FilePath = Field(
        default="",
        description="Directory for the state, the secret, the history and the last valid bundle. Default: "
        "`$STATE_DIRECTORY` (set by systemd), else `$XDG_DATA_HOME/breakloop`, else `~/.local/share/breakloop`, else "
        "`.breakloop`.",
    )
    workers: PositiveInt = Field(
        default=1, description="Number of worker processes; more than one need a Redis (`state`)."
    )
    mode: Literal["all", "proxy", "decision"] = Field(
        default="all",
        description="What the traffic port serves: the reverse proxy (`proxy`), the decision service (`decision`), or "
        "`all`.",
    )
    strict: bool = Field(
        default=False, description="Exit if there is no valid bundle at start, instead of responding with 503."
    )
    secret: SecretStr = Field(
        default=SecretStr(""),
        description="Key of fingerprints and digests; the same for all instances. If empty, one is generated.",
    )
    secret_file: FilePath = Field(default="", description="File that contains this secret.")
    debug_secret: SecretStr = Field(
        default=SecretStr(""), description="Key that enables debug sessions; if empty, they are disabled."
    )
    header_prefix: Annotated[str, AfterValidator(_header_prefix)] = Field(
        default="X-Breakloop-", description="Prefix of the header fields that breakloop reads and adds."
    )
    trusted_proxies: list[Annotated[str, AfterValidator(_proxy_network)]] = Field(
        default=["127.0.0.0/8", "::1"],
        description="Peers whose X-Forwarded-For and geo headers are trusted. The default is for a gateway on the same "
        "host. It does not apply to the proxy while `host` is a loopback address, where every client could choose its "
        "address: set it if there is a reverse proxy in front.",
    )
    project: str = Field(
        default="default", min_length=1, description="Default project: the namespace of counters, agents and holds."
    )
    project_descriptor: Annotated[str, AfterValidator(_descriptor)] = Field(
        default="", description="Descriptor whose value is the project of a request, such as `header:x-project`."
    )
    shard_by: Literal["project", "agent"] = Field(
        default="project",
        description="How keys are distributed over the slots of a Redis Cluster: a slot for each `project`; or a slot "
        "for each `agent`, and one for what the agents of a project share. Must be the same for all instances.",
    )
    jwt: Jwt = Field(default=Jwt(), description="Verification of bearer tokens.")
    geo_file: FilePath = Field(
        default="", description="Database in MaxMind format for `ip:country`, `ip:asn` and the other `ip:` descriptors."
    )
    loop_guard: LoopGuard = Field(
        default=LoopGuard(), description="Built-in loop protection. The variables LOOP_GUARD_* also set it."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum level of log lines."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="Format of log lines: `json`, `text`, or `auto` (text on a terminal, else JSON)."
    )
    otel_endpoint: str = Field(
        default="",
        description="OTLP/HTTP endpoint for traces and metrics, such as `http://127.0.0.1:4318`; "
        "`OTEL_EXPORTER_OTLP_ENDPOINT` also sets it. If empty, nothing is exported. Needs the extra `otel`.",
    )
    limits: Limits = Field(default=Limits(), description="Limits for clients.")
    prices: Prices = Field(default=Prices(), description="Prices of models.")
    alerts: list[AlertRule] = Field(
        default=[],
        description="Alert rules: which events are sent to which targets, and how often. In a variable, as JSON.",
    )
    alert_targets: Annotated[AlertTargets, UNSAID] = Field(
        default={}, description="Targets of alert rules, by name. In a variable, as JSON."
    )
    alert_ca_file: FilePath = Field(
        default="", description="Additional CA certificates for alert targets, in PEM format."
    )
    memory_max_entries: PositiveInt | None = Field(
        default=None,
        description="Maximum number of entries in each table of `memory://`. Default: what fits into the memory limit "
        "of the container, and at most 1,000,000.",
    )
    shutdown_grace_seconds: Seconds = Field(default=10.0, description="How long a shutdown waits for running requests.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_rules(self.alerts, self.alert_targets)
        refuse([*inconsistencies(self)])
        return self


def inconsistencies(settings: Settings) -> Iterator[SchemaFault]:
    """Yield the settings that contradict each other, in the order of the settings."""
    in_memory = settings.state.startswith("memory:")
    if settings.policy == POLICY_REDIS and in_memory:
        hint = "set state to the URL of the Redis; for a file with this name, write ./redis"
        yield SchemaFault(("policy",), "is redis, but state is not the URL of a Redis", hint)
    known = {*BUILTIN, *(value.partition("=")[0] for value in settings.upstream)}
    for at, value in enumerate(settings.upstream_keys):
        if value.partition("=")[0] not in known:
            yield SchemaFault(("upstream_keys", at), "unknown upstream", f"known: {', '.join(sorted(known))}")
    if settings.workers > 1 and in_memory:
        message = f"{settings.workers} processes cannot share the state of memory://: each would count on its own"
        yield SchemaFault(("workers",), message, "set state to the URL of a Redis, or workers to 1")
    if settings.envoy_grpc_port and settings.mode == "proxy":
        hint = "set mode to decision or all, or envoy_grpc_port to 0"
        yield SchemaFault(("envoy_grpc_port",), "needs the decision service, but mode is proxy", hint)
