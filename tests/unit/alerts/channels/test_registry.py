"""Rules and targets out of the settings."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.alerts.channels.email import EmailTarget
from breakloop.alerts.channels.services import PagerDutyTarget, SlackTarget, WebhookTarget, new_secret
from breakloop.alerts.service import AlertConfig, configure
from breakloop.config import loader
from breakloop.config.settings import Settings
from breakloop.errors import AlertError
from tests.alert_world import CANARY, means

TARGETS: dict[str, Any] = {
    "mail": {"type": "email", "host": "mail.example.com", "user": "bot", "password": "env:SMTP", "sender": "a@example.com", "to": ["b@example.com"]},
    "chat": {"type": "slack", "url": "env:SLACK"},
    "pager": {"type": "pagerduty", "routing_key": "env:PD"},
    "hook": {"type": "webhook", "url": "https://h.example/x", "secret": "env:HOOK", "allow_private": True},
}  # fmt: skip
RULES = [
    {
        "name": "loops",
        "type": "loop",
        "targets": ["mail", "chat", "mail"],
        "agent": "a*",
        "cooldown_seconds": 60,
        "recovery": True,
    }
]
ENV = {"SMTP": CANARY, "SLACK": f"https://hooks.example/{CANARY}", "PD": CANARY, "HOOK": new_secret()}


def made(targets: dict[str, Any], env: dict[str, str], rules: Any = ()) -> AlertConfig:
    said = Settings.model_validate({"alerts": list(rules), "alert_targets": targets})
    return configure(said.alerts, said.alert_targets, loader.alert_secrets(said, env), means(), "https://ops.example")


def test_every_kind_of_target() -> None:
    """With the secrets that the settings name (G-4)."""
    found = made(TARGETS, ENV, RULES)
    mail, chat, pager, hook = found.targets.values()
    assert isinstance(mail, EmailTarget)
    assert (mail.settings.real_port, mail.settings.security, mail.password) == (587, "starttls", CANARY)
    assert isinstance(chat, SlackTarget)
    assert chat.url == ENV["SLACK"]
    assert isinstance(pager, PagerDutyTarget)
    assert (pager.routing_key, pager.url) == (CANARY, "https://events.pagerduty.com")
    assert isinstance(hook, WebhookTarget)
    assert hook.allow_private
    assert len(hook.keys(0.0)) == 1
    assert [name for name, target in found.targets.items() if target.always_recovers] == ["pager"]
    assert [name for name, target in found.targets.items() if target.raw] == ["hook"]
    (rule,) = found.rules
    assert (rule.type, rule.targets, rule.agent, rule.cooldown_seconds, rule.recovery) == (
        ["loop"],
        ["mail", "chat", "mail"],
        "a*",
        60.0,
        True,
    )
    assert CANARY not in repr(found)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SLACK", f"gopher://{CANARY}"), ("SLACK", CANARY), ("HOOK", CANARY), ("HOOK", f"whsec_{CANARY}")],
)
def test_secrets_that_cannot_be_used(name: str, value: str) -> None:
    """The target is named, the secret is not (Y-1)."""
    with pytest.raises(AlertError, match=r"alert_targets\.(chat|hook): ") as raised:
        made(TARGETS, ENV | {name: value})
    assert CANARY not in str(raised.value)


def test_apprise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breakloop.alerts.channels.services.apprise_target", lambda _means, urls, link: (urls, link))
    found = made({"x": {"type": "apprise", "urls": ["env:A", "env:B"]}}, {"A": "json://a", "B": "json://b"})
    targets: dict[str, Any] = dict(found.targets)
    assert targets == {"x": (["json://a", "json://b"], "https://ops.example")}


def test_nothing_said() -> None:
    assert made({}, {}) == AlertConfig([], {})
