"""Operations on webhooks and alerts (SPEC G-4, T-2). A webhook's secret is shown once, when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from breakloop.admin.api.operations import Asked, Most, Operation
from breakloop.admin.api.responses import plain


class AddWebhook(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to, and which events."""

    url: Annotated[str, msgspec.Meta(pattern="^https?://", max_length=2048, description="http:// or https://")]
    events: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=100)]],
        msgspec.Meta(max_length=100, description="Names of events, or `*`; empty: all of them."),
    ] = []
    allow_private: Annotated[bool, msgspec.Meta(description="Also an address of this machine or network.")] = False


class HowMany(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many."""

    most: Most = 100


class Webhooks(msgspec.Struct):
    """Webhooks, without their secrets."""

    webhooks: list[dict[str, Any]]


class WebhookAdded(msgspec.Struct):
    """A webhook; its secret is shown this once."""

    id: str
    secret: str


class Removed(msgspec.Struct):
    """What is gone."""

    id: str


class SentAgain(msgspec.Struct):
    """What is under way again."""

    id: str


class Deliveries(msgspec.Struct):
    """What is under way, was delivered, or was given up."""

    deliveries: list[dict[str, Any]]


class Rules(msgspec.Struct):
    """The alert rules."""

    rules: list[dict[str, Any]]


async def webhooks(asked: Asked) -> Webhooks:
    """All of them, without secrets."""
    return Webhooks(plain(await asked.services.aside(asked.services.hooks.webhooks)))


async def add(asked: Asked) -> WebhookAdded:
    """Make one."""
    body = asked.body
    made = await asked.actions.add_webhook(body.url, body.events, allow_private=body.allow_private)
    return WebhookAdded(str(made["id"]), str(made["secret"]))


async def remove(asked: Asked) -> Removed:
    """Remove one."""
    await asked.actions.remove_webhook(asked.path["id"])
    return Removed(asked.path["id"])


async def test(asked: Asked) -> Mapping[str, Any]:
    """Send to one now."""
    return await asked.actions.test_webhook(asked.path["id"])


async def rotate(asked: Asked) -> WebhookAdded:
    """Give one a new secret."""
    made = await asked.actions.rotate_webhook(asked.path["id"])
    return WebhookAdded(str(made["id"]), str(made["secret"]))


async def again(asked: Asked) -> SentAgain:
    """Try a delivery again."""
    await asked.actions.send_again(asked.path["id"])
    return SentAgain(asked.path["id"])


async def deliveries(asked: Asked) -> Deliveries:
    """What became of what was sent."""
    most, hooks = asked.query.most, asked.services.hooks
    return Deliveries(plain(await asked.services.aside(lambda: hooks.deliveries(most))))


async def rules(asked: Asked) -> Rules:
    """The alert rules of the settings."""
    return Rules(plain(await asked.services.aside(asked.services.hooks.rules)))


OPERATIONS = (
    Operation("GET", "/webhooks", "listWebhooks", "List webhooks", webhooks, Webhooks),
    Operation(
        "POST",
        "/webhooks",
        "addWebhook",
        "Send events to a URL; the secret is shown this once",
        add,
        WebhookAdded,
        body=AddWebhook,
        acts=True,
        status=201,
    ),
    Operation(
        "DELETE",
        "/webhooks/{id}",
        "removeWebhook",
        "Remove a webhook",
        remove,
        Removed,
        acts=True,
    ),
    Operation(
        "POST",
        "/webhooks/{id}/test",
        "testWebhook",
        "Send one event to a webhook now",
        test,
        dict[str, Any],
        acts=True,
    ),
    Operation(
        "POST",
        "/webhooks/{id}/rotate",
        "rotateWebhook",
        "Give a webhook a new secret, shown this once; the old one signs beside it for a day",
        rotate,
        WebhookAdded,
        acts=True,
    ),
    Operation(
        "POST",
        "/deliveries/{id}/again",
        "sendAgain",
        "Try a delivery again that was given up",
        again,
        SentAgain,
        acts=True,
    ),
    Operation(
        "GET",
        "/deliveries",
        "listDeliveries",
        "List what was sent and what became of it",
        deliveries,
        Deliveries,
        HowMany,
    ),
    Operation("GET", "/alerts/rules", "listAlertRules", "List alert rules", rules, Rules),
)
