"""Alert rules and targets as settings say them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr

from breakloop.alerts.channels import secret_references
from breakloop.alerts.channels.base import Secret, Url, names_secret
from breakloop.alerts.channels.email import EmailAlerts
from breakloop.alerts.channels.services import AppriseAlerts, PagerDutyAlerts, SlackAlerts, WebhookAlerts
from breakloop.config.loader import (
    alert_secrets,
    blocks_of,
    effective_settings,
    load_settings,
    settings_from_text,
    settings_text,
)
from breakloop.config.settings import UNSAID, Jwt, Settings
from breakloop.errors import SettingsError
from breakloop.policy.schema.types import Model

CANARY = "canary-5e1f77"
GOOD = """\
alerts:
  - name: loops
    type: loop
    targets: [mail]
    recovery: true
  - name: everything
    type: [any, agent.released]
    targets: [hook]
    cooldown_seconds: 60
alert_targets:
  mail:
    type: email
    host: mail.example.com
    sender: breakloop <alerts@example.com>
    to: [ada@example.com]
  hook:
    type: webhook
    url: https://h.example/x
    secret: env:HOOK_SECRET
"""


def load(tmp_path: Path, text: str = GOOD, **env: str) -> Any:
    (tmp_path / "breakloop.yaml").write_text(text)
    return load_settings(env={"HOME": str(tmp_path), **env}, directory=tmp_path)


def said(tmp_path: Path, text: str) -> str:
    with pytest.raises(SettingsError) as raised:
        load(tmp_path, text)
    assert CANARY not in str(raised.value)
    return str(raised.value)


def test_from_the_file(tmp_path: Path) -> None:
    """A type may stand alone; the rest has defaults (G-4, T-1)."""
    found = load(tmp_path)
    loops, every = found.settings.alerts
    assert (loops.type, loops.cooldown_seconds, loops.recovery, loops.shadow, loops.agent) == (
        ["loop"],
        300,
        True,
        False,
        "*",
    )
    assert every.type == ["any", "agent.released"]
    mail = found.settings.alert_targets["mail"]
    assert isinstance(mail, EmailAlerts)
    assert (mail.security, mail.real_port) == ("starttls", 587)
    shown = {one.name: one.value for one in effective_settings(found.settings)}
    assert (shown["alerts"], shown["alert_targets"]) == ("loops, everything", "mail, hook")


def test_as_a_variable(tmp_path: Path) -> None:
    """As a variable: JSON (T-1)."""
    text = '[{"name": "x", "type": "loop", "targets": ["mail"]}]'
    assert load(tmp_path, BREAKLOOP_ALERTS=text).settings.alerts[0].name == "x"
    with pytest.raises(SettingsError, match="must be a list"):
        load(tmp_path, BREAKLOOP_ALERTS="loops,others")


def test_through_a_fleet(tmp_path: Path) -> None:
    """What the supervisor read, its processes have (S-5)."""
    settings = load(tmp_path).settings
    again = settings_from_text(settings_text(settings))
    assert again.alerts == settings.alerts
    assert again.alert_targets == settings.alert_targets


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("type: loop\n", "type: lopo\n", 'breakloop.yaml:3:5: alerts.type: is not a type of alert; did you mean "loop"?'),
        ("type: loop\n", "type: []\n", "alerts.type"),
        ("targets: [mail]", "targets: [nobody]", "alerts.targets: is not a target in alert_targets (known are hook, mail)"),
        ("targets: [mail]", "targets: []", "alerts.targets"),
        ("name: everything", "name: loops", 'alerts.name: "loops" is used twice'),
        ("recovery: true", "recovry: true", 'alerts.recovry: is not a setting; did you mean "recovery"?'),
        ("cooldown_seconds: 60", "cooldown_seconds: -1", "alerts.cooldown_seconds"),
        ("type: email", "type: fax", "alert_targets.mail: must be a map with a known type (type is one of email, slack"),
        ("type: email\n", "kind: email\n", "alert_targets.mail: must be a map with a known type"),
        ("host: mail.example.com", "hots: mail.example.com", 'alert_targets.mail.hots: is not a setting; did you mean "host"?'),
        ("to: [ada@example.com]", "to: []", "alert_targets.mail.to"),
        ("to: [ada@example.com]", 'to: ["ada@example.com\\nBcc: x@y"]', "alert_targets.mail.to: is not a mail address"),
        ("to: [ada@example.com]", "to: [nobody]", "alert_targets.mail.to: is not a mail address"),
        ("host: mail.example.com", "host: mail.example.com\n    security: none", "none is only allowed for a server on this machine"),
        ("host: mail.example.com", "host: mail.example.com\n    user: bot", "a login needs user and password"),
        ("secret: env:HOOK_SECRET", f"secret: {CANARY}", "alert_targets.hook.secret: is not env:VARIABLE or file:/PATH"),
        ("secret: env:HOOK_SECRET", 'secret: ""', "alert_targets.hook.secret"),
        ("url: https://h.example/x", f"url: https://u:{CANARY}@h.example/", "alert_targets.hook.url: contains a credential"),
        ("url: https://h.example/x", "url: ftp://h.example/", "alert_targets.hook.url: is not a URL"),
        ("url: https://h.example/x", "url: 'https://h:99999/'", "alert_targets.hook.url: is not a URL"),
    ],
)  # fmt: skip
def test_mistakes_are_said_where_they_are(tmp_path: Path, old: str, new: str, message: str) -> None:
    """With file and line, and never with what may be a secret (T-1, Y-1)."""
    assert old in GOOD
    assert message in said(tmp_path, GOOD.replace(old, new, 1))


def test_plain_mail_to_this_machine(tmp_path: Path) -> None:
    text = GOOD.replace("host: mail.example.com", "host: localhost\n    security: none")
    assert load(tmp_path, text).settings.alert_targets["mail"].real_port == 25


class NewTarget(Model):
    """A target as somebody may add one."""

    api_token: Secret = ""
    more: list[Secret] = Field(default=[])
    url: Url = "https://h"


def test_a_secret_of_a_new_target_is_found_by_its_type() -> None:
    """No list of names has to be kept (Y-1)."""
    targets = {"n": NewTarget(api_token="env:TOKEN", more=["env:A", "file:/b"]), "none": NewTarget()}
    assert dict(secret_references(targets)) == {
        "alert_targets.n.api_token": "env:TOKEN",
        "alert_targets.n.more[0]": "env:A",
        "alert_targets.n.more[1]": "file:/b",
    }


# Fields whose names look like a secret's, and why they are none.
NO_SECRETS = {
    "Jwt.jwks_url": "public keys",
    "PagerDutyAlerts.url": "the address of a public API; a credential in it is refused",
    "Settings.dashboard_url": "an address; a credential in it is refused",
    "WebhookAlerts.url": "an address; a credential in it is refused",
}


def blocks(model: type[Model]) -> Iterator[type[Model]]:
    """Return a model and every block below it."""
    yield model
    for field in model.model_fields.values():
        below = [field.annotation] if isinstance(field.annotation, type) else []
        for kind in [*below, *blocks_of(field)]:
            if issubclass(kind, Model):
                yield from blocks(kind)


def test_what_is_called_a_secret_is_marked_as_one() -> None:
    """Its value is masked, named by reference, or not repeated in messages; or it is said why it is no secret (Y-1)."""
    models = set(blocks(Settings))
    assert {EmailAlerts, SlackAlerts, PagerDutyAlerts, WebhookAlerts, AppriseAlerts, Jwt} <= models
    unmarked = {
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if re.search(r"(^|_)(token|secret|password|key|url|credential)s?$", name)
        and not (field.annotation is SecretStr or names_secret(field) or UNSAID in field.metadata)
    }
    assert unmarked == set(NO_SECRETS)


def test_secrets_come_from_elsewhere(tmp_path: Path) -> None:
    """From the environment and files; what is missing is said by name (Y-1)."""
    text = (
        GOOD + f"  chat:\n    type: slack\n    url: file:{tmp_path}/url\n  x:\n    type: apprise\n    urls: [env:A]\n"
    )
    settings = load(tmp_path, text).settings
    (tmp_path / "url").write_text(f"https://h/{CANARY}\n")
    names = [name for name, _ in secret_references(settings.alert_targets)]
    assert names == ["alert_targets.hook.secret", "alert_targets.chat.url", "alert_targets.x.urls[0]"]
    found = alert_secrets(settings, {"HOOK_SECRET": " s ", "A": "json://a b"})
    assert found == {"env:HOOK_SECRET": "s", f"file:{tmp_path}/url": f"https://h/{CANARY}", "env:A": "json://a b"}
    with pytest.raises(
        SettingsError, match=r"alert_targets\.hook\.secret: environment variable HOOK_SECRET is not set"
    ):
        alert_secrets(settings, {"A": CANARY})
    with pytest.raises(SettingsError, match="must contain one line of ASCII") as raised:
        alert_secrets(settings, {"HOOK_SECRET": f"{CANARY}\nX: y", "A": "b"})
    assert CANARY not in str(raised.value)
