"""The reverse proxy: decides about a request, then forwards it or replies with a denial.

`exchange` transfers the bytes, and `forwarding` finds the upstream and rewrites the head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from breakloop.detect.steps.detector import RETRY_STREAM
from breakloop.dialects import anthropic, mcp, openai_responses, registry, session_ids
from breakloop.dialects.body_changes import ENDED_THOUGHT
from breakloop.engine.fold import denial
from breakloop.gateway.admission import CALLER_ERRORS, JSON, Admission
from breakloop.gateway.decision import DecisionHandler
from breakloop.gateway.exchange import (
    KEPT_BYTES,
    DeferredReply,
    Exchange,
    UsageInjection,
    UsageInjector,
    release_parsed,
)
from breakloop.gateway.forwarding import HOP, Destination, HeadRewriter, UpstreamRoutes
from breakloop.gateway.http_request import CLOSE, NO_WEBSOCKET, Reply, Request, asks_for_websocket
from breakloop.gateway.http_response import error_reply
from breakloop.gateway.upstream import UpstreamFaults, UpstreamPool
from breakloop.model.call import TOOL_DIALECTS, Call, Tree
from breakloop.model.decision import PAUSED
from breakloop.model.verdict import Verdict
from breakloop.policy.compiled import needs_body, rejects_large
from breakloop.policy.paths import normalise_host

if TYPE_CHECKING:
    from breakloop.gateway.waiting import WaitingCall, WaitingCalls
    from breakloop.gateway.websocket import WebSocketExchange

Act = Callable[[Verdict, bytes], Any]  # acts on a verdict; with the header lines of a debug session
_RESERVED: Final = (b"/v1/decision", b"/v1/debug/", b"/livez", b"/readyz")
_ENDS: Final = (b"", b"/", b"?")
_ERRORS: Final = {
    **CALLER_ERRORS,
    408: "request_timeout",
    413: "body_too_large",
    502: "upstream_failed",
    504: "upstream_timeout",
}
# APIs that refuse thoughts they did not sign.
_SIGNING: Final = frozenset((anthropic.NAME, openai_responses.OpenAIResponses.name))
_ENDED_THOUGHT: Final = ENDED_THOUGHT.encode()
_REQUEST_ERRORS: Final = (400, 401, 413)
_UPSTREAM_ERRORS: Final = (502, 504)
_ADMIN_TOKEN: Final = b"bl_"  # as `admin.auth` generates them: this and 43 characters, here after "Bearer "
_ADMIN_TOKEN_LENGTH: Final = 53
_NOT_SIGNED: Final = "A body of this size cannot be signed; see limits.body_bytes."
_ADMIN_TOKEN_SENT: Final = "This is a token of the admin API, which has its own port; the request was not forwarded."


class _Route(msgspec.Struct, frozen=True, gc=False):
    """What follows from the head of a request. Kept for heads that recur (`HeadTemplate.route`)."""

    destination: Destination
    upstream: str
    host: str
    query: bytes
    query_text: str
    is_plain: bool  # nothing in the head is a reason to refuse the request


class ProxyHandler:
    """The `Handler` of the proxy: takes one request, returns a reply or an exchange."""

    def __init__(
        self,
        admission: Admission,
        own: DecisionHandler,
        *,
        routes: UpstreamRoutes,
        pools: Mapping[str, UpstreamPool],
        rewriter: HeadRewriter,
        faults: UpstreamFaults | None = None,
    ) -> None:
        self.admission = admission
        self._own = own  # handles breakloop's own paths
        self._routes = routes
        self.pools = pools  # by name of the upstream
        self._rewriter = rewriter
        self._faults = faults
        self._usage_injector = UsageInjector(admission.engine.tally)
        self.waiting: WaitingCalls | None = None  # made for the first call that waits

    def __call__(self, request: Request) -> Any:
        """Return a `Reply`, an `Exchange`, or a `DeferredReply` where the state is in a remote store. Raises
        `RequestError` for a path with two meanings."""
        template = request.template
        route: _Route | None = None if template is None else template.route
        if route is None and request.target.startswith(_RESERVED) and _is_own(request.target):
            return self._own(request)
        began_ns = perf_counter_ns()
        if route is None:
            route = self._route(request)
            if template is not None:
                template.route = route
        destination, admission = route.destination, self.admission
        call = Call(  # by position: keyword arguments cost a fifth more
            request.method,
            destination.path,
            route.host,
            route.query_text,
            request.headers,
            request.peer,
            b"" if request.streamed else request.body,
            request.streamed,
            admission.request_id(),
            destination.agent,
            route.upstream,
            request.repeated,
            template,
        )
        call.tracked = True
        call.began_ns = began_ns
        if not route.is_plain or admission.needs_key or request.streamed:
            result = self._undecided(request, call, route)
            if result is not None:
                return result
        if admission.remote is not None:
            pending = DeferredReply()

            def decided(verdict: Verdict, lines: bytes = b"") -> None:
                pending.resolve(lambda: self._decided(request, call, route, verdict, lines))

            admission.decide_remote(request, call, decided)
            return pending
        verdict, lines = admission.decide(request, call)
        return self._decided(request, call, route, verdict, lines)

    def _route(self, request: Request) -> _Route:
        path, _, query = request.target.partition(b"?")
        headers = request.headers
        destination = self._routes.find(path, headers, query, request.repeated)
        is_odd = HOP in headers or "upgrade" in headers or destination.refusal or _has_admin_token(request)
        host = normalise_host(headers.get("host", b""))
        return _Route(destination, destination.upstream.name, host, query, query.decode("latin-1"), not is_odd)

    def _undecided(self, request: Request, call: Call, route: _Route) -> Reply | WebSocketExchange | None:
        """Return the reply to a request that is refused whatever the policies are, or the exchange of a websocket."""
        admission, destination = self.admission, route.destination
        if HOP in request.headers and self._rewriter.came_through(request):
            return admission.client_denial(call, _proxy_loop())
        refusal = admission.unknown_caller(call) if admission.needs_key else None
        if refusal is not None:
            return self.error_reply(call, *refusal)
        if _has_admin_token(request):
            return self.error_reply(call, 401, _ADMIN_TOKEN_SENT)
        if destination.refusal:
            return self.error_reply(call, 400, destination.refusal, "wrong_provider")
        if "upgrade" in request.headers and asks_for_websocket(request):
            return self._open_websocket(request, destination, route.query)
        if request.streamed and self._rewriter.signs(destination.upstream):
            return self.error_reply(call, 413, _NOT_SIGNED)
        if request.streamed and self._is_large(request):
            admission.engine.tally.unjudged += 1
            if admission.engine.enforces and rejects_large(admission.engine.bundle, call):
                return self.error_reply(call, 413, "The body exceeds the size that the policy allows.")
        return None

    def _decided(
        self, request: Request, call: Call, route: _Route, verdict: Verdict, lines: bytes
    ) -> Reply | Exchange | DeferredReply:
        """Act on a verdict. `lines` are the header lines of a debug session."""
        admission = self.admission
        if admission.traces is not None:
            admission.traces.decided(call, verdict)
        result: Reply | Exchange
        if verdict.allowed:
            result = self._forward(request, call, route.destination, route.query, verdict, lines)
            call.release_parsed()
            if len(call.body) > KEPT_BYTES:
                release_parsed(request, call)
        else:
            if verdict.reason == PAUSED and verdict.pause.hold_open_s:
                waiting = self._hold_open(request, call, verdict, partial(self._decided, request, call, route))
                if waiting is not None:
                    return waiting
            result = admission.client_denial(call, verdict)
            result.head += lines
        now_ns = perf_counter_ns()
        admission.timings.proxy.note(now_ns - call.began_ns)
        call.began_ns = now_ns + verdict.delay_ms * 1_000_000  # from here on, the time of the upstream is measured
        return result

    def _open_websocket(self, request: Request, destination: Destination, query: bytes) -> WebSocketExchange | Reply:
        from breakloop.gateway.websocket import WebSocketExchange, has_websocket  # noqa: PLC0415 - few clients use them

        if request.method != "GET" or request.length or not has_websocket(destination.path):
            request.connection = CLOSE  # what follows may be frames
            return error_reply(426, NO_WEBSOCKET)
        head = self._rewriter.rewrite(request, destination, query, 0)
        pool = self.pools[destination.upstream.name]
        return WebSocketExchange(self, self.admission, pool, request, destination, head)

    def websocket_call(self, request: Request, destination: Destination, body: bytes) -> Call:
        """Return the call for a message of a websocket."""
        call = Call(
            "POST",
            destination.path.replace("/realtime", "/responses"),
            normalise_host(request.headers.get("host", b"")),
            headers=request.headers,
            peer=request.peer,
            body=body,
            request_id=self.admission.request_id(),
            path_agent=destination.agent,
            upstream=destination.upstream.name,
            repeated=request.repeated,
        )
        call.tracked = True
        call.began_ns = perf_counter_ns()
        return call

    def _hold_open(self, request: Request, call: Call, verdict: Verdict, act: Act) -> DeferredReply | None:
        """Let the call of a paused run wait until a person answers, if there is room."""
        if request.streamed:  # its body has not arrived, and cannot be judged again
            return None
        if self.waiting is None:
            from breakloop.gateway.waiting import WaitingCalls  # noqa: PLC0415 - few bundles hold calls open

            self.waiting = WaitingCalls(self.admission.engine, next(iter(self.pools.values())).server)
        room = self.waiting
        release_parsed(request, call)
        size = len(request.body) + (0 if call.body is request.body else len(call.body))
        ends = room.tick + math.ceil(verdict.pause.hold_open_s)

        def decided(waiting: WaitingCall, verdict: Verdict, lines: bytes = b"") -> None:
            call.began_ns = perf_counter_ns()
            if verdict.reason == PAUSED:
                later = room.wait(verdict.pause.run, ends, size, again) if verdict.pause.hold_open_s else None
                verdict.pause = replace(verdict.pause, hold_open_s=0.0)
                if later is not None:
                    waiting.resolve(lambda: later)
                    return
            waiting.resolve(lambda: act(verdict, lines))

        def again(waiting: WaitingCall) -> None:
            if self.admission.remote is not None:
                self.admission.decide_remote(request, call, partial(decided, waiting))
            else:
                decided(waiting, *self.admission.decide(request, call))

        return room.wait(verdict.pause.run, ends, size, again)

    def _forward(
        self, request: Request, call: Call, destination: Destination, query: bytes, verdict: Verdict, lines: bytes
    ) -> Exchange:
        steered = False
        if verdict.note and not request.streamed:
            note = self.admission.steer(call, verdict)
            if note is not None:
                request.body, steered = note, True
        chat = call.parsed.chat
        dialect = chat.dialect if chat else ""
        if dialect in _SIGNING and request.body.find(_ENDED_THOUGHT) >= 0:  # `in` takes longer
            request.body = registry.DIALECTS[dialect].without_ended_thoughts(request.body)
        length = request.length if request.streamed else len(request.body)
        place = None
        if destination.may_hop and call.body and (not chat or dialect in TOOL_DIALECTS):
            place = self._place_below(request, call)
        head = self._rewriter.rewrite(request, destination, query, length, decoded=steered, place=place)
        injection: UsageInjection | None = None
        if call.decision.wants_usage:
            body = self._usage_injector.body(request, call, steered=steered)
            if body is not None:
                injection = UsageInjection(self._usage_injector, call, head, request.body)
                request.body = body
                head = self._rewriter.rewrite(request, destination, query, len(body), decoded=True, identity=True)
        own_lines = self.admission.headers.allowed(verdict, call.request_id)
        pool = self.pools[call.upstream]
        exchange = Exchange(self, pool, request, call, head, own_lines + lines if lines else own_lines)
        exchange.usage_injection = injection
        if call.decision.guards_stream == RETRY_STREAM and "content-encoding" not in request.headers:
            exchange.kept_body = call.body
        if verdict.delay_ms:
            exchange.delay_s = verdict.delay_ms / 1000
        return exchange

    def _place_below(self, request: Request, call: Call) -> Tree | None:
        """Return the place of the agent or tool that a request is for in the tree of agents; None for other requests,
        and if another gateway has written it."""
        if HOP in request.headers:
            return None
        chat = call.parsed.chat
        try:
            ids = mcp.hop_ids(call)
            if ids is None:
                return None
            place = self.admission.descriptors.trees.below(call, ids)
        except Exception as error:  # noqa: BLE001 - fail-open edge: the request passes as it came
            self.admission.fault(error, "not placed")
            return None
        # Agents that do not name their sessions are counted, too. Tools of a client that names nothing are only tools.
        return place if place.root or not (chat or ids is session_ids.NONE) else None

    def _is_large(self, request: Request) -> bool:
        """Return whether a body is streamed because of its size, and not because no policy needs it."""
        return request.length > self.admission.body_bytes or bool(request.body)

    def streams_body(self, request: Request) -> bool:
        """Return whether a body may be streamed, because no policy needs it."""
        bundle = self.admission.engine.bundle
        if bundle is None:
            return False
        destination = self._routes.find(request.target.partition(b"?")[0], request.headers)
        if self._rewriter.signs(destination.upstream):
            return False
        host = normalise_host(request.headers.get("host", b""))
        return not needs_body(bundle, host, request.method, destination.path, request.headers.get("content-type", b""))

    # -- called by the exchange --------------------------------------------------------------------------------------

    def ask_again(
        self, request: Request, before: Call, body: bytes, note: str, then: Callable[[Exchange | None], None]
    ) -> None:
        """Decide about the request of a call a second time, and call `then` with an exchange that sends it with a note
        for the model; with None if it is denied, or there is no place for the note."""
        admission, chat = self.admission, registry.head_of(before)
        if chat is None or registry.DIALECTS[chat.dialect].append_note(body, note) is None:
            then(None)
            return
        path, _, query = request.target.partition(b"?")
        destination = self._routes.find(path, request.headers, query, request.repeated)
        request.body = body
        call = Call(
            before.method, before.path, before.host, before.query, before.headers, before.peer, body, False,
            admission.request_id(), before.path_agent, before.upstream, before.repeated,
        )  # fmt: skip
        call.tracked = True
        call.began_ns = perf_counter_ns()
        if admission.needs_key:
            admission.unknown_caller(call)  # it is known, and gets its name

        def decided(verdict: Verdict, lines: bytes = b"") -> None:
            if admission.traces is not None:
                admission.traces.decided(call, verdict)
            if not verdict.allowed:
                then(None)
                return
            verdict.note = verdict.note or note
            exchange = self._forward(request, call, destination, query, verdict, lines)
            exchange.kept_body = b""
            release_parsed(request, call)
            then(exchange)

        if admission.remote is not None:
            admission.decide_remote(request, call, decided)
        else:
            decided(*admission.decide(request, call))

    def denial(self, call: Call, verdict: Verdict) -> Reply:
        """Return the denial of a call that an operator has stopped."""
        return self.admission.client_denial(call, verdict)

    def error_event(self, call: Call, verdict: Verdict) -> bytes:
        """Return that denial as an event of the client's dialect."""
        return registry.DIALECTS[self.admission.dialect(call)].error_event(verdict, call)

    def error_reply(self, call: Call, status: int, why: str, error: str = "") -> Reply:
        """Return an error of the proxy in the format of the client's dialect. Counts a refused request as denied, and
        publishes a failed upstream.
        """
        reason = error or _ERRORS[status]
        if self._faults is not None and status in _UPSTREAM_ERRORS:
            self._faults.record(call, status, why)
        message = f"The upstream {call.upstream} {why}."
        if status in _REQUEST_ERRORS:
            message, denied = why, self.admission.engine.tally.denied
            denied[reason] = denied.get(reason, 0) + 1
        verdict = Verdict(allowed=False, reason=reason, status=status, message=message)
        head = self.admission.headers.allowed(Verdict(), call.request_id) + JSON
        return Reply(status, head, self.admission.error_body(call, verdict))


def _has_admin_token(request: Request) -> bool:
    authorization = request.headers.get("authorization", b"")
    return authorization[7:10] == _ADMIN_TOKEN and len(authorization) == _ADMIN_TOKEN_LENGTH


def _is_own(target: bytes) -> bool:
    for start in _RESERVED:
        if target.startswith(start):
            return start.endswith(b"/") or target[len(start) : len(start) + 1] in _ENDS
    return False


def _proxy_loop() -> Verdict:
    """Return the denial of a request that passed this proxy before (LD-9)."""
    message = "This request has already passed through this proxy: an upstream points back at it."
    verdict = denial("proxy_loop", 508, message)
    verdict.never = True
    return verdict
