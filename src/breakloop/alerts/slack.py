"""Slack, by an incoming webhook; Mattermost and others that take the same form too. The URL is the secret."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from breakloop.alerts import words
from breakloop.alerts.means import Means
from breakloop.alerts.post import post
from breakloop.alerts.target import Outcome, Parcel
from breakloop.alerts.words import Message

_SIGNS: Final = {words.CRITICAL: "🔴", words.ERROR: "🟠", words.WARNING: "🟡", words.INFO: "🔵"}
_FIELDS_MAX: Final = 10  # of one section


@dataclass(frozen=True, slots=True)
class SlackTarget:
    """One channel."""

    means: Means = field(repr=False)
    url: str = field(repr=False)
    dashboard_url: str = ""
    allow_private: bool = False

    async def send(self, parcel: Parcel) -> Outcome:
        """Post a message."""
        body = json.dumps(blocks(words.message(parcel.body, self.dashboard_url))).encode("ascii")
        return await post(self.means, self.url, body, {}, allow_private=self.allow_private)


def blocks(message: Message) -> dict[str, Any]:
    """Return the message as Slack wants it: a line for notifications, and blocks."""
    sign = "✅" if message.recovered else _SIGNS[message.severity]
    title = f"{sign} {message.title}"
    parts: list[dict[str, Any]] = [{"type": "header", "text": {"type": "plain_text", "text": title[:150]}}]
    if message.text:
        parts.append({"type": "section", "text": _marked(message.text)})
    facts = [_marked(f"*{name}*\n{_safe(value)}", safe=True) for name, value in message.facts[:_FIELDS_MAX]]
    if facts:
        parts.append({"type": "section", "fields": facts})
    if message.link.startswith(("http://", "https://")):
        button = {"type": "button", "text": {"type": "plain_text", "text": "Open the dashboard"}, "url": message.link}
        parts.append({"type": "actions", "elements": [button]})
    return {"text": _safe(title), "blocks": parts}


def _marked(text: str, *, safe: bool = False) -> dict[str, str]:
    return {"type": "mrkdwn", "text": text if safe else _safe(text)}


def _safe(text: str) -> str:
    """Names from requests must neither make links nor call people."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("*", "\u2217").replace("`", "'").replace("@", "@\u200b")
