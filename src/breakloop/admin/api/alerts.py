"""Operations on webhooks, deliveries and alert rules. The secret of a webhook is shown once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from breakloop.admin.api.operations import Most, OperationRequest, Operations, Rows

OPERATIONS = Operations()


class WebhookBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to send, and which events."""

    url: Annotated[str, msgspec.Meta(pattern="^https?://", max_length=2048, description="http:// or https://")]
    events: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=100)]],
        msgspec.Meta(max_length=100, description="Names of events, or `*`; empty: all of them."),
    ] = []
    allow_private: Annotated[bool, msgspec.Meta(description="Also allow loopback and private addresses.")] = False


class LimitQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many."""

    most: Most = 100


class WebhooksResponse(msgspec.Struct):
    """Webhooks, without their secrets."""

    webhooks: Rows


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

    deliveries: Rows


class RulesResponse(msgspec.Struct):
    """The alert rules."""

    rules: Rows


@OPERATIONS("GET", "/webhooks", "listWebhooks")
async def webhooks(request: OperationRequest) -> WebhooksResponse:
    """List webhooks."""
    return WebhooksResponse(await request.services.in_thread(request.services.alerts.webhooks))


@OPERATIONS("POST", "/webhooks", "addWebhook", body=WebhookBody, acts=True, status=201)
async def add(request: OperationRequest) -> WebhookCreated:
    """Send events to a URL; the secret is shown only once."""
    body = request.body
    made = await request.actions.add_webhook(body.url, body.events, allow_private=body.allow_private)
    return WebhookCreated(str(made["id"]), str(made["secret"]))


@OPERATIONS("DELETE", "/webhooks/{id}", "removeWebhook", acts=True)
async def remove(request: OperationRequest) -> WebhookRemoved:
    """Remove a webhook."""
    await request.actions.remove_webhook(request.path["id"])
    return WebhookRemoved(request.path["id"])


@OPERATIONS("POST", "/webhooks/{id}/test", "testWebhook", acts=True)
async def test(request: OperationRequest) -> Mapping[str, Any]:
    """Send a test event to a webhook."""
    return await request.actions.test_webhook(request.path["id"])


@OPERATIONS("POST", "/webhooks/{id}/rotate", "rotateWebhook", acts=True)
async def rotate(request: OperationRequest) -> WebhookCreated:
    """Give a webhook a new secret, shown only once; the old one signs beside it for a day."""
    made = await request.actions.rotate_webhook(request.path["id"])
    return WebhookCreated(str(made["id"]), str(made["secret"]))


@OPERATIONS("POST", "/deliveries/{id}/again", "sendAgain", acts=True)
async def again(request: OperationRequest) -> DeliveryRetried:
    """Send a failed delivery again."""
    await request.actions.send_again(request.path["id"])
    return DeliveryRetried(request.path["id"])


@OPERATIONS("GET", "/deliveries", "listDeliveries", query=LimitQuery)
async def deliveries(request: OperationRequest) -> DeliveriesResponse:
    """List deliveries and their outcome."""
    most, hooks = request.query.most, request.services.alerts
    return DeliveriesResponse(await request.services.in_thread(lambda: hooks.deliveries(most)))


@OPERATIONS("GET", "/alerts/rules", "listAlertRules")
async def rules(request: OperationRequest) -> RulesResponse:
    """List alert rules."""
    return RulesResponse(await request.services.in_thread(request.services.alerts.rules))
