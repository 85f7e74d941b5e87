"""What the doors have in common: number a request, unpack its body, ask the engine, render a denial (SPEC A-1 to A-6).
What a door makes of an allowed request is its own business.

Debug sessions (SPEC A-6): whoever knows the secret gets a signed cookie for 15 minutes, and with it answers that
say which policy and rule decided and why. Without a configured secret none of this exists.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from time import perf_counter_ns

from breakloop.clock import Clock
from breakloop.dialects import denial
from breakloop.dialects.denial import VerdictHeaders
from breakloop.dialects.encoding import unpack
from breakloop.engine.engine import Engine
from breakloop.engine.remote import RemoteEngine
from breakloop.gateway.http_request import Reply, Request, RequestLimits
from breakloop.gateway.hub import log_fault
from breakloop.model.call import Call
from breakloop.model.counters import Timings, TraceCounters
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import CompiledBundle
from breakloop.policy.descriptors import Descriptors

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


JSON = b"Content-Type: application/json\r\n"
_PROBLEM = b"Content-Type: application/problem+json\r\n"


class Admission:
    """Judges the calls of one process."""

    __slots__ = (
        "_next_id", "_run_id", "answers", "body_bytes", "debug", "descriptors", "engine", "remote", "timings",
        "traces",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        descriptors: Descriptors,
        answers: VerdictHeaders,
        *,
        run_id: str,
        debug: DebugSessions | None = None,
        body_bytes: int = RequestLimits().body_bytes,
        traces: TraceCounters | None = None,
    ) -> None:
        self.engine = engine
        self.descriptors = descriptors
        self.answers = answers
        self.debug = debug
        self.remote: RemoteEngine | None = None  # with a store that has to be waited for
        self.timings = Timings()
        self.traces = traces  # None: no tracing
        self._run_id = run_id
        self._next_id = 0
        self.body_bytes = body_bytes  # of a body once it is unpacked

    def request_id(self) -> str:
        """Return an id that no other request of this process has."""
        number = self._next_id
        self._next_id = number + 1
        return f"{self._run_id}{number:x}"

    def decide(self, request: Request, call: Call) -> tuple[Verdict, bytes]:
        """Return the verdict, and the extra header lines of a debug session. A fault of ours allows the request."""
        try:
            if "content-encoding" in request.headers:
                self.unpack(call)
            if self.debug is not None and self.debug.holds(request):
                return self._in_debug(call, self.debug)
            return self.engine.decide(call), b""
        except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not stop anybody's traffic
            return self.fault(error), b""

    def ask(self, request: Request, call: Call, then: Callable[[Verdict, bytes], None]) -> None:
        """The same where the state is not in this process: `then` gets what `decide` returns, now or later."""
        try:
            assert self.remote is not None  # noqa: S101 - only asked where there is one
            if "content-encoding" in request.headers:
                self.unpack(call)
            debug = self.debug if self.debug is not None and self.debug.holds(request) else None
            if debug is None:
                self.remote.decide(call, lambda verdict: then(verdict, b""))
            else:
                self.remote.decide(call, self._debugging(call, debug, then))
        except Exception as error:  # noqa: BLE001 - the outermost edge, as in `decide`
            then(self.fault(error), b"")

    def _debugging(
        self, call: Call, debug: DebugSessions, then: Callable[[Verdict, bytes], None]
    ) -> Callable[[Verdict], None]:
        started = perf_counter_ns()

        def decided(verdict: Verdict) -> None:
            latency_us = (perf_counter_ns() - started) // 1000
            then(verdict, debug.fields(call, verdict, self.engine.bundle, latency_us))

        return decided

    def fault(self, error: Exception) -> Verdict:
        """Count and log a fault of ours, by kind and place; the request is allowed."""
        self.engine.tally.faults += 1
        log_fault(error, "allowed")
        return Verdict()

    def _in_debug(self, call: Call, debug: DebugSessions) -> tuple[Verdict, bytes]:
        started = perf_counter_ns()
        verdict = self.engine.decide(call)
        latency_us = (perf_counter_ns() - started) // 1000
        return verdict, debug.fields(call, verdict, self.engine.bundle, latency_us)

    def unpack(self, call: Call) -> None:
        """Judge a compressed body by what is in it; one that stays packed is judged as the bytes that it is."""
        why = unpack(call, self.body_bytes)
        if why:
            self.engine.not_unpacked(call, why)

    def denied(self, request: Request, call: Call, verdict: Verdict) -> Reply:
        """Return a denial for a gateway that asked: as problem+json if it wants that."""
        head = self._denial_head(call, verdict)
        if denial.PROBLEM.encode() in request.headers.get("accept", b""):
            return Reply(verdict.status, head + _PROBLEM, denial.problem(verdict), 0.0)
        return Reply(verdict.status, head + JSON, self.body(call, verdict), 0.0)

    def denied_to_client(self, call: Call, verdict: Verdict) -> Reply:
        """Return a denial for the client itself; the model behind an MCP client reads a tool's error, no status."""
        status, body = denial.for_client(verdict, call, self.dialect(call))
        return Reply(status, self._denial_head(call, verdict) + JSON, body, 0.0)

    def body(self, call: Call, verdict: Verdict) -> bytes:
        """Return an error in the words of the client's dialect."""
        return denial.for_call(verdict, call, self.dialect(call))

    def dialect(self, call: Call) -> str:
        """Return which dialect a call speaks, or "" for plain HTTP."""
        chat = self.descriptors.chat(call)
        return chat.dialect if chat else ""

    def _denial_head(self, call: Call, verdict: Verdict) -> bytes:
        return self.answers.denied(verdict, call.request_id, self.descriptors.caller(call))
