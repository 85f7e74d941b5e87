"""Admission of requests, shared by the proxy and the decision service: unpack the body, decide, render a denial; and
where the response passes here too, change the request as the verdict says, read the response, settle the call.

Also debug sessions: clients that know the configured secret get a signed cookie for 15 minutes, and with it header
fields that name the policy and rule that decided, and why. Without a configured secret none of this exists.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from functools import partial
from hashlib import sha256
from time import perf_counter_ns
from typing import Protocol

from breakloop.clock import Clock
from breakloop.detect.stream import CUT, StreamWatch, watch_stream
from breakloop.dialects import denial, registry
from breakloop.dialects.answers import PassingAnswer, read_whole
from breakloop.dialects.content import COUNTED_FROM_BYTES, ESCAPES_FROM_BYTES, Steps, count_values
from breakloop.dialects.denial import VerdictHeaders
from breakloop.dialects.encoding import Unpacked, unpack, unpack_steps
from breakloop.engine.engine import Engine
from breakloop.engine.remote import RemoteEngine
from breakloop.gateway.exchange import read_response
from breakloop.gateway.http_request import TWO_DIGITS, BodyMemory, Reply, Request, RequestLimits
from breakloop.gateway.http_response import ResponseHead, log_fault
from breakloop.model.call import Answer, Call, Chat, CompletionCap
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
    """Issues and checks the cookies, and renders the `-Debug-` header fields."""

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

    def is_active(self, request: Request) -> bool:
        """Return whether the request carries a valid, unexpired cookie."""
        cookies = request.headers.get("cookie")
        if cookies is None or COOKIE.encode() not in cookies:
            return False
        for pair in cookies.decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE and self._valid(value):
                return True
        return False

    def header_lines(self, call: Call, verdict: Verdict, bundle: CompiledBundle | None, started_ns: int) -> bytes:
        """Return the `-Debug-` header lines of one decision, which has just been made."""
        latency_us = (perf_counter_ns() - started_ns) // 1000
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
        lines = "".join(f"{start}{name}: {denial.printable(value)}\r\n" for name, value in shown.items())
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


CALLER_ERRORS = {400: "ambiguous_caller", 401: "unknown_caller"}
_NO_CALLER = "The key of this request is unknown."
_TWO_CALLERS = "This request carries the keys of different callers: send one of them, or name one in X-Breakloop-Key."
JSON = b"Content-Type: application/json\r\n"
_BODY = b"application/json"  # the type of a response that is not streamed
_PROBLEM = b"Content-Type: application/problem+json\r\n"


class VerdictCallback(Protocol):
    """Called with the verdict, and the header lines of a debug session."""

    def __call__(self, verdict: Verdict, lines: bytes = b"", /) -> None: ...


class Admission:
    """Decides about requests, with the store of this process (`decide`) or a remote one (`decide_remote`)."""

    def __init__(
        self,
        engine: Engine,
        descriptors: Descriptors,
        headers: VerdictHeaders,
        *,
        run_id: str,
        debug: DebugSessions | None = None,
        body_bytes: int = RequestLimits().body_bytes,
        traces: TraceCounters | None = None,
    ) -> None:
        self.engine = engine
        self.descriptors = descriptors
        self.headers = headers
        self.debug = debug
        self.remote: RemoteEngine | None = None  # set where the state is in a remote store
        self.timings = Timings()
        self.traces = traces  # None: no tracing
        self.unused_ids: list[str] = []  # of requests, the next one at the end
        self._run_id = run_id
        self._ids_renewed = 0
        self.body_bytes = body_bytes  # limit of an unpacked body
        self.body_memory = BodyMemory(RequestLimits())  # replaced by that of the server
        self._unpacked: Unpacked | None = None  # the body of the request that comes next
        self.needs_key = descriptors.callers is not None  # only callers that are named in the settings are admitted

    def request_id(self) -> str:
        """Return an id that is unique in this process."""
        return (self.unused_ids or self.renew_ids()).pop()

    def renew_ids(self) -> list[str]:
        """Return the next unused ids. Formatting a number for each request takes longer than a list of them."""
        times, digits = self._ids_renewed, TWO_DIGITS
        begin = f"{self._run_id}{times:x}"
        if not times:
            begin, digits = self._run_id, tuple([pair.lstrip("0") or "0" for pair in TWO_DIGITS])
        self._ids_renewed = times + 1
        self.unused_ids = [begin + pair for pair in reversed(digits)]
        return self.unused_ids

    def unknown_caller(self, call: Call, *, asked: bool = False) -> tuple[int, str] | None:
        """Return status and message for a request that does not carry the key of exactly one caller; `asked`: one that
        a gateway asks about.
        """
        found = self.descriptors.name_asked(call) if asked else self.descriptors.name_caller(call)
        if found == 1:
            return None
        return (400, _TWO_CALLERS) if found else (401, _NO_CALLER)

    def decide(self, request: Request, call: Call) -> tuple[Verdict, bytes]:
        """Return the verdict, and the header lines of a debug session. If deciding fails, the request is allowed."""
        try:
            if "content-encoding" in request.headers:
                self.unpack(call)
            if self.debug is None or not self.debug.is_active(request):
                return self.engine.decide(call), b""
            started_ns = perf_counter_ns()
            verdict = self.engine.decide(call)
            return verdict, self.debug.header_lines(call, verdict, self.engine.bundle, started_ns)
        except Exception as error:  # noqa: BLE001 - fail-open edge: a fault of ours must not stop traffic
            return self.fail_open(error), b""

    def decide_remote(self, request: Request, call: Call, then: VerdictCallback) -> None:
        """Like `decide`, with a remote store: `then` is called with the result, now or later."""
        try:
            assert self.remote is not None  # noqa: S101 - checked by the caller
            if "content-encoding" in request.headers:
                self.unpack(call)
                then = self._hold_body(len(call.body), then)
            debug = self.debug
            if debug is None or not debug.is_active(request):
                self.remote.decide(call, then)
            else:
                started_ns = perf_counter_ns()

                def decided(verdict: Verdict) -> None:
                    then(verdict, debug.header_lines(call, verdict, self.engine.bundle, started_ns))

                self.remote.decide(call, decided)
        except Exception as error:  # noqa: BLE001 - as in `decide`
            then(self.fail_open(error))

    def _hold_body(self, size: int, then: VerdictCallback) -> VerdictCallback:
        """Count an unpacked body as held until its verdict: many may wait for the store at the same time."""
        memory = self.body_memory
        memory.held += size

        def decided(verdict: Verdict, lines: bytes = b"", /) -> None:
            nonlocal size
            memory.held -= size
            size = 0  # called again if `then` fails
            then(verdict, lines)

        return decided

    def fail_open(self, error: Exception) -> Verdict:
        """Count and log a fault of ours; return a verdict that allows the request."""
        self.fault(error, "allowed")
        return Verdict()

    def fault(self, error: Exception, outcome: str) -> None:
        """Count and log a fault of ours."""
        self.engine.tally.faults += 1
        log_fault(error, outcome)

    def prepare(self, request: Request) -> Steps[None]:
        """Decompress a large body, and count its values, in steps that do not take long. `decide` uses the result if it
        is called next, with the same body.
        """
        try:
            body = request.body
            if "content-encoding" in request.headers:
                self._unpacked = yield from unpack_steps(request, self._unpacked_max())
                body = self._unpacked.body
            yield from self.count(body, unpacked=body is not request.body)
        except Exception as error:  # noqa: BLE001 - fail-open edge: `decide` does it again
            self.fault(error, "prepared again")

    def count(self, body: bytes, *, unpacked: bool = False) -> Steps[None]:
        """Count the values of a large body. Those of one that was decompressed have been counted, unless it is so large
        that its escape sequences matter, too.
        """
        if len(body) > COUNTED_FROM_BYTES:
            is_counted = unpacked and len(body) <= ESCAPES_FROM_BYTES
            self.descriptors.counted = (body, False if is_counted else (yield from count_values(body)))

    def forget(self) -> None:
        """Free what `prepare` has made."""
        self._unpacked = self.descriptors.counted = None

    def _unpacked_max(self) -> int:
        return min(self.body_bytes, self.body_memory.room)

    def unpack(self, call: Call) -> None:
        """Decompress the body of a call. If that fails, the compressed bytes count as the body."""
        why = unpack(call, self._unpacked_max(), self._unpacked)
        if why:
            self.engine.not_unpacked(call, why)

    def steer(self, call: Call, verdict: Verdict) -> bytes | None:
        """Return the body with the note of a verdict in the conversation, and with tools switched off if the call is
        landed. None where that is not possible: the client then gets the note in a header field.
        """
        chat = registry.head_of(call)
        if chat is None:
            return None
        dialect, tally = registry.DIALECTS[chat.dialect], self.engine.tally
        body = (dialect.land if verdict.landed else dialect.append_note)(call.body, verdict.note)
        if body is None:
            return None
        verdict.note = ""
        if verdict.landed:
            tally.landed += 1
        else:
            tally.steered += 1
        return body

    def read_response(self, call: Call, head: ResponseHead) -> PassingAnswer | None:
        """Return the reader of a response; None where it is not needed, because the request was not read either."""
        chat = call.parsed.chat
        if not chat:
            return None
        try:
            watch = None
            if (call.decision.guards_stream or call.decision.caps) and head.headers.get("content-type") != _BODY:
                watch = partial(self._watch, call, chat)
            return read_response(chat, head, self.engine.not_read, watch)
        except Exception as error:  # noqa: BLE001 - fail-open edge: the response passes unread
            self.fault(error, "not read")
            return None

    def read_whole(self, call: Call, status: int, body: bytes) -> Answer:
        """Read a response that is complete, and neither compressed nor a stream."""
        chat = call.parsed.chat
        dialect = registry.DIALECTS.get(chat.dialect) if chat else None
        if dialect is None:
            return Answer(status, complete=True)
        return read_whole(dialect, body, status, self.engine.not_read)

    def _watch(self, call: Call, chat: Chat, can_cut: bool) -> StreamWatch:  # noqa: FBT001 - called by `read_response`
        return watch_stream(
            call.decision.guards_stream,
            call.decision.caps,
            chat.answers,
            can_cut=can_cut,
            repeated=partial(self._repeated, call),
            capped=partial(self._capped, call),
        )

    def _repeated(self, call: Call, action: str, what: str, times: int) -> None:
        try:
            self.engine.repeated(call, action, what, times)
        except Exception as error:  # noqa: BLE001 - as in `settle`
            self.fault(error, "not told")

    def _capped(self, call: Call, cap: CompletionCap, action: str) -> None:
        engine = self.engine
        try:
            if action == CUT and cap.cuts:
                engine.tally.cut_long += 1
            engine.meter.capped(call, cap, action)
        except Exception as error:  # noqa: BLE001 - as in `settle`
            self.fault(error, "not told")

    def settle(self, call: Call, answer: Answer) -> None:
        """Settle a call whose response is known. If that fails, the response passes all the same."""
        took_ns = perf_counter_ns() - call.began_ns
        if took_ns > 0:  # negative if the client left while the request was throttled
            self.timings.upstreams[call.upstream].note(took_ns)
        try:
            self.engine.settle(call, answer)
        except Exception as error:  # noqa: BLE001 - fail-open edge: the response has to reach the client
            self.fault(error, "not settled")

    def gateway_denial(self, request: Request, call: Call, verdict: Verdict) -> Reply:
        """Return a denial for a gateway that asked, as problem+json if it accepts that."""
        head = self._denial_head(call, verdict)
        if denial.PROBLEM.encode() in request.headers.get("accept", b""):
            return Reply(verdict.status, head + _PROBLEM, denial.problem(verdict), 0.0)
        return Reply(verdict.status, head + JSON, self.error_body(call, verdict), 0.0)

    def client_denial(self, call: Call, verdict: Verdict) -> Reply:
        """Return a denial for the client. An MCP client gets a tool error, because the model does not see statuses."""
        status, body = registry.denial_for(verdict, call, self.dialect(call))
        return Reply(status, self._denial_head(call, verdict) + JSON, body, 0.0)

    def error_body(self, call: Call, verdict: Verdict) -> bytes:
        """Return an error in the format of the client's dialect."""
        return registry.error_body(verdict, call, self.dialect(call))

    def dialect(self, call: Call) -> str:
        """Return the dialect of a call, or "" for plain HTTP."""
        chat = self.descriptors.chat(call)
        return chat.dialect if chat else ""

    def _denial_head(self, call: Call, verdict: Verdict) -> bytes:
        return self.headers.denied(verdict, call.request_id, self.descriptors.caller(call))
