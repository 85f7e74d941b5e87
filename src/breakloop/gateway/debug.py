"""Debug sessions (SPEC A-6): whoever knows the secret gets a signed cookie for 15 minutes, and with it answers that
say which policy and rule decided and why. Without a configured secret none of this exists."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from hashlib import sha256

from breakloop.clock import Clock
from breakloop.gateway.head import Reply, Request
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import CompiledBundle

COOKIE = "breakloop_debug"
LASTS_S = 900
SECRET_HEADER = "x-breakloop-debug-secret"
_COOKIE_TERMS = "Path=/; HttpOnly; Secure; SameSite=Strict"
_DESCRIPTORS_SHOWN = 16
_VALUE_SHOWN = 256


class DebugSessions:
    """Gives out and checks cookies, and renders the `-Debug-` fields."""

    __slots__ = ("_clock", "_key", "_prefix", "_secret")

    def __init__(self, secret: str, prefix: str, clock: Clock) -> None:
        self._secret = secret.encode()
        self._key = sha256(b"breakloop debug session\x00" + self._secret).digest()
        self._prefix = prefix
        self._clock = clock

    def open(self, request: Request) -> Reply:
        """Answer `POST /v1/debug/session`."""
        if request.method != "POST":
            return Reply(405, b"Allow: POST\r\n", b"", 0.0)
        given = request.headers.get(SECRET_HEADER, b"")
        if not hmac.compare_digest(given, self._secret):
            head = b"Content-Type: application/json\r\n"
            return Reply(403, head, b'{"detail":{"error":"debug_secret_invalid"}}', 0.0)
        expires = int(self._clock.now()) + LASTS_S
        cookie = f"{COOKIE}={expires}.{self._sign(expires)}; Max-Age={LASTS_S}; {_COOKIE_TERMS}"
        return Reply(204, f"Set-Cookie: {cookie}\r\nCache-Control: no-store\r\n".encode("ascii"), b"", 0.0)

    def close(self, request: Request) -> Reply:
        """Answer `POST /v1/debug/logout`."""
        if request.method != "POST":
            return Reply(405, b"Allow: POST\r\n", b"", 0.0)
        cookie = f"{COOKIE}=; Max-Age=0; {_COOKIE_TERMS}"
        return Reply(204, f"Set-Cookie: {cookie}\r\n".encode("ascii"), b"", 0.0)

    def holds(self, request: Request) -> bool:
        """Tell whether the request carries a valid, unexpired cookie."""
        cookies = request.headers.get("cookie")
        if cookies is None or COOKIE.encode() not in cookies:
            return False
        for pair in cookies.decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE and self._valid(value):
                return True
        return False

    def fields(self, call: Call, verdict: Verdict, bundle: CompiledBundle | None, latency_us: int) -> bytes:
        """Return the `-Debug-` header lines of one decision by `bundle`."""
        start = f"{self._prefix}Debug-"
        matched = bundle.routes.match(call.host, call.method, call.path) if bundle else []
        shadow = bundle is not None and bundle.shadow_until > self._clock.now()
        shown = {
            "Decision": "allow" if verdict.allowed else "deny",
            "Reason": verdict.reason,
            "Policy": verdict.policy,
            "Rule": verdict.rule,
            "Mode": "shadow" if shadow or (matched and all(policy.shadow for policy in matched)) else "enforce",
            "Latency-Us": str(latency_us),
            "Matched-Policies": ",".join(policy.id for policy in matched),
        }
        for found in verdict.shadow[:1]:
            shown["Shadow"] = f"{found.policy}/{found.rule} {found.action} {found.reason}"
        getters = {name: get for policy in matched for name, get in policy.descriptors}
        for number, (name, get) in enumerate(sorted(getters.items())[:_DESCRIPTORS_SHOWN]):
            shown[f"Descriptor-{number}-Key"] = name
            shown[f"Descriptor-{number}-Value"] = (get(call) or "")[:_VALUE_SHOWN]
        lines = "".join(f"{start}{name}: {_printable(value)}\r\n" for name, value in shown.items())
        return lines.encode("ascii")

    def _valid(self, value: str) -> bool:
        expires, _, signature = value.partition(".")
        if not (expires.isascii() and expires.isdigit() and len(expires) < 12):
            return False
        good = hmac.compare_digest(signature.encode("latin-1"), self._sign(int(expires)).encode("ascii"))
        return good and int(expires) > self._clock.now()

    def _sign(self, expires: int) -> str:
        mac = hmac.digest(self._key, str(expires).encode("ascii"), "sha256")
        return urlsafe_b64encode(mac).rstrip(b"=").decode("ascii")


def _printable(value: str) -> str:
    """Header values carry printable ASCII only; whatever a client sent must not start a line of its own."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in value)
