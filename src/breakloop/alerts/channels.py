"""A webhook: a signed POST of an event's payload (SPEC G-4, Y-4). For those that were registered at run time, and for
those of the settings.

Signatures of webhooks, as the Standard Webhooks specification has them: HMAC-SHA256 over id, time and body. Several
secrets give several signatures, so that a receiver can change its secret whenever it likes.

Mail, by SMTP in a thread (SPEC G-4): STARTTLS, TLS from the start, or plain to this machine only. One mail has a
part in text and one in HTML; nothing that comes from a request can add a header line.

Slack, by an incoming webhook; Mattermost and others that take the same form too. The URL is the secret.

PagerDuty, by its Events API v2: an alert is triggered under the key of its subject, and resolved under the same.

Every other service, by the library apprise (`pip install breakloop[alerts]`): its URLs name services and hold their
secrets, so they come from the environment or a file, and are in no message.

Makes rules and targets out of what the settings say. Secrets are handed in, already read.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
import smtplib
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email import policy
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

from breakloop.alerts import messages
from breakloop.alerts.base import Delivery, DeliveryContext, DeliveryResult, Target, place, post
from breakloop.alerts.messages import AlertMessage
from breakloop.alerts.rules import AlertRuleConfig
from breakloop.config import settings as said
from breakloop.errors import AlertError

PREFIX: Final = "whsec_"
_KEY_BYTES: Final = 32
_KEY_LEAST, _KEY_MOST = 24, 64  # as the specification says


def new_secret() -> str:
    """Make a secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def key_of(secret: str) -> bytes:
    """Return the key that a secret stands for; raises `AlertError`, which does not repeat it."""
    text = secret.removeprefix(PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise AlertError(f"the secret of a webhook is {PREFIX} and base64") from None
    if not secret.startswith(PREFIX) or not _KEY_LEAST <= len(key) <= _KEY_MOST:
        raise AlertError(f"the secret of a webhook is {PREFIX} and {_KEY_LEAST} to {_KEY_MOST} bytes in base64")
    return key


def headers(message_id: str, now: float, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the three fields that go with a body; one signature for each key, the newest first."""
    timestamp = str(int(now))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """`keys` returns what signs at a time; without any it is not signed."""

    means: DeliveryContext = field(repr=False)
    url: str = field(repr=False)
    keys: Callable[[float], Sequence[bytes]] = field(repr=False)
    allow_private: bool = False

    async def send(self, parcel: Delivery) -> DeliveryResult:
        """Sign and send it; the time of the signature is that of the try."""
        body, now = parcel.body.encode("ascii"), self.means.clock.now()
        fields = headers(parcel.id, now, body, self.keys(now))
        return await post(self.means, self.url, body, fields, allow_private=self.allow_private)


_TIMEOUT_S: Final = 60.0
_POLICY: Final = policy.SMTP.clone(max_line_length=78)


@dataclass(frozen=True, slots=True)
class Mailer:
    """A mail server, and who writes to whom. `security` is `starttls`, `tls` or `none`."""

    host: str
    port: int
    security: str
    sender: str
    to: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class EmailTarget:
    """One list of readers."""

    means: DeliveryContext = field(repr=False)
    mailer: Mailer
    dashboard_url: str = ""

    async def send(self, parcel: Delivery) -> DeliveryResult:
        """Send one mail to all of them."""
        mail = made(messages.message(parcel.body, self.dashboard_url), parcel.id, self.mailer)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self.means.aside(lambda: self._handed_over(mail))
        except TimeoutError:
            return DeliveryResult(delivered=False, error=f"the mail server took longer than {_TIMEOUT_S:g} s")

    def _handed_over(self, mail: EmailMessage) -> DeliveryResult:
        try:
            with self._connected() as server:
                refused = server.send_message(mail)
        except smtplib.SMTPAuthenticationError as error:
            return DeliveryResult(delivered=False, status=error.smtp_code, error="the mail server refused the login")
        except smtplib.SMTPResponseException as error:
            said = f"the mail server answered {error.smtp_code}"
            return DeliveryResult(delivered=False, status=error.smtp_code, error=said)
        except smtplib.SMTPRecipientsRefused:
            return DeliveryResult(delivered=False, error="the mail server refused all recipients")
        except smtplib.SMTPNotSupportedError:
            return DeliveryResult(delivered=False, error="the mail server has no STARTTLS, or no login")
        except ssl.SSLError:
            return DeliveryResult(
                delivered=False, error="the mail server's certificate is not trusted, or it speaks no TLS"
            )
        except (smtplib.SMTPException, OSError) as error:
            return DeliveryResult(delivered=False, error=f"the mail server cannot be reached: {type(error).__name__}")
        return DeliveryResult(
            delivered=True, status=250, error=f"{len(refused)} recipients were refused" if refused else ""
        )

    def _connected(self) -> smtplib.SMTP:
        mailer, timeout_s = self.mailer, self.means.timeout_s
        server: smtplib.SMTP
        if mailer.security == "tls":
            server = smtplib.SMTP_SSL(mailer.host, mailer.port, timeout=timeout_s, context=self.means.tls)
        else:
            server = smtplib.SMTP(mailer.host, mailer.port, timeout=timeout_s)
        try:
            if mailer.security == "starttls":
                server.starttls(context=self.means.tls)
            if mailer.user:
                server.login(mailer.user, mailer.password)
        except BaseException:
            server.close()
            raise
        return server


def made(message: AlertMessage, name: str, mailer: Mailer) -> EmailMessage:
    """Return the mail."""
    from_address = address(mailer.sender)
    domain = from_address.domain
    mail = EmailMessage(policy=_POLICY)
    mail["Subject"] = messages.clean(("Recovered: " if message.recovered else "") + message.title, 180)
    mail["From"] = Address(from_address.display_name or "breakloop", from_address.username, domain)
    mail["To"] = [address(one) for one in mailer.to]
    mail["Date"] = format_datetime(datetime.fromisoformat(message.at))
    mail["Message-ID"] = f"<{name}@{domain}>"
    mail["References"] = f"<{message.key}@{domain}>"  # so that mail programs show one subject as one thread
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"
    mail.set_content(message.plain())
    mail.add_alternative(messages.html(message), subtype="html")
    return mail


def address(text: str) -> Address:
    """Read `name@host`, or `Words <name@host>`. Raises `ValueError`, for what could be more than one address too."""
    name, bracket, rest = text.rpartition("<")
    plain = rest.removesuffix(">") if bracket else text
    try:
        found = Address(display_name=name.strip().strip('"'), addr_spec=plain.strip())
    except (MessageError, ValueError, IndexError):
        raise ValueError("this is no address") from None
    if not text.isprintable() or "," in text or not found.username or not found.domain:
        raise ValueError("this is no address")
    return found


_SIGNS: Final = {messages.CRITICAL: "🔴", messages.ERROR: "🟠", messages.WARNING: "🟡", messages.INFO: "🔵"}
_FIELDS_MAX: Final = 10  # of one section


@dataclass(frozen=True, slots=True)
class SlackTarget:
    """One channel."""

    means: DeliveryContext = field(repr=False)
    url: str = field(repr=False)
    dashboard_url: str = ""
    allow_private: bool = False

    async def send(self, parcel: Delivery) -> DeliveryResult:
        """Post a message."""
        body = json.dumps(blocks(messages.message(parcel.body, self.dashboard_url))).encode("ascii")
        return await post(self.means, self.url, body, {}, allow_private=self.allow_private)


def blocks(message: AlertMessage) -> dict[str, Any]:
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


URL: Final = "https://events.pagerduty.com"
PATH: Final = "/v2/enqueue"
_SUMMARY_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class PagerDutyTarget:
    """One service."""

    means: DeliveryContext = field(repr=False)
    routing_key: str = field(repr=False)
    url: str = URL
    dashboard_url: str = ""
    allow_private: bool = False

    async def send(self, parcel: Delivery) -> DeliveryResult:
        """Trigger or resolve."""
        made = event(messages.message(parcel.body, self.dashboard_url), self.routing_key)
        body = json.dumps(made).encode("ascii")
        return await post(self.means, self.url.rstrip("/") + PATH, body, {}, allow_private=self.allow_private)


def event(message: AlertMessage, routing_key: str) -> dict[str, Any]:
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


_TYPES: Final = {
    messages.CRITICAL: "failure",
    messages.ERROR: "failure",
    messages.WARNING: "warning",
    messages.INFO: "info",
}


@dataclass(frozen=True, slots=True)
class AppriseTarget:
    """One or several services."""

    means: DeliveryContext = field(repr=False)
    services: Any = field(repr=False)
    dashboard_url: str = ""

    async def send(self, parcel: Delivery) -> DeliveryResult:
        """Notify all of them. The library tells only whether all took it."""
        message = messages.message(parcel.body, self.dashboard_url)
        kind = "success" if message.recovered else _TYPES[message.severity]
        text = message.plain().partition("\n\n")[2]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                done = await self.means.aside(
                    lambda: self.services.notify(title=message.title, body=text, notify_type=kind, body_format="text")
                )
        except TimeoutError:
            return DeliveryResult(delivered=False, error=f"no answer within {_TIMEOUT_S:g} s")
        return DeliveryResult(delivered=bool(done), error="" if done else "a service did not take it")


def apprise_target(means: DeliveryContext, urls: Sequence[str], dashboard_url: str = "") -> AppriseTarget:
    """Make one; raises `AlertError` where the library is missing or does not know a URL, which is not repeated."""
    try:
        import apprise  # noqa: PLC0415 - an extra: only those who name such a target need it
    except ImportError:
        raise AlertError("this target needs the library apprise: pip install 'breakloop[alerts]'") from None
    # It logs URLs and answers of services, and with them secrets.
    logger = logging.getLogger("apprise")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    services = apprise.Apprise()
    for number, url in enumerate(urls, 1):
        if not services.add(url):
            raise AlertError(f"apprise does not know URL {number}")
    if not urls:
        raise AlertError("there is no URL")
    return AppriseTarget(means, services, dashboard_url)


@dataclass(frozen=True, slots=True)
class AlertConfig:
    """What the settings say about alerts."""

    rules: Sequence[AlertRuleConfig] = ()
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
    means: DeliveryContext,
    dashboard_url: str = "",
) -> AlertConfig:
    """Return rules and targets; raises `AlertError` with the name of the target that cannot be used."""
    made = {}
    for name, block in targets.items():
        try:
            made[name] = _target(block, secrets, means, dashboard_url)
        except AlertError as error:
            raise AlertError(f"alert_targets.{name}: {error}") from None
    return AlertConfig([_rule(one) for one in rules], made)


def _rule(block: said.AlertRule) -> AlertRuleConfig:
    return AlertRuleConfig(
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


def _target(block: said.AlertTarget, secrets: Mapping[str, str], means: DeliveryContext, dashboard_url: str) -> Target:
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
    key = key_of(secrets[block.secret])
    return WebhookTarget(means, block.url, lambda _now: [key], block.allow_private)
