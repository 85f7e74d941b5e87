"""PagerDuty, through its Events API v2: an alert is triggered and later resolved under the same key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from breakloop.alerts.channels.base import (
    AllowPrivate,
    ChannelSettings,
    Delivery,
    DeliveryResult,
    Secret,
    Target,
    Url,
)
from breakloop.alerts.messages import AlertMessage, message_of

if TYPE_CHECKING:
    from breakloop.alerts.transport import DeliveryContext

URL: Final = "https://events.pagerduty.com"
PATH: Final = "/v2/enqueue"
_SUMMARY_MAX: Final = 1024


class PagerDutyAlerts(ChannelSettings):
    """A PagerDuty service: an alert is triggered, and resolved when its cause is over."""

    type: Literal["pagerduty"] = Field(description="`pagerduty`: Events API v2.")
    routing_key: Secret = Field(min_length=1, description="Integration key, as env:VARIABLE or file:/PATH.")
    url: Url = Field(default=URL, description="Base URL of the API; the EU region has its own.")
    allow_private: AllowPrivate = False

    def target(self, secrets: Mapping[str, str], context: DeliveryContext, dashboard_url: str) -> PagerDutyTarget:
        return PagerDutyTarget(context, secrets[self.routing_key], self.url, dashboard_url, self.allow_private)


@dataclass(frozen=True, slots=True)
class PagerDutyTarget(Target):
    """One PagerDuty service."""

    always_recovers: ClassVar[bool] = True

    context: DeliveryContext = field(repr=False)
    routing_key: str = field(repr=False)
    url: str = URL
    dashboard_url: str = ""
    allow_private: bool = False

    async def send(self, delivery: Delivery) -> DeliveryResult:
        body = json.dumps(pagerduty_event(message_of(delivery.body, self.dashboard_url), self.routing_key))
        url = self.url.rstrip("/") + PATH
        return await self.context.post(url, body.encode("ascii"), {}, allow_private=self.allow_private)


def pagerduty_event(message: AlertMessage, routing_key: str) -> dict[str, Any]:
    """Return the JSON of one event."""
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
