"""Operations on webhooks, deliveries and alert rules. The secret of a webhook is shown once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from breakloop.admin.api.operations import Most, Operation, OperationRequest
from breakloop.admin.api.responses import plain


class WebhookBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to send, and which events."""

    url: Annotated[str, msgspec.Meta(pattern="^https?://", max_length=2048, description="http:// or https://")]
    events: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=100)]],
        msgspec.Meta(max_length=100, description="Names of events, or `*`; empty: all of them."),
    ] = []
    allow_private: Annotated[
        bool, msgspec.Meta(description="Also allow addresses of this machine and of private networks.")
    ] = False


class LimitQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many."""

    most: Most = 100


class WebhooksResponse(msgspec.Struct):
    """Webhooks, without their secrets."""

    webhooks: list[dict[str, Any]]


class WebhookCreated(msgspec.Struct):
    """A webhook; its secret is shown only once."""

    id: str
    secret: str


class WebhookRemoved(msgspec.Struct):
    """The webhook that was removed."""

    id: str


class DeliveryRetried(msgspec.Struct):
    """The delivery that is sent again."""

    id: str


class DeliveriesResponse(msgspec.Struct):
    """Waiting, delivered and failed deliveries."""

    deliveries: list[dict[str, Any]]


class RulesResponse(msgspec.Struct):
    """The alert rules."""

    rules: list[dict[str, Any]]


async def webhooks(request: OperationRequest) -> WebhooksResponse:
    return WebhooksResponse(plain(await request.services.in_thread(request.services.alerts.webhooks)))


async def add(request: OperationRequest) -> WebhookCreated:
    body = request.body
    made = await request.actions.add_webhook(body.url, body.events, allow_private=body.allow_private)
    return WebhookCreated(str(made["id"]), str(made["secret"]))


async def remove(request: OperationRequest) -> WebhookRemoved:
    await request.actions.remove_webhook(request.path["id"])
    return WebhookRemoved(request.path["id"])


async def test(request: OperationRequest) -> Mapping[str, Any]:
    return await request.actions.test_webhook(request.path["id"])


async def rotate(request: OperationRequest) -> WebhookCreated:
    made = await request.actions.rotate_webhook(request.path["id"])
    return WebhookCreated(str(made["id"]), str(made["secret"]))


async def again(request: OperationRequest) -> DeliveryRetried:
    await request.actions.send_again(request.path["id"])
    return DeliveryRetried(request.path["id"])


async def deliveries(request: OperationRequest) -> DeliveriesResponse:
    most, hooks = request.query.most, request.services.alerts
    return DeliveriesResponse(plain(await request.services.in_thread(lambda: hooks.deliveries(most))))


async def rules(request: OperationRequest) -> RulesResponse:
    return RulesResponse(plain(await request.services.in_thread(request.services.alerts.rules)))


OPERATIONS = (
    Operation("GET", "/webhooks", "listWebhooks", "List webhooks", webhooks, WebhooksResponse),
    Operation(
        "POST",
        "/webhooks",
        "addWebhook",
        "Send events to a URL; the secret is shown only once",
        add,
        WebhookCreated,
        body=WebhookBody,
        acts=True,
        status=201,
    ),
    Operation(
        "DELETE",
        "/webhooks/{id}",
        "removeWebhook",
        "Remove a webhook",
        remove,
        WebhookRemoved,
        acts=True,
    ),
    Operation(
        "POST",
        "/webhooks/{id}/test",
        "testWebhook",
        "Send a test event to a webhook",
        test,
        dict[str, Any],
        acts=True,
    ),
    Operation(
        "POST",
        "/webhooks/{id}/rotate",
        "rotateWebhook",
        "Give a webhook a new secret, shown only once; the old one signs beside it for a day",
        rotate,
        WebhookCreated,
        acts=True,
    ),
    Operation(
        "POST",
        "/deliveries/{id}/again",
        "sendAgain",
        "Send a failed delivery again",
        again,
        DeliveryRetried,
        acts=True,
    ),
    Operation(
        "GET",
        "/deliveries",
        "listDeliveries",
        "List deliveries and their outcome",
        deliveries,
        DeliveriesResponse,
        LimitQuery,
    ),
    Operation("GET", "/alerts/rules", "listAlertRules", "List alert rules", rules, RulesResponse),
)
