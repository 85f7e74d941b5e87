"""Webhooks, chat and pager services: Slack, PagerDuty, and any other through the library apprise.

A webhook is a POST of an event's payload, signed as the Standard Webhooks specification describes: HMAC-SHA256 over id,
timestamp and body. With several secrets there are several signatures, so a receiver can switch to a new secret at any
time.

Slack is an incoming webhook, whose URL is the secret; Mattermost and others accept the same messages. PagerDuty is its
Events API v2: an alert is triggered and later resolved under the same key. The URLs of apprise
(`pip install "breakloop[alerts]"`) contain the credentials of the services, so they are secrets and never part of a
message.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
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
    buttons = [_button(words, link) for words, link in (*message.answers, ("Open the dashboard", message.link))]
    buttons = [button for button in buttons if button["url"].startswith(("http://", "https://"))]
    if buttons:
        blocks.append({"type": "actions", "elements": buttons})
    return {"text": _escape(title), "blocks": blocks}


def _button(words: str, link: str) -> dict[str, Any]:
    return {"type": "button", "text": {"type": "plain_text", "text": words}, "url": link}


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
        shown = (*message.answers, ("Open the dashboard", message.link))
        event["links"] = [{"href": link, "text": words} for words, link in shown]
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


PREFIX: Final = "whsec_"
_KEY_BYTES: Final = 32
_KEY_MIN, _KEY_MAX = 24, 64  # the limits of the specification


class WebhookAlerts(ChannelSettings):
    """A webhook for the events of alert rules. (Webhooks for all events are added in the dashboard or the API.)"""

    type: Literal["webhook"] = Field(description="`webhook`: a signed POST of JSON.")
    url: Url = Field(description="URL to send to.")
    secret: Secret = Field(min_length=1, description="Signing secret (whsec_...), as env:VARIABLE or file:/PATH.")
    allow_private: AllowPrivate = False

    def target(self, secrets: Mapping[str, str], context: DeliveryContext, _dashboard_url: str) -> WebhookTarget:
        key = decode_secret(secrets[self.secret])
        return WebhookTarget(context, self.url, lambda _now: [key], self.allow_private)


@dataclass(frozen=True, slots=True)
class WebhookTarget(Target):
    """`keys` returns the signing keys at a time, the newest first."""

    raw: ClassVar[bool] = True

    context: DeliveryContext = field(repr=False)
    url: str = field(repr=False)
    keys: Callable[[float], Sequence[bytes]] = field(repr=False)
    allow_private: bool = False

    async def send(self, delivery: Delivery) -> DeliveryResult:
        """Sign and send; the timestamp of the signature is that of this attempt."""
        body, now = delivery.body.encode("ascii"), self.context.clock.now()
        headers = signature_headers(delivery.id, now, body, self.keys(now))
        return await self.context.post(self.url, body, headers, allow_private=self.allow_private)


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def decode_secret(secret: str) -> bytes:
    """Return the key that a secret encodes. The message of an `AlertError` does not repeat it."""
    text = secret.removeprefix(PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise AlertError(f"a webhook secret is {PREFIX} followed by base64") from None
    if not secret.startswith(PREFIX) or not _KEY_MIN <= len(key) <= _KEY_MAX:
        raise AlertError(f"a webhook secret is {PREFIX} followed by {_KEY_MIN} to {_KEY_MAX} bytes in base64")
    return key


def signature_headers(message_id: str, now: float, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the three header fields of the specification, with one signature per key."""
    timestamp = str(int(now))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
