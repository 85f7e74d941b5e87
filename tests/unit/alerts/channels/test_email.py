"""Mail, to a real SMTP server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from breakloop.alerts.channels.base import Delivery, DeliveryResult
from breakloop.alerts.channels.email import EmailAlerts, EmailTarget, compose, parse_address
from breakloop.alerts.messages import message_of
from breakloop.alerts.transport import tls_context
from tests.alert_world import CANARY, loop, means, notice_body, released
from tests.e2e.certificates import Authority

TO = ("ada@example.com", "Grace <grace@example.com>")


class Inbox:
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.code = "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - as the server calls it
        self.got.append(envelope)
        return self.code

    def mail(self) -> EmailMessage:
        found = message_from_bytes(self.got[-1].content, policy=policy.default)
        assert isinstance(found, EmailMessage)
        return found


@contextmanager
def server(**options: Any) -> Iterator[tuple[Inbox, int]]:
    inbox = Inbox()
    with _warnings_of_the_server():
        controller = Controller(inbox, hostname="127.0.0.1", port=_free_port(), ready_timeout=20, **options)
        controller.start()
    try:
        yield inbox, controller.port
    finally:
        controller.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _warnings_of_the_server() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sent(port: int, event: Any = None, tls: ssl.SSLContext | None = None, **others: Any) -> DeliveryResult:
    given: dict[str, Any] = {
        "type": "email",
        "host": "127.0.0.1",
        "port": port,
        "security": "none",
        "sender": "breakloop@example.com",
        "to": list(TO),
    }
    password = others.pop("password", "")
    given |= {"password": "env:SMTP" if password else ""}
    settings = EmailAlerts(**(given | others))
    target = EmailTarget(means(tls=tls or tls_context()), settings, password, "https://ops.example")
    return asyncio.run(
        target.send(Delivery("msg_1", "loop.detected", notice_body(event or loop(), spent_microusd=1_230_000)))
    )


def test_both_parts_arrive() -> None:
    """Text and HTML, a subject that tells agent, kind and money (G-4)."""
    with server() as (inbox, port):
        assert sent(port) == DeliveryResult(delivered=True, status=250)
        assert inbox.got[0].rcpt_tos == ["ada@example.com", "grace@example.com"]
        mail = inbox.mail()
    assert mail["Subject"] == "Agent summariser loops (tail), stopped, $1.23 spent"
    assert (mail["From"], mail["Message-ID"], mail["Auto-Submitted"]) == ("breakloop <breakloop@example.com>", "<msg_1@example.com>", "auto-generated")  # fmt: skip
    assert mail["Date"].datetime.isoformat() == "2027-01-15T08:00:00+00:00"
    assert mail.get_content_type() == "multipart/alternative"
    text, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert text is not None
    assert html is not None
    assert "Evidence: the same last 3 messages 6 times" in text.get_content()
    assert "<h1" in html.get_content()
    assert "https://ops.example" in text.get_content()


def test_alert_and_end_are_one_thread() -> None:
    mailer = EmailAlerts(type="email", host="h", sender="a@example.com", to=list(TO))
    one, other = (
        compose(message_of(notice_body(loop())), "m1", mailer),
        compose(message_of(notice_body(released(), about=loop())), "m2", mailer),
    )
    assert one["References"] == other["References"] == "<loop-1@example.com>"
    assert other["Subject"] == "Recovered: Agent summariser is released"


@pytest.mark.parametrize(
    "name", ["evil\r\nBcc: all@example.com", "a\nX: y", "a\u2028b\x0bc", "=?utf-8?q?x?=", "ü" * 200, "\ud800"]
)
def test_no_name_adds_a_header(name: str) -> None:
    """Header injection is impossible, and odd names arrive (Y-3)."""
    with server() as (inbox, port):
        assert sent(port, loop(name)).delivered
        mail = inbox.mail()
    assert mail["Bcc"] is None
    assert mail["X"] is None
    assert inbox.got[0].rcpt_tos == ["ada@example.com", "grace@example.com"]
    assert set(mail.keys()) == {"Subject", "From", "To", "Date", "Message-ID", "References", "Auto-Submitted", "X-Auto-Response-Suppress", "MIME-Version", "Content-Type"}  # fmt: skip


def test_starttls_and_login(tmp_path: Path) -> None:
    """The certificate is verified before the password is sent (G-4)."""
    seen: list[str] = []

    def login(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        seen.append(data.password.decode())
        return AuthResult(success=data.password == CANARY.encode(), handled=False)

    authority = Authority(tmp_path)
    options = {"tls_context": authority.issue("127.0.0.1").server, "require_starttls": True, "authenticator": login}
    own = tls_context(str(authority.file))
    with server(**options) as (inbox, port):
        assert sent(port, security="starttls", user="bot", password=CANARY, tls=tls_context()).error == "the mail server's certificate is not trusted, or it does not support TLS"  # fmt: skip
        assert seen == []
        outcome = sent(port, security="starttls", user="bot", password="wrong-" + CANARY, tls=own)
        assert (outcome.status, outcome.error) == (535, "the mail server refused the login")
        assert sent(port, security="starttls", user="bot", password=CANARY, tls=own).delivered
        assert len(inbox.got) == 1


def test_tls_from_the_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with server(ssl_context=authority.issue("127.0.0.1").server) as (inbox, port):
        assert sent(port, security="tls", tls=tls_context(str(authority.file))).delivered
        assert len(inbox.got) == 1


def test_a_server_without_starttls_gets_nothing() -> None:
    """What is to be encrypted is never sent plain (Y-1)."""
    with server() as (inbox, port):
        outcome = sent(port, security="starttls", user="bot", password=CANARY)
        assert (outcome.delivered, outcome.error) == (False, "the mail server does not support STARTTLS or login")
        assert inbox.got == []


def test_failures_in_words(free_port: Any) -> None:
    """What the server said is not repeated: it may echo what it got (Y-1)."""
    with server() as (inbox, port):
        inbox.code = f"451 {CANARY}"
        assert sent(port) == DeliveryResult(delivered=False, status=451, error="the mail server answered 451")
    assert sent(free_port()).error == "the mail server cannot be reached: ConnectionRefusedError"


def test_the_password_is_not_shown() -> None:
    """The password is not shown (Y-1)."""
    settings = EmailAlerts(type="email", host="h", sender="a@example.com", to=list(TO))
    assert CANARY not in repr(EmailTarget(means(), settings, CANARY))


@pytest.mark.parametrize("text", ["", "a", "a@b, c@d", "a@b\nBcc: x@y", "@", "a@b <c@d>, e@f", "<a@b@c>"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="not a mail address"):
        parse_address(text)
