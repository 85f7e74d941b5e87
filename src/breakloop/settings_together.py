"""What settings may not say together: each alone is right, so `settings_checks` cannot see it. Everything that is wrong
is told at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from breakloop import settings_checks
from breakloop.model.upstream import BUILTIN
from breakloop.policy.schema_types import Fault


class Together(Protocol):
    """The settings that are looked at."""

    upstream: list[str]
    upstream_keys: list[str]
    workers: int
    state: str
    mode: Any  # one of a few words
    envoy_grpc_port: int
    policy: str


def faults(settings: Together) -> list[Fault]:
    """Return what does not go together, in the order of the settings."""
    return [*_policy(settings), *_keys(settings), *_workers(settings), *_envoy(settings)]


def _policy(settings: Together) -> Iterator[Fault]:
    if settings.policy == settings_checks.POLICY_REDIS and _in_memory(settings):
        hint = "set state to the URL of that Redis; a file of this name is ./redis"
        yield Fault(("policy",), "is to come from Redis, and state names none", hint)


def _keys(settings: Together) -> Iterator[Fault]:
    known = {*BUILTIN, *(value.partition("=")[0] for value in settings.upstream)}
    for at, value in enumerate(settings.upstream_keys):
        if value.partition("=")[0] not in known:
            yield Fault(("upstream_keys", at), "names no upstream", f"known are {', '.join(sorted(known))}")


def _workers(settings: Together) -> Iterator[Fault]:
    if settings.workers > 1 and _in_memory(settings):
        message = f"{settings.workers} processes cannot share the state of memory://, so each would count for itself"
        yield Fault(("workers",), message, "set state to the URL of a Redis, or workers to 1")


def _envoy(settings: Together) -> Iterator[Fault]:
    if settings.envoy_grpc_port and settings.mode == "proxy":
        hint = "set mode to decision or all, or envoy_grpc_port to 0"
        yield Fault(("envoy_grpc_port",), "is the decision service's, and mode is proxy", hint)


def _in_memory(settings: Together) -> bool:
    return settings.state.startswith("memory:")
