"""Makes rules and targets out of what the settings say. Secrets are handed in, already read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from breakloop import settings_alerts as said
from breakloop.alerts import signing
from breakloop.alerts.email import EmailTarget, Mailer
from breakloop.alerts.means import Means
from breakloop.alerts.others import apprise_target
from breakloop.alerts.pagerduty import PagerDutyTarget
from breakloop.alerts.rules import Rule
from breakloop.alerts.slack import SlackTarget
from breakloop.alerts.ssrf import place
from breakloop.alerts.target import Target
from breakloop.alerts.webhook import WebhookTarget
from breakloop.errors import AlertError


@dataclass(frozen=True, slots=True)
class Configured:
    """What the settings say about alerts."""

    rules: Sequence[Rule] = ()
    targets: Mapping[str, Target] = field(default_factory=dict)  # by name

    @property
    def folding(self) -> frozenset[str]:
        """The targets that have to know when something is over, whatever their rules say."""
        return frozenset(name for name, target in self.targets.items() if isinstance(target, PagerDutyTarget))

    @property
    def raw(self) -> frozenset[str]:
        """The targets that get an event's payload, and no message for people."""
        return frozenset(name for name, target in self.targets.items() if isinstance(target, WebhookTarget))


def configured(
    rules: Sequence[said.AlertRule],
    targets: said.AlertTargets,
    secrets: Mapping[str, str],
    means: Means,
    dashboard_url: str = "",
) -> Configured:
    """Return rules and targets; raises `AlertError` with the name of the target that cannot be used."""
    made = {}
    for name, block in targets.items():
        try:
            made[name] = _target(block, secrets, means, dashboard_url)
        except AlertError as error:
            raise AlertError(f"alert_targets.{name}: {error}") from None
    return Configured([_rule(one) for one in rules], made)


def _rule(block: said.AlertRule) -> Rule:
    return Rule(
        block.name,
        tuple(block.type),
        tuple(dict.fromkeys(block.targets)),
        agent=block.agent,
        project=block.project,
        min_action=block.min_action,
        cooldown_s=block.cooldown_seconds,
        repeat_s=block.repeat_seconds,
        recovery=block.recovery,
        shadow=block.shadow,
    )


def _target(block: said.AlertTarget, secrets: Mapping[str, str], means: Means, dashboard_url: str) -> Target:
    if isinstance(block, said.EmailAlerts):
        password = secrets[block.password] if block.password else ""
        to = tuple(block.to)
        mailer = Mailer(block.host, block.real_port, block.security, block.sender, to, block.user, password)
        return EmailTarget(means, mailer, dashboard_url)
    if isinstance(block, said.AppriseAlerts):
        return apprise_target(means, [secrets[url] for url in block.urls], dashboard_url)
    if isinstance(block, said.SlackAlerts):
        place(secrets[block.url])  # raises for what is no URL
        return SlackTarget(means, secrets[block.url], dashboard_url, block.allow_private)
    if isinstance(block, said.PagerDutyAlerts):
        return PagerDutyTarget(means, secrets[block.routing_key], block.url, dashboard_url, block.allow_private)
    key = signing.key_of(secrets[block.secret])
    return WebhookTarget(means, block.url, lambda _now: [key], block.allow_private)
