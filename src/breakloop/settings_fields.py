"""Every setting of a process: name, type, default, and a sentence about it (SPEC T-1, T-2). What a value may be is
decided here; where values come from is `settings`, what they are used for is `runtime`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from breakloop.errors import SettingsError
from breakloop.policy import descriptor_names
from breakloop.policy.client_ip import ClientIp
from breakloop.policy.schema_types import CountInt, Model, PositiveInt, fault

RELATIVE = "path"  # marks fields that are taken relative to the settings file


def _policy(value: str) -> str:
    if "://" in value:
        raise fault("reading a bundle from a URL is not in this version", "give the path of a file or directory")
    return value


def _state(value: str) -> str:
    if value != "memory://":
        raise fault("only memory:// is in this version", "leave it out, and run one process")
    return value


def _workers(value: int) -> int:
    if value > 1:
        raise fault(
            f"{value} processes cannot share the state of memory://, so each would count for itself",
            "set workers to 1; a shared store is not in this version",
        )
    return value


def _mode(value: str) -> str:
    if value == "proxy":
        raise fault("the reverse proxy is not in this version", "use decision, or all for everything there is")
    return value


def _proxy_network(value: str) -> str:
    try:
        ClientIp((value,))
    except SettingsError:
        raise fault(f'"{value}" is neither an address nor a network', "write 10.0.0.0/8, 10.1.2.3 or unix") from None
    return value


def _upstream(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*=https?://\S+", value):
        raise fault("is not NAME=URL", "write openai=https://llm.example.com")
    return value


def _header_prefix(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*-", value):
        raise fault("cannot begin a header name", "letters, digits and hyphens, with a hyphen at the end")
    return value


def _descriptor(value: str) -> str:
    wrong = descriptor_names.fault(value) if value else None
    if wrong is not None:
        raise fault(*wrong)
    return value


Port = Annotated[int, Field(ge=0, le=65535)]
FilePath = Annotated[str, RELATIVE]
Seconds = Annotated[float, Field(ge=0, le=86_400)]


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
    cooldown_seconds: CountInt = Field(default=30, description="How long a loop is blocked, the first time.")


class Limits(Model):
    """What one client may cost breakloop."""

    head_bytes: PositiveInt = Field(default=64 * 1024, description="Largest request head.")
    fields: PositiveInt = Field(default=200, description="Most header fields.")
    body_bytes: PositiveInt = Field(default=10 * 1024 * 1024, description="Largest body.")
    connections: PositiveInt = Field(default=10_000, description="Most open connections.")
    idle_seconds: PositiveInt = Field(default=75, description="How long a connection may wait for its next request.")
    head_seconds: PositiveInt = Field(default=10, description="How long a request head may take.")
    body_seconds: PositiveInt = Field(default=60, description="How long a body may take without progress.")


class Settings(Model):
    """Everything that can be set for a process."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = Field(default=8787, description="Port of the traffic; 0 picks a free one.")
    admin_port: Port = Field(default=8788, description="Port of the admin plane; 0 is off. Not used in this version.")
    admin_token: SecretStr = Field(
        default=SecretStr(""), description="Token of the admin plane. Not used in this version."
    )
    upstream: list[Annotated[str, AfterValidator(_upstream)]] = Field(
        default=[], description="Upstreams as NAME=URL, the first is the default. Not used in this version."
    )
    policy: Annotated[FilePath, AfterValidator(_policy)] = Field(
        default="", description="Policy bundle: a file, or a directory of files. Without it, loop protection only."
    )
    state: Annotated[str, AfterValidator(_state)] = Field(
        default="memory://", description="Where counters live; only `memory://` in this version."
    )
    data_dir: FilePath = Field(
        default="",
        description="Where the secret and the last good bundle are kept: `$STATE_DIRECTORY` (systemd sets it), "
        "else `$XDG_DATA_HOME/breakloop`, else `~/.local/share/breakloop`, else `.breakloop`.",
    )
    workers: Annotated[PositiveInt, AfterValidator(_workers)] = Field(
        default=1, description="Processes; only 1 in this version."
    )
    mode: Annotated[Literal["all", "proxy", "decision"], AfterValidator(_mode)] = Field(
        default="all", description="Which doors are open: `decision`, `proxy` (not in this version), or `all`."
    )
    strict: bool = Field(default=False, description="Exit when there is no valid bundle at start, instead of 503s.")
    secret: SecretStr = Field(default=SecretStr(""), description="Key of fingerprints; a fleet shares one.")
    secret_file: FilePath = Field(default="", description="File that holds the secret.")
    debug_secret: SecretStr = Field(default=SecretStr(""), description="Opens debug sessions; without it, none.")
    header_prefix: Annotated[str, AfterValidator(_header_prefix)] = Field(
        default="X-Breakloop-", description="How the names of our header fields begin."
    )
    trusted_proxies: list[Annotated[str, AfterValidator(_proxy_network)]] = Field(
        default=["127.0.0.0/8", "::1"],
        description="Peers whose X-Forwarded-For and geo headers are believed. Loopback, because the gateway that asks "
        "is usually there; empty if clients connect directly.",
    )
    project: str = Field(default="default", min_length=1, description="Name of the project.")
    project_descriptor: Annotated[str, AfterValidator(_descriptor)] = Field(
        default="", description="Descriptor that names a request's project, such as `header:x-project`."
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
    limits: Limits = Field(default=Limits(), description="What one client may cost.")
    memory_max_entries: PositiveInt = Field(default=1_000_000, description="Most entries of each table of memory://.")
    shutdown_grace_seconds: Seconds = Field(default=10.0, description="How long running requests may take to finish.")
