"""Operations that give orders at run time: kill switches, overrides, snoozes and breakers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from breakloop.admin.actions import SNOOZE_MAX_S
from breakloop.admin.api import responses
from breakloop.admin.api.agents import Reason
from breakloop.admin.api.operations import Ends, Operation, OperationRequest, ends
from breakloop.admin.api.responses import override_view, switch_view
from breakloop.engine.breakers import BreakerState


class SwitchBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Deny all requests with this value in this descriptor."""

    scope_key: Annotated[
        str, msgspec.Meta(min_length=1, max_length=256, description="A descriptor, such as `agent:id`.")
    ]
    scope_value: Annotated[str, msgspec.Meta(min_length=1, max_length=1024, description="The value it must have.")]
    route: Annotated[
        str, msgspec.Meta(max_length=1024, description="A path, or the beginning of one with `*` at the end.")
    ] = ""
    reason: Annotated[str, msgspec.Meta(max_length=256, description="Reason, shown to people.")] = ""
    expires_at: Ends = None


class OverrideBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Why, and until when."""

    reason: Reason
    expires_at: Annotated[
        float | str, msgspec.Meta(description="When it ends: seconds since 1970, or a time like 2027-01-31T18:00:00Z.")
    ]


class SnoozeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which fingerprint is ignored, and for how long."""

    fingerprint: Annotated[
        str, msgspec.Meta(pattern="^[0-9a-f]{16,64}$", description="As shown in denials and incidents.")
    ]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=SNOOZE_MAX_S)]


class ResetBreakerBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which breaker, as listed."""

    policy: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]


async def switches(request: OperationRequest) -> responses.SwitchesResponse:
    return responses.SwitchesResponse([switch_view(one) for one in request.services.operator.switches()])


async def set_switch(request: OperationRequest) -> responses.SwitchResponse:
    body = request.body
    made, shared = await request.actions.set_switch(
        body.scope_key, body.scope_value, route=body.route, reason=body.reason, expires_at=ends(body.expires_at)
    )
    return responses.SwitchResponse(made, shared)


async def lift_switch(request: OperationRequest) -> responses.SharedOrder:
    return responses.SharedOrder(await request.actions.lift_switch(request.path["id"]))


async def overrides(request: OperationRequest) -> responses.OverridesResponse:
    return responses.OverridesResponse([override_view(one) for one in request.services.operator.overrides()])


async def set_override(request: OperationRequest) -> responses.SharedOrder:
    until = ends(request.body.expires_at)
    return responses.SharedOrder(await request.actions.set_override(request.path["name"], request.body.reason, until))


async def lift_override(request: OperationRequest) -> responses.SharedOrder:
    return responses.SharedOrder(await request.actions.lift_override(request.path["name"]))


async def snooze(request: OperationRequest) -> responses.SnoozeResponse:
    until = await request.actions.snooze(request.body.fingerprint, request.body.seconds)
    return responses.SnoozeResponse(request.body.fingerprint, until)


async def breakers(request: OperationRequest) -> responses.BreakersResponse:
    return responses.BreakersResponse(await request.services.breakers())


async def reset_breaker(request: OperationRequest) -> BreakerState:
    return await request.actions.reset_breaker(request.body.policy, request.body.key)


OPERATIONS = (
    Operation(
        "GET",
        "/kill-switches",
        "listKillSwitches",
        "List kill switches set at run time",
        switches,
        responses.SwitchesResponse,
    ),
    Operation(
        "POST",
        "/kill-switches",
        "setKillSwitch",
        "Set a kill switch: deny requests with a value in a descriptor",
        set_switch,
        responses.SwitchResponse,
        body=SwitchBody,
        acts=True,
        status=201,
    ),
    Operation(
        "DELETE",
        "/kill-switches/{id}",
        "liftKillSwitch",
        "Lift a kill switch",
        lift_switch,
        responses.SharedOrder,
        acts=True,
    ),
    Operation(
        "GET", "/overrides", "listOverrides", "List overrides set at run time", overrides, responses.OverridesResponse
    ),
    Operation(
        "PUT",
        "/overrides/{name}",
        "setOverride",
        "Activate `global_shadow` or `kill_switch_override` until it expires",
        set_override,
        responses.SharedOrder,
        body=OverrideBody,
        acts=True,
    ),
    Operation(
        "DELETE",
        "/overrides/{name}",
        "liftOverride",
        "End an override",
        lift_override,
        responses.SharedOrder,
        acts=True,
    ),
    Operation(
        "POST",
        "/snooze",
        "snoozeLoop",
        "Ignore a fingerprint for some time",
        snooze,
        responses.SnoozeResponse,
        body=SnoozeBody,
        acts=True,
    ),
    Operation(
        "GET",
        "/breakers",
        "listBreakers",
        "List circuit breakers, open ones first",
        breakers,
        responses.BreakersResponse,
    ),
    Operation(
        "POST",
        "/breakers/reset",
        "resetBreaker",
        "Close a circuit breaker",
        reset_breaker,
        BreakerState,
        body=ResetBreakerBody,
        acts=True,
        errors=frozenset({404}),
    ),
)
