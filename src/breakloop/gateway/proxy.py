"""The reverse proxy (SPEC D-1, D-2): judges a request like every door, then forwards it or answers in its stead.
How bytes get there and back is `exchange`'s, which upstream it is `targets`', what its head says `forwarding`'s.

Who may use the traffic port (SPEC Y-6): clients whose key has a SHA-256 in the setting `callers`. Says who it is, or
that nobody is known; how a client is turned away, and in which dialect, is the door's business.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b, sha256
from time import perf_counter_ns
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from breakloop.dialects import steer
from breakloop.engine.fold import denial
from breakloop.gateway.admission import JSON, Admission
from breakloop.gateway.decision import DecisionHandler
from breakloop.gateway.exchange import DeferredReply, Exchange, UsageInjection, UsageInjector
from breakloop.gateway.forwarding import HOP, Destination, Forwarding, UpstreamRoutes
from breakloop.gateway.http_request import Reply, Request
from breakloop.gateway.http_response import ResponseHead
from breakloop.gateway.hub import log_fault
from breakloop.gateway.stream_guard import CUT, AnswerTap, StreamWatch, guarded_reading, reading_for
from breakloop.gateway.upstream import UpstreamFaults, UpstreamPool
from breakloop.model.call import API_KEY_HEADERS, Answer, Call, Chat, CompletionCap
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import needs_body, rejects_large
from breakloop.policy.paths import normalise_host

_OWN: Final = "x-breakloop-key"


class ClientKeys:
    """The known clients, as `NAME=SHA256` each; a name may come twice, so that keys can be changed one by one.

    The digests are not compared one by one but looked up, after a second digest that is keyed with a secret of this
    process: how long that takes says nothing about the ones that are stored, and does not grow with their number.
    """

    __slots__ = ("_keyed", "_names", "_own_headers")

    def __init__(self, entries: Sequence[str], prefix: str = "X-Breakloop-") -> None:
        self._keyed = blake2b(digest_size=32, key=secrets.token_bytes(32))
        # The library cannot know the prefix before it has an answer, so its own field is always accepted.
        self._own_headers = tuple(dict.fromkeys((f"{prefix}Key".lower(), _OWN)))
        self._names: dict[bytes, str] = {}
        for entry in entries:
            name, _, digest = entry.rpartition("=")
            self._names[self._place(bytes.fromhex(digest))] = name

    def check(self, headers: Mapping[str, bytes], query: bytes = b"") -> str | None:
        """Return the caller's name, or None. `X-Breakloop-Key` leaves the other fields to the provider's own key."""
        keys = [headers[name] for name in self._own_headers if name in headers]
        authorization = headers.get("authorization")
        if authorization:
            scheme, _, value = authorization.partition(b" ")
            keys.append(value.strip() if scheme.lower() == b"bearer" else authorization)
        keys += [headers[name] for name in API_KEY_HEADERS if name in headers]
        if b"key" in query or b"%" in query:
            keys += _query_keys(query)
        for key in keys:
            name = self._names.get(self._place(sha256(key).digest()))
            if name is not None:
                return name
        return None

    def _place(self, digest: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(digest)
        return keyed.digest()


def _query_keys(query: bytes) -> list[bytes]:
    pairs = (part.replace(b"+", b" ").partition(b"=") for part in query.split(b"&"))
    return [unquote_to_bytes(value) for name, _, value in pairs if unquote_to_bytes(name) == b"key"]


_RESERVED: Final = (b"/v1/decision", b"/v1/debug/", b"/livez", b"/readyz")
_ENDS: Final = (b"", b"/", b"?")
_ERRORS: Final = {
    401: "unknown_caller",
    408: "request_timeout",
    413: "body_too_large",
    502: "upstream_failed",
    504: "upstream_timeout",
}
_OF_THE_REQUEST: Final = (401, 413)
_OF_THE_UPSTREAM: Final = (502, 504)
_ADMIN_TOKEN: Final = b"bl_"  # as `admin.tokens` makes them: this and 43 characters, here behind "Bearer "
_ADMIN_TOKEN_LENGTH: Final = 53
_ADMIN_TOKEN_SENT: Final = "This is a token of the admin plane, which has a port of its own; nothing was forwarded."


class ProxyHandler:
    """A `Handler` for the server: one request in, a reply or an exchange out."""

    __slots__ = ("_asking", "_callers", "_faults", "_forwarding", "_judging", "_own", "_targets", "pools")

    def __init__(
        self,
        judging: Admission,
        own: DecisionHandler,
        *,
        targets: UpstreamRoutes,
        pools: Mapping[str, UpstreamPool],
        forwarding: Forwarding,
        callers: ClientKeys | None = None,
        faults: UpstreamFaults | None = None,
    ) -> None:
        self._judging = judging
        self._own = own  # answers our own paths
        self._targets = targets
        self.pools = pools  # by name of the upstream
        self._forwarding = forwarding
        self._callers = callers
        self._faults = faults
        self._asking = UsageInjector(judging.engine.tally)

    def __call__(self, request: Request) -> Any:
        """Answer or forward one request: `Reply`, `Exchange`, or `DeferredReply` where state is beyond a
        connection. Raises `RequestError` for a path with two meanings."""
        target = request.target
        if target.startswith(_RESERVED) and _is_own(target):
            return self._own(request)
        began_ns = perf_counter_ns()
        path, _, query = target.partition(b"?")
        destination = self._targets.find(path, request.headers)
        judging = self._judging
        call = Call(  # by position: names cost a fifth more
            request.method,
            destination.path,
            normalise_host(request.headers.get("host", b"")),
            query.decode("latin-1"),
            request.headers,
            request.peer,
            b"" if request.streamed else request.body,
            request.streamed,
            judging.request_id(),
            destination.agent,
            destination.upstream.name,
            request.repeated,
        )
        call.tracked = True
        call.began_ns = began_ns
        if HOP in request.headers and self._forwarding.came_through(request):
            return judging.denied_to_client(call, _proxy_loop())
        if self._callers is not None and self._callers.check(request.headers, query) is None:
            return self.failed(call, 401, "The key of this request is not known here.")
        authorization = request.headers.get("authorization", b"")
        if authorization[7:10] == _ADMIN_TOKEN and len(authorization) == _ADMIN_TOKEN_LENGTH:
            return self.failed(call, 401, _ADMIN_TOKEN_SENT)
        if request.streamed and self._is_large(request):
            judging.engine.tally.unjudged += 1
            if judging.engine.enforces and rejects_large(judging.engine.bundle, call):
                return self.failed(call, 413, "The body is larger than what a policy lets pass.")
        if judging.remote is not None:
            pending = DeferredReply()
            judging.ask(
                request,
                call,
                lambda verdict, fields: pending.resolve(
                    lambda: self._decided(request, call, destination, query, verdict, fields)
                ),
            )
            return pending
        verdict, fields = judging.decide(request, call)
        return self._decided(request, call, destination, query, verdict, fields)

    def _decided(
        self, request: Request, call: Call, destination: Destination, query: bytes, verdict: Verdict, fields: bytes
    ) -> Reply | Exchange:
        judging = self._judging
        if judging.traces is not None:
            judging.traces.decided(call, verdict)
        answer: Reply | Exchange
        if verdict.allowed:
            answer = self._forward(request, call, destination, query, verdict, fields)
        else:
            answer = judging.denied_to_client(call, verdict)
            answer.head += fields
        now_ns = perf_counter_ns()
        judging.timings.proxy.note(now_ns - call.began_ns)
        call.began_ns = now_ns + verdict.delay_ms * 1_000_000  # from then on it is the upstream's time
        return answer

    def _forward(
        self, request: Request, call: Call, destination: Destination, query: bytes, verdict: Verdict, fields: bytes
    ) -> Exchange:
        steered = bool(verdict.note) and self._steer(request, call, verdict)
        length = request.length if request.streamed else len(request.body)
        if steered:
            length = len(request.body)
        head = self._forwarding.head(request, destination, query, length, plain=steered)
        asked: UsageInjection | None = None
        if call.decision.wants_usage:
            body = self._asking.body(request, call, steered=steered)
            if body is not None:
                asked = UsageInjection(self._asking, call, head, request.body)
                request.body = body
                head = self._forwarding.head(request, destination, query, len(body), plain=True, wants_plain=True)
        lines = self._judging.answers.allowed(verdict, call.request_id)
        pool = self.pools[destination.upstream.name]
        exchange = Exchange(self, pool, request, call, head, lines + fields if fields else lines)
        exchange.asked = asked
        if verdict.delay_ms:
            exchange.delay_s = verdict.delay_ms / 1000
        return exchange

    def _steer(self, request: Request, call: Call, verdict: Verdict) -> bool:
        """SPEC LD-5: tell the model in its own conversation; where that cannot be done, the client is told."""
        chat = call.parsed.chat
        if not isinstance(chat, Chat) or request.streamed:
            return False
        body = steer.append(chat.dialect, call.body, verdict.note)
        if body is None:
            return False
        request.body = body
        verdict.note = ""
        self._judging.engine.tally.steered += 1
        return True

    def _is_large(self, request: Request) -> bool:
        """Tell a body that is too large to be judged from one that nobody wants to see."""
        return request.length > self._judging.body_bytes or bool(request.body)

    # The server's side

    def streams(self, request: Request) -> bool:
        """Tell whether a body may pass in pieces because nobody needs to see it."""
        bundle = self._judging.engine.bundle
        if bundle is None:
            return False
        destination = self._targets.find(request.target.partition(b"?")[0], request.headers)
        host = normalise_host(request.headers.get("host", b""))
        return not needs_body(bundle, host, request.method, destination.path, request.headers.get("content-type", b""))

    # The exchange's side

    def reading(self, call: Call, head: ResponseHead) -> AnswerTap | None:
        """Read along where somebody has looked at the request; nobody needs the answer to one that nobody judges."""
        chat = call.parsed.chat
        if not isinstance(chat, Chat):
            return None
        engine = self._judging.engine
        try:
            if call.decision.guards_stream or call.decision.caps:
                repeated, capped = partial(self._repeated, call), partial(self._capped, call)
                return guarded_reading(
                    chat,
                    head,
                    engine.not_read,
                    StreamWatch(repeated, capped, call.decision.guards_stream, call.decision.caps),
                )
            return reading_for(chat, head, engine.not_read)
        except Exception as error:  # noqa: BLE001 - the outermost edge: an answer that we cannot read passes all the same
            engine.tally.faults += 1
            log_fault(error, "not read")
            return None

    def _repeated(self, call: Call, action: str, chars: int, times: int) -> None:
        """Tell the engine what the stream guard saw, and did."""
        try:
            self._judging.engine.repeated(call, action, chars, times)
        except Exception as error:  # noqa: BLE001 - the outermost edge: as in `settle`
            self._judging.engine.tally.faults += 1
            log_fault(error, "not told")

    def _capped(self, call: Call, cap: CompletionCap, action: str) -> None:
        """Tell that a stream became longer than a rule lets it, and what was done."""
        engine = self._judging.engine
        try:
            if action == CUT and cap.cuts:
                engine.tally.cut_long += 1
            engine.meter.capped(call, cap, action)
        except Exception as error:  # noqa: BLE001 - the outermost edge: as in `settle`
            engine.tally.faults += 1
            log_fault(error, "not told")

    def settle(self, call: Call, answer: Answer) -> None:
        """Tell the engine how it ended."""
        took_ns = perf_counter_ns() - call.began_ns
        if took_ns > 0:  # else its client left while it was slowed down
            self._judging.timings.upstream(call.upstream).note(took_ns)
        try:
            self._judging.engine.settle(call, answer)
        except Exception as error:  # noqa: BLE001 - the outermost edge: the answer has to reach its client all the same
            self._judging.engine.tally.faults += 1
            log_fault(error, "not settled")

    def failed(self, call: Call, status: int, why: str) -> Reply:
        """Return an error of ours in the words of the client's dialect."""
        if self._faults is not None and status in _OF_THE_UPSTREAM:
            self._faults.note(call, status, why)
        message = why if status in _OF_THE_REQUEST else f"The upstream {call.upstream} {why}."
        verdict = Verdict(allowed=False, reason=_ERRORS[status], status=status, message=message)
        head = self._judging.answers.allowed(Verdict(), call.request_id) + JSON
        return Reply(status, head, self._judging.body(call, verdict))


def _is_own(target: bytes) -> bool:
    for start in _RESERVED:
        if target.startswith(start):
            return start.endswith(b"/") or target[len(start) : len(start) + 1] in _ENDS
    return False


def _proxy_loop() -> Verdict:
    """SPEC LD-9: an upstream points back at us."""
    message = "This request has come through this proxy before: an upstream points back at it."
    verdict = denial("proxy_loop", 508, message)
    verdict.never = True
    return verdict
