"""Email over SMTP, with STARTTLS, with TLS, or in plain text to this machine only.

A mail has a text part and an HTML part (`email.html`). The HTML uses tables and inline styles, which mail programs
understand, for light and dark mode. Everything that comes from a request is escaped and cannot add a header line.
"""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email import policy
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from breakloop.alerts.channels.base import ChannelSettings, Delivery, DeliveryResult, Secret, Target
from breakloop.alerts.messages import CRITICAL, ERROR, INFO, WARNING, AlertMessage, message_of, one_line
from breakloop.policy.schema.types import SchemaFault, Text, fault, refuse

if TYPE_CHECKING:
    from breakloop.alerts.transport import DeliveryContext

_LOCAL_HOSTS: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}
_TIMEOUT_S: Final = 60.0
_POLICY: Final = policy.SMTP.clone(max_line_length=78)


def parse_address(text: str) -> Address:
    """Read `name@host` or `Words <name@host>`. Raises `ValueError`, also for text that could hold two addresses."""
    name, bracket, rest = text.rpartition("<")
    plain = rest.removesuffix(">") if bracket else text
    try:
        found = Address(display_name=name.strip().strip('"'), addr_spec=plain.strip())
    except (MessageError, ValueError, IndexError):
        raise ValueError("not a mail address") from None
    if not text.isprintable() or "," in text or not found.username or not found.domain:
        raise ValueError("not a mail address")
    return found


def _check_address(value: str) -> str:
    try:
        parse_address(value)
    except ValueError:
        raise fault("is not a mail address", "write name@example.com, or Words <name@example.com>") from None
    return value


MailAddress = Annotated[str, AfterValidator(_check_address)]


class EmailAlerts(ChannelSettings):
    """A mail to one or several people."""

    type: Literal["email"] = Field(description="`email`: a mail with a text and an HTML part.")
    host: Text = Field(description="The mail server.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="Its port; 0 is automatic: 587 for starttls, 465 for tls, 25 for none."
    )
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="How to connect; `none` only if the server is on this machine."
    )
    user: str = Field(default="", description="User name, if the server requires a login.")
    password: Secret = Field(default="", description="Password, as env:VARIABLE or file:/PATH.")
    sender: MailAddress = Field(description="Address in the From field.")
    to: Annotated[list[MailAddress], Field(min_length=1, max_length=100)] = Field(description="Recipients.")

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        faults = []
        if self.security == "none" and self.host not in _LOCAL_HOSTS:
            faults.append(
                SchemaFault(("security",), "none is only allowed for a server on this machine", "use starttls or tls")
            )
        if bool(self.user) != bool(self.password):
            faults.append(SchemaFault(("user",), "a login needs user and password", "set both, or neither"))
        refuse(faults)
        return self

    @property
    def real_port(self) -> int:
        """The port, with the automatic one resolved."""
        return self.port or _PORTS[self.security]

    def target(self, secrets: Mapping[str, str], context: DeliveryContext, dashboard_url: str) -> EmailTarget:
        password = secrets[self.password] if self.password else ""
        return EmailTarget(context, self, password, dashboard_url)


@dataclass(frozen=True, slots=True)
class EmailTarget(Target):
    context: DeliveryContext = field(repr=False)
    settings: EmailAlerts
    password: str = field(default="", repr=False)
    dashboard_url: str = ""

    async def send(self, delivery: Delivery) -> DeliveryResult:
        """Send one mail to all recipients, in a thread."""
        mail = compose(message_of(delivery.body, self.dashboard_url), delivery.id, self.settings)
        try:
            return await self.context.run_in_thread(lambda: self._submit(mail), timeout_s=_TIMEOUT_S)
        except TimeoutError:
            return DeliveryResult(delivered=False, error=f"no response from the mail server within {_TIMEOUT_S:g} s")

    def _submit(self, mail: EmailMessage) -> DeliveryResult:
        try:
            with self._connect() as server:
                refused = server.send_message(mail)
        except smtplib.SMTPAuthenticationError as error:
            return DeliveryResult(delivered=False, status=error.smtp_code, error="the mail server refused the login")
        except smtplib.SMTPResponseException as error:
            text = f"the mail server answered {error.smtp_code}"
            return DeliveryResult(delivered=False, status=error.smtp_code, error=text)
        except smtplib.SMTPRecipientsRefused:
            return DeliveryResult(delivered=False, error="the mail server refused all recipients")
        except smtplib.SMTPNotSupportedError:
            return DeliveryResult(delivered=False, error="the mail server does not support STARTTLS or login")
        except ssl.SSLError:
            text = "the mail server's certificate is not trusted, or it does not support TLS"
            return DeliveryResult(delivered=False, error=text)
        except (smtplib.SMTPException, OSError) as error:
            return DeliveryResult(delivered=False, error=f"the mail server cannot be reached: {type(error).__name__}")
        return DeliveryResult(
            delivered=True, status=250, error=f"{len(refused)} recipients were refused" if refused else ""
        )

    def _connect(self) -> smtplib.SMTP:
        settings, timeout_s = self.settings, self.context.timeout_s
        host, port = settings.host, settings.real_port
        server: smtplib.SMTP
        if settings.security == "tls":
            server = smtplib.SMTP_SSL(host, port, timeout=timeout_s, context=self.context.tls)
        else:
            server = smtplib.SMTP(host, port, timeout=timeout_s)
        try:
            if settings.security == "starttls":
                server.starttls(context=self.context.tls)
            if settings.user:
                server.login(settings.user, self.password)
        except BaseException:
            server.close()
            raise
        return server


def compose(message: AlertMessage, message_id: str, settings: EmailAlerts) -> EmailMessage:
    sender = parse_address(settings.sender)
    domain = sender.domain
    mail = EmailMessage(policy=_POLICY)
    mail["Subject"] = one_line(("Recovered: " if message.recovered else "") + message.title, 180)
    mail["From"] = Address(sender.display_name or "breakloop", sender.username, domain)
    mail["To"] = [parse_address(recipient) for recipient in settings.to]
    mail["Date"] = format_datetime(datetime.fromisoformat(message.at))
    mail["Message-ID"] = f"<{message_id}@{domain}>"
    mail["References"] = f"<{message.key}@{domain}>"  # mail programs then show one subject as one thread
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"
    mail.set_content(message.plain())
    mail.add_alternative(html(message), subtype="html")
    return mail


_LOOKS: Final = {
    CRITICAL: ("#b42318", "Critical"),
    ERROR: ("#b54708", "Error"),
    WARNING: ("#a15c07", "Warning"),
    INFO: ("#175cd3", "Notice"),
}


def html(message: AlertMessage) -> str:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - the settings import this module

    colour, label = ("#067647", "Recovered") if message.recovered else _LOOKS[message.severity]
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = made.from_string(Path(__file__).with_name("email.html").read_text("utf-8"))
    return template.render(message=message, colour=colour, label=label)
