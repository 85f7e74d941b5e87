"""Slack, through an incoming webhook. Mattermost and others accept the same messages. The URL is the secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from breakloop.alerts.channels.base import AllowPrivate, ChannelSettings, Delivery, DeliveryResult, Secret, Target
from breakloop.alerts.messages import CRITICAL, ERROR, INFO, WARNING, AlertMessage, message_of

if TYPE_CHECKING:
    from breakloop.alerts.transport import DeliveryContext

_ICONS: Final = {CRITICAL: "🔴", ERROR: "🟠", WARNING: "🟡", INFO: "🔵"}
_FIELDS_MAX: Final = 10  # Slack's limit for one section


class SlackAlerts(ChannelSettings):
    """A channel of Slack, or of a service that accepts the same messages (Mattermost)."""

    type: Literal["slack"] = Field(description="`slack`: an incoming webhook.")
    url: Secret = Field(min_length=1, description="URL of the incoming webhook, as env:VARIABLE or file:/PATH.")
    allow_private: AllowPrivate = False

    def target(self, secrets: Mapping[str, str], context: DeliveryContext, dashboard_url: str) -> SlackTarget:
        url = secrets[self.url]
        context.check_url(url)
        return SlackTarget(context, url, dashboard_url, self.allow_private)


@dataclass(frozen=True, slots=True)
class SlackTarget(Target):
    """One Slack channel."""

    context: DeliveryContext = field(repr=False)
    url: str = field(repr=False)
    dashboard_url: str = ""
    allow_private: bool = False

    async def send(self, delivery: Delivery) -> DeliveryResult:
        body = json.dumps(slack_message(message_of(delivery.body, self.dashboard_url))).encode("ascii")
        return await self.context.post(self.url, body, {}, allow_private=self.allow_private)


def slack_message(message: AlertMessage) -> dict[str, Any]:
    """Return the JSON that Slack expects: a line for notifications, and blocks."""
    icon = "✅" if message.recovered else _ICONS[message.severity]
    title = f"{icon} {message.title}"
    blocks: list[dict[str, Any]] = [{"type": "header", "text": {"type": "plain_text", "text": title[:150]}}]
    if message.text:
        blocks.append({"type": "section", "text": _markdown(_escape(message.text))})
    facts = [_markdown(f"*{name}*\n{_escape(value)}") for name, value in message.facts[:_FIELDS_MAX]]
    if facts:
        blocks.append({"type": "section", "fields": facts})
    if message.link.startswith(("http://", "https://")):
        button = {"type": "button", "text": {"type": "plain_text", "text": "Open the dashboard"}, "url": message.link}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": _escape(title), "blocks": blocks}


def _markdown(text: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": text}


def _escape(text: str) -> str:
    """Names come from requests: they must not create links or mention people."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("*", "\u2217").replace("`", "'").replace("@", "@\u200b")
