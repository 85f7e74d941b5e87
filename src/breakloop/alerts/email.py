"""Mail, by SMTP in a thread (SPEC G-4): STARTTLS, TLS from the start, or plain to this machine only. One mail has a
part in text and one in HTML; nothing that comes from a request can add a header line."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from dataclasses import dataclass, field
from datetime import datetime
from email import policy
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final

from breakloop.alerts import email_look, words
from breakloop.alerts.means import Means
from breakloop.alerts.target import Outcome, Parcel
from breakloop.alerts.words import Message

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

    means: Means = field(repr=False)
    mailer: Mailer
    dashboard_url: str = ""

    async def send(self, parcel: Parcel) -> Outcome:
        """Send one mail to all of them."""
        mail = made(words.message(parcel.body, self.dashboard_url), parcel.id, self.mailer)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self.means.aside(lambda: self._handed_over(mail))
        except TimeoutError:
            return Outcome(delivered=False, error=f"the mail server took longer than {_TIMEOUT_S:g} s")

    def _handed_over(self, mail: EmailMessage) -> Outcome:
        try:
            with self._connected() as server:
                refused = server.send_message(mail)
        except smtplib.SMTPAuthenticationError as error:
            return Outcome(delivered=False, status=error.smtp_code, error="the mail server refused the login")
        except smtplib.SMTPResponseException as error:
            said = f"the mail server answered {error.smtp_code}"
            return Outcome(delivered=False, status=error.smtp_code, error=said)
        except smtplib.SMTPRecipientsRefused:
            return Outcome(delivered=False, error="the mail server refused all recipients")
        except smtplib.SMTPNotSupportedError:
            return Outcome(delivered=False, error="the mail server has no STARTTLS, or no login")
        except ssl.SSLError:
            return Outcome(delivered=False, error="the mail server's certificate is not trusted, or it speaks no TLS")
        except (smtplib.SMTPException, OSError) as error:
            return Outcome(delivered=False, error=f"the mail server cannot be reached: {type(error).__name__}")
        return Outcome(delivered=True, status=250, error=f"{len(refused)} recipients were refused" if refused else "")

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


def made(message: Message, name: str, mailer: Mailer) -> EmailMessage:
    """Return the mail."""
    from_address = address(mailer.sender)
    domain = from_address.domain
    mail = EmailMessage(policy=_POLICY)
    mail["Subject"] = words.clean(("Recovered: " if message.recovered else "") + message.title, 180)
    mail["From"] = Address(from_address.display_name or "breakloop", from_address.username, domain)
    mail["To"] = [address(one) for one in mailer.to]
    mail["Date"] = format_datetime(datetime.fromisoformat(message.at))
    mail["Message-ID"] = f"<{name}@{domain}>"
    mail["References"] = f"<{message.key}@{domain}>"  # so that mail programs show one subject as one thread
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Auto-Response-Suppress"] = "All"
    mail.set_content(message.plain())
    mail.add_alternative(email_look.html(message), subtype="html")
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
