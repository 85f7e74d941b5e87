"""Sessions of the dashboard (SPEC Y-3): a signed cookie that names the token it was opened with, for twelve hours, and
a second text against forged forms. Nothing is kept but which of them were closed. Setting the cookie is `login`'s."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

from breakloop.admin.tokens import Token, Tokens, mark_of
from breakloop.clock import Clock

COOKIE: Final = "breakloop_session"
CSRF_HEADER: Final = "x-csrf-token"
CSRF_FIELD: Final = "csrf"  # of a form
LASTS_S: Final = 12 * 3600
_CLOSED_MAX: Final = 10_000
_MAC: Final = 32


@dataclass(frozen=True, slots=True)
class Session:
    """An open session."""

    token: Token
    csrf: str


class Sessions:
    """Opens, finds and closes sessions."""

    __slots__ = ("_clock", "_closed", "_key", "_tokens")

    def __init__(self, secret: bytes, tokens: Tokens, clock: Clock) -> None:
        self._key = hmac.digest(secret, b"breakloop admin session", "sha256")
        self._tokens = tokens
        self._clock = clock
        self._closed: dict[str, float] = {}

    def open(self, token: Token) -> str:
        """Return the value of a new session's cookie."""
        expires = int(self._clock.now()) + LASTS_S
        said = f"{secrets.token_urlsafe(12)}.{expires}.{mark_of(token)}.{token.name}".encode()
        return urlsafe_b64encode(self._mac(said) + said).decode("ascii")

    def find(self, cookie: str) -> Session | None:
        """Return the session that a cookie belongs to, while it is open and its token is valid."""
        said = self._verified(cookie)
        if said is None:
            return None
        one, expires, mark, name = said.decode().split(".", 3)
        token = self._tokens.named(name, mark)
        if token is None or int(expires) <= self._clock.now() or one in self._closed:
            return None
        return Session(token, self._mac(b"csrf\0" + said).hex())

    def close(self, cookie: str) -> None:
        """Close a session before its time."""
        said = self._verified(cookie)
        if said is None:
            return
        one, expires, _ = said.decode().split(".", 2)
        now = self._clock.now()
        if len(self._closed) >= _CLOSED_MAX:
            self._closed = {name: until for name, until in self._closed.items() if until > now}
        self._closed[one] = float(expires)

    def _verified(self, cookie: str) -> bytes | None:
        """Return what a cookie says, if it is one of ours."""
        try:
            raw = urlsafe_b64decode(cookie.encode("ascii"))
        except ValueError:
            return None
        mac, said = raw[:_MAC], raw[_MAC:]
        return said if hmac.compare_digest(mac, self._mac(said)) else None

    def _mac(self, said: bytes) -> bytes:
        return hmac.digest(self._key, said, "sha256")
