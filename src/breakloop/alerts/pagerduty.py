"""PagerDuty, by its Events API v2: an alert is triggered under the key of its subject, and resolved under the same."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from breakloop.alerts import words
from breakloop.alerts.means import Means
from breakloop.alerts.post import post
from breakloop.alerts.target import Outcome, Parcel
from breakloop.alerts.words import Message

URL: Final = "https://events.pagerduty.com"
PATH: Final = "/v2/enqueue"
_SUMMARY_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class PagerDutyTarget:
    """One service."""

    means: Means = field(repr=False)
    routing_key: str = field(repr=False)
    url: str = URL
    dashboard_url: str = ""
    allow_private: bool = False

    async def send(self, parcel: Parcel) -> Outcome:
        """Trigger or resolve."""
        made = event(words.message(parcel.body, self.dashboard_url), self.routing_key)
        body = json.dumps(made).encode("ascii")
        return await post(self.means, self.url.rstrip("/") + PATH, body, {}, allow_private=self.allow_private)


def event(message: Message, routing_key: str) -> dict[str, Any]:
    """Return the message as PagerDuty wants it."""
    made: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": "resolve" if message.recovered else "trigger",
        "dedup_key": f"breakloop-{message.key}",
    }
    if message.recovered:
        return made
    made["client"] = "breakloop"
    made["payload"] = {
        "summary": message.title[:_SUMMARY_MAX],
        "source": message.source,
        "severity": message.severity,
        "timestamp": message.at,
        "component": "breakloop",
        "group": message.rule,
        "custom_details": dict(message.facts) | {"What": message.text},
    }
    if message.link.startswith("https://"):
        made["links"] = [{"href": message.link, "text": "Open the dashboard"}]
    return made
