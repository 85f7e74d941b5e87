"""Operations about the process itself: its status, settings and counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from breakloop.admin.api.operations import Operation, OperationRequest
from breakloop.admin.api.responses import plain


class CounterQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which counters."""

    key: Annotated[
        str, msgspec.Meta(min_length=1, max_length=2048, description="Prefix of their keys, such as `tb:default:`.")
    ]


class SettingView(msgspec.Struct):
    """A setting; secrets are masked."""

    name: str
    value: str
    origin: str


class SettingsResponse(msgspec.Struct):
    """All settings and where they come from."""

    settings: list[SettingView]


class CountersResponse(msgspec.Struct):
    """Counters whose keys begin with a prefix."""

    counters: list[dict[str, Any]]


async def status(request: OperationRequest) -> Mapping[str, Any]:
    """Return the status, and the identity of the client."""
    who = request.identity
    return {**request.services.status(), "you": {"name": who.name, "role": who.role}}


async def settings(request: OperationRequest) -> SettingsResponse:
    return SettingsResponse([SettingView(*one) for one in request.services.settings()])


async def counters(request: OperationRequest) -> CountersResponse:
    return CountersResponse(plain(await request.services.counters(request.query.key)))


OPERATIONS = (
    Operation("GET", "/status", "getStatus", "How this instance is", status, dict[str, Any]),
    Operation("GET", "/settings", "listSettings", "List settings and where each came from", settings, SettingsResponse),
    Operation(
        "GET", "/counters", "listCounters", "Show what is counted under a key", counters, CountersResponse, CounterQuery
    ),
)
