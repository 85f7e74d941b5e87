"""The decision service: `/v1/decision*` for gateways that ask before they forward, and the health endpoints.

The request in question is read from `X-Original-*` (set by nginx), `X-Forwarded-*` (set by Traefik and Caddy), or the
path after `/v1/decision/envoy`. Gateways pass on fields that a client invented, so a request in which both kinds are
present and disagree is rejected. The gateway may report the outcome to `reported_results`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from breakloop.errors import RequestError
from breakloop.gateway.admission import JSON, Admission
from breakloop.gateway.exchange import DeferredReply
from breakloop.gateway.http_request import Reply, Request
from breakloop.gateway.reported_results import ReportedResults, is_result
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.policy.paths import normalise, normalise_host, strip_agent

ENVOY = b"/v1/decision/envoy"
_URI, _METHOD, _HOST = "x-original-uri", "x-original-method", "x-original-host"
_LENGTH = "x-original-content-length"
_FORWARDED = ("x-forwarded-uri", "x-forwarded-method", "x-forwarded-host")
_UNIQUE = frozenset((_URI, _METHOD, _HOST, _LENGTH, *_FORWARDED))


def original_call(request: Request, request_id: str) -> Call:
    """Return the call that a request to `/v1/decision` asks about."""
    headers = request.headers
    target, method, host = headers.get(_URI), headers.get(_METHOD), headers.get(_HOST)
    unseen = target is not None and _LENGTH in headers and _hides_body(request)
    if request.repeated:
        _reject_ambiguous(request)
    if "x-forwarded-uri" in headers or "x-forwarded-method" in headers or "x-forwarded-host" in headers:
        target = _agreed(headers, _URI, "x-forwarded-uri")
        method = _agreed(headers, _METHOD, "x-forwarded-method")
        host = _agreed(headers, _HOST, "x-forwarded-host")
    return _call(request, request_id, target, method, host, unseen=unseen)


def nginx_call(request: Request, request_id: str) -> Call:
    """Return the call that a request to `/v1/decision/nginx` asks about: reads only the fields that nginx sets."""
    headers = request.headers
    if request.repeated:
        _reject_ambiguous(request)
    unseen = _LENGTH in headers and _hides_body(request)
    return _call(request, request_id, headers.get(_URI), headers.get(_METHOD), headers.get(_HOST), unseen=unseen)


def envoy_call(request: Request, request_id: str) -> Call:
    """Return the call that a request to `/v1/decision/envoy/...` asks about: method, path and host are its own."""
    unseen = request.headers.get("x-envoy-auth-partial-body") == b"true"  # the body is truncated, and not used
    return _call(request, request_id, request.target[len(ENVOY) :], None, None, unseen=unseen)


def _agreed(headers: Mapping[str, bytes], original: str, forwarded: str) -> bytes | None:
    first = headers.get(original)
    second = headers.get(forwarded)
    if first and second and first != second:
        raise RequestError(400, f"{original} and {forwarded} contradict each other; the gateway has to set one of them")
    return first or second


def _reject_ambiguous(request: Request) -> None:
    """Reject a field that the gateway set and a client sent in another spelling: `X_Original_URI`."""
    for name, value in request.repeated:
        if name in _UNIQUE and value != request.headers[name]:
            raise RequestError(400, f"{name} came twice and says two things; the gateway has to replace the client's")


def _hides_body(request: Request) -> bool:
    """Return whether the gateway declares a body that it did not send. Used only with the URI that it sets."""
    return not request.body and request.headers[_LENGTH] not in {b"0", b""}


def _call(
    request: Request, request_id: str, target: bytes | None, method: bytes | None, host: bytes | None, *, unseen: bool
) -> Call:
    if not target:
        target = request.target
    if not target.startswith(b"/"):
        target = _without_authority(target)
    path, _, query = target.partition(b"?")
    plain = normalise(path)
    agent = ""
    if plain.startswith("/agents/"):
        agent, plain = strip_agent(plain)
    return Call(  # by position: keyword arguments cost a fifth more
        method.decode("latin-1") if method else request.method,
        plain,
        normalise_host(host or request.headers.get("host", b"")),
        query.decode("latin-1"),
        request.headers,
        request.peer,
        request.body,
        unseen,
        request_id,
        agent,
        "",
        request.repeated,
    )


def _without_authority(target: bytes) -> bytes:
    """Remove scheme and host: some gateways send the whole URL."""
    scheme, found, rest = target.partition(b"://")
    if found and scheme.lower() in {b"http", b"https"}:
        rest, mark, query = rest.partition(b"?")  # a slash in the query is not part of the path
        slash = rest.find(b"/")
        return (rest[slash:] if slash >= 0 else b"/") + mark + query
    raise RequestError(400, "the original URI has to begin with a slash")


_DECISION_METHODS = frozenset({"POST", "GET", "HEAD"})
NO_BUNDLE = b"no_bundle_loaded"  # the only denial that is a failure: gateways then act as without a response
_CLIENT_WAITS = b"/v1/decision?wait=client"  # only the URL counts; other parts may come from a client
_NOT_FOUND = b'{"detail":{"error":"not_found","message":"Not a path of the decision service; see /v1/decision."}}'


class DecisionHandler:
    """The `Handler` of the decision service and of the health endpoints."""

    def __init__(
        self,
        admission: Admission,
        *,
        ready: Callable[[], tuple[int, dict[str, object]]],
        results: ReportedResults | None = None,
        decides: bool = True,
    ) -> None:
        self._admission = admission
        self._results = results  # None: results are not reported
        self._ready = ready
        self._decides = decides  # False: only the health endpoints and debug sessions are open
        self._routes: dict[bytes, Callable[[Request], Reply | DeferredReply]] = {
            b"/livez": self._livez,
            b"/readyz": self._readyz,
        }
        if decides:
            self._routes |= {b"/v1/decision": self._generic, b"/v1/decision/nginx": self._nginx}
        if admission.debug is not None:
            self._routes[b"/v1/debug/session"] = admission.debug.open
            self._routes[b"/v1/debug/logout"] = admission.debug.close

    def __call__(self, request: Request) -> Any:
        """Return a `Reply`, or a `DeferredReply` where the state is in a remote store."""
        target = request.target
        route = self._routes.get(target)
        if route is None:
            path = target.partition(b"?")[0]
            route = self._routes.get(path)
            if route is None:
                if self._decides and path.startswith(ENVOY + b"/"):
                    return self._envoy(request)
                if self._decides and self._results is not None and is_result(path):
                    return self._results.handle(request)
                return Reply(404, JSON, _NOT_FOUND, 0.0)
        return route(request)

    def _generic(self, request: Request) -> Reply | DeferredReply:
        if request.method not in _DECISION_METHODS:
            return Reply(405, b"Allow: GET, HEAD, POST\r\n", b"", 0.0)
        return self._decide(request, original_call)

    def _nginx(self, request: Request) -> Reply | DeferredReply:
        reply = self._decide(request, nginx_call, self._for_nginx)
        return reply if isinstance(reply, DeferredReply) else self._for_nginx(reply)

    def _for_nginx(self, reply: Reply) -> Reply:
        """nginx turns every denial but 401 and 403 into a 500 and drops its body: send both in header fields."""
        if reply.status != 200:
            reply.head += self._admission.headers.carried(reply.status, reply.body)
            reply.status = 403
            reply.body = b""
        return reply

    def envoy(self, request: Request) -> Reply | DeferredReply:
        """Decide about a request of Envoy over gRPC, which can express every status."""
        return self._decide(request, envoy_call)

    def _envoy(self, request: Request) -> Reply | DeferredReply:
        reply = self._decide(request, envoy_call, self._for_envoy)
        return reply if isinstance(reply, DeferredReply) else self._for_envoy(reply)

    def _for_envoy(self, reply: Reply) -> Reply:
        """Envoy treats a 5xx as a failure, and may fail open: send denials with 429 instead."""
        if reply.status >= 500 and NO_BUNDLE not in reply.head:
            reply.head += self._admission.headers.real_status(reply.status)
            reply.status = 429
        return reply

    def _decide(
        self,
        request: Request,
        read: Callable[[Request, str], Call],
        adapt_deferred: Callable[[Reply], Reply] = lambda reply: reply,
    ) -> Reply | DeferredReply:
        """Return the reply, or a deferred one, which `adapt_deferred` is applied to."""
        began_ns = perf_counter_ns()
        admission = self._admission
        request_id = admission.request_id()
        try:
            call = read(request, request_id)
        except RequestError as error:
            return _bad(error)
        call.began_ns = began_ns
        results = self._results
        if results is not None:
            results.expect(call)
        if admission.remote is not None:
            pending = DeferredReply()
            admission.decide_remote(
                request,
                call,
                lambda verdict, lines: pending.resolve(
                    lambda: adapt_deferred(self._decided(request, call, verdict, lines))
                ),
            )
            return pending
        lines = b""
        if admission.debug is not None or "content-encoding" in request.headers:
            verdict, lines = admission.decide(request, call)
        else:  # the usual case: a further call and a tuple would cost 2 %
            try:
                verdict = admission.engine.decide(call)
            except Exception as error:  # noqa: BLE001 - fail-open edge: a fault of ours must not stop traffic
                verdict = admission.fail_open(error)
        return self._decided(request, call, verdict, lines)

    def _decided(self, request: Request, call: Call, verdict: Verdict, lines: bytes) -> Reply:
        """Return the reply for a verdict. `lines` are the header lines of a debug session."""
        admission, results = self._admission, self._results
        if admission.traces is not None:
            admission.traces.decided(call, verdict)
        admission.timings.decision.note(perf_counter_ns() - call.began_ns)
        if verdict.allowed:
            if results is not None:
                results.keep(call)
            head = admission.headers.allowed(verdict, call.request_id)
            if lines:
                head += lines
            delay_s = verdict.delay_ms / 1000
            if delay_s and request.target.startswith(_CLIENT_WAITS):
                delay_s = 0.0
            return Reply(200, head, b"", delay_s)
        reply = admission.gateway_denial(request, call, verdict)
        reply.head += lines
        return reply

    def _livez(self, _request: Request) -> Reply:
        return Reply(200, JSON, b'{"status":"ok"}', 0.0)

    def _readyz(self, _request: Request) -> Reply:
        status, content = self._ready()
        return Reply(status, JSON, json.dumps(content, separators=(",", ":")).encode(), 0.0)


def _bad(error: RequestError) -> Reply:
    content = {"detail": {"error": "bad_request", "message": str(error)}}
    return Reply(error.status, JSON, json.dumps(content, separators=(",", ":")).encode("ascii"), 0.0)
