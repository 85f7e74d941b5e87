"""Chat and pager services: Slack, PagerDuty, and any other through the library apprise.

Slack is an incoming webhook, whose URL is the secret; Mattermost and others accept the same messages. PagerDuty is its
Events API v2: an alert is triggered and later resolved under the same key. The URLs of apprise
(`pip install "breakloop[alerts]"`) contain the credentials of the services, so they are secrets and never part of a
message.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from breakloop.alerts.channels.base import AllowPrivate, ChannelSettings, Delivery, DeliveryResult, Secret, Target, Url
from breakloop.alerts.messages import CRITICAL, ERROR, INFO, WARNING, AlertMessage, message_of
from breakloop.errors import AlertError

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


PAGERDUTY_URL: Final = "https://events.pagerduty.com"
_PATH: Final = "/v2/enqueue"
_SUMMARY_MAX: Final = 1024


class PagerDutyAlerts(ChannelSettings):
    """A PagerDuty service: an alert is triggered, and resolved when its cause is over."""

    type: Literal["pagerduty"] = Field(description="`pagerduty`: Events API v2.")
    routing_key: Secret = Field(min_length=1, description="Integration key, as env:VARIABLE or file:/PATH.")
    url: Url = Field(default=PAGERDUTY_URL, description="Base URL of the API; the EU region has its own.")
    allow_private: AllowPrivate = False

    def target(self, secrets: Mapping[str, str], context: DeliveryContext, dashboard_url: str) -> PagerDutyTarget:
        return PagerDutyTarget(context, secrets[self.routing_key], self.url, dashboard_url, self.allow_private)


@dataclass(frozen=True, slots=True)
class PagerDutyTarget(Target):
    always_recovers: ClassVar[bool] = True

    context: DeliveryContext = field(repr=False)
    routing_key: str = field(repr=False)
    url: str = PAGERDUTY_URL
    dashboard_url: str = ""
    allow_private: bool = False

    async def send(self, delivery: Delivery) -> DeliveryResult:
        body = json.dumps(pagerduty_event(message_of(delivery.body, self.dashboard_url), self.routing_key))
        url = self.url.rstrip("/") + _PATH
        return await self.context.post(url, body.encode("ascii"), {}, allow_private=self.allow_private)


def pagerduty_event(message: AlertMessage, routing_key: str) -> dict[str, Any]:
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if message.recovered else "trigger",
        "dedup_key": f"breakloop-{message.key}",
    }
    if message.recovered:
        return event
    event["client"] = "breakloop"
    event["payload"] = {
        "summary": message.title[:_SUMMARY_MAX],
        "source": message.source,
        "severity": message.severity,
        "timestamp": message.at,
        "component": "breakloop",
        "group": message.rule,
        "custom_details": dict(message.facts) | {"What": message.text},
    }
    if message.link.startswith("https://"):
        event["links"] = [{"href": message.link, "text": "Open the dashboard"}]
    return event


_TIMEOUT_S: Final = 60.0
_TYPES: Final = {CRITICAL: "failure", ERROR: "failure", WARNING: "warning", INFO: "info"}


class AppriseAlerts(ChannelSettings):
    """Any service that the library apprise supports; needs the extra `alerts`."""

    type: Literal["apprise"] = Field(description="`apprise`: one or several services of apprise.")
    urls: Annotated[list[Secret], Field(min_length=1)] = Field(
        description="URLs of apprise, each as env:VARIABLE or file:/PATH."
    )

    def target(self, secrets: Mapping[str, str], context: DeliveryContext, dashboard_url: str) -> AppriseTarget:
        return apprise_target(context, [secrets[url] for url in self.urls], dashboard_url)


@dataclass(frozen=True, slots=True)
class AppriseTarget(Target):
    """One or several services, notified together."""

    context: DeliveryContext = field(repr=False)
    services: Any = field(repr=False)
    dashboard_url: str = ""

    async def send(self, delivery: Delivery) -> DeliveryResult:
        """Notify all services. The library only reports whether all of them accepted the message."""
        message = message_of(delivery.body, self.dashboard_url)
        kind = "success" if message.recovered else _TYPES[message.severity]
        text = message.plain().partition("\n\n")[2]
        try:
            done = await self.context.run_in_thread(
                lambda: self.services.notify(title=message.title, body=text, notify_type=kind, body_format="text"),
                timeout_s=_TIMEOUT_S,
            )
        except TimeoutError:
            return DeliveryResult(delivered=False, error=f"no response within {_TIMEOUT_S:g} s")
        return DeliveryResult(delivered=bool(done), error="" if done else "a service did not accept it")


def apprise_target(context: DeliveryContext, urls: Sequence[str], dashboard_url: str = "") -> AppriseTarget:
    """Return a target. Raises `AlertError`, without any URL, if apprise is missing or does not know a URL."""
    try:
        import apprise  # noqa: PLC0415 - an extra
    except ImportError:
        raise AlertError('this target needs the library apprise: pip install "breakloop[alerts]"') from None
    # apprise logs URLs and responses of services, and with them secrets.
    logger = logging.getLogger("apprise")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    services = apprise.Apprise()
    for number, url in enumerate(urls, 1):
        if not services.add(url):
            raise AlertError(f"apprise does not support URL {number}")
    if not urls:
        raise AlertError("there is no URL")
    return AppriseTarget(context, services, dashboard_url)
