"""The decision service (SPEC D-3, D-5): `/v1/decision*` for gateways that ask before they forward, and the health
endpoints. Makes a `Call`, asks the engine, renders the verdict; forwarding is the gateway's own business, and how it
ended may be told to `results`.

The request a gateway asks about (SPEC D-3): read from `X-Original-*`, `X-Forwarded-*` or the path behind
`/v1/decision/envoy`. nginx sets the first, Traefik and Caddy the second; each passes on what the client made up of
the other, so where both are there and disagree the request is refused instead of believed.
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
_SAID_ONCE = frozenset((_URI, _METHOD, _HOST, _LENGTH, *_FORWARDED))


def original_call(request: Request, request_id: str) -> Call:
    """Return the call behind a request to `/v1/decision`."""
    headers = request.headers
    target, method, host = headers.get(_URI), headers.get(_METHOD), headers.get(_HOST)
    unseen = target is not None and _LENGTH in headers and _hides_body(request)
    if request.repeated:
        _refuse_two_answers(request)
    if "x-forwarded-uri" in headers or "x-forwarded-method" in headers or "x-forwarded-host" in headers:
        target = _agreed(headers, _URI, "x-forwarded-uri")
        method = _agreed(headers, _METHOD, "x-forwarded-method")
        host = _agreed(headers, _HOST, "x-forwarded-host")
    return _call(request, request_id, target, method, host, unseen=unseen)


def nginx_call(request: Request, request_id: str) -> Call:
    """Return the call behind a request to `/v1/decision/nginx`: only what nginx itself sets is read."""
    headers = request.headers
    if request.repeated:
        _refuse_two_answers(request)
    unseen = _LENGTH in headers and _hides_body(request)
    return _call(request, request_id, headers.get(_URI), headers.get(_METHOD), headers.get(_HOST), unseen=unseen)


def envoy_call(request: Request, request_id: str) -> Call:
    """Return the call behind a request to `/v1/decision/envoy/...`: method, path and host are its own."""
    unseen = request.headers.get("x-envoy-auth-partial-body") == b"true"  # cut off: not the body that counts
    return _call(request, request_id, request.target[len(ENVOY) :], None, None, unseen=unseen)


def _agreed(headers: Mapping[str, bytes], original: str, forwarded: str) -> bytes | None:
    first = headers.get(original)
    second = headers.get(forwarded)
    if first and second and first != second:
        raise RequestError(400, f"{original} and {forwarded} contradict each other; the gateway has to set one of them")
    return first or second


def _refuse_two_answers(request: Request) -> None:
    """A gateway sets a field and a client adds it in another spelling (`X_Original_URI`): whose comes first is luck."""
    for name, value in request.repeated:
        if name in _SAID_ONCE and value != request.headers[name]:
            raise RequestError(400, f"{name} came twice and says two things; the gateway has to replace the client's")


def _hides_body(request: Request) -> bool:
    """The gateway says that there is a body, and did not send it. Believed only beside the URI that it sets."""
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
    return Call(  # by position: names cost a fifth more
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
    """Some gateways send the whole URL."""
    scheme, found, rest = target.partition(b"://")
    if found and scheme.lower() in {b"http", b"https"}:
        rest, mark, query = rest.partition(b"?")  # a slash in the query begins no path
        slash = rest.find(b"/")
        return (rest[slash:] if slash >= 0 else b"/") + mark + query
    raise RequestError(400, "the original URI has to begin with a slash")


_DECISION_METHODS = frozenset({"POST", "GET", "HEAD"})
NO_BUNDLE = b"no_bundle_loaded"  # the one refusal that is a failure: gateways do then what they do without an answer
_WAITS_ITSELF = b"/v1/decision?wait=client"  # the asker's own URL; other parts may be a client's
_NOT_FOUND = b'{"detail":{"error":"not_found","message":"Not a path of the decision service; see /v1/decision."}}'


class DecisionHandler:
    """A `Handler` for the server: one request in, one reply out."""

    __slots__ = ("_decides", "_judging", "_ready", "_results", "_routes")

    def __init__(
        self,
        judging: Admission,
        *,
        ready: Callable[[], tuple[int, dict[str, object]]],
        results: ReportedResults | None = None,
        decides: bool = True,
    ) -> None:
        self._judging = judging
        self._results = results  # None: nobody is asked how it ended
        self._ready = ready
        self._decides = decides  # False: only the health endpoints and debug sessions are open
        self._routes: dict[bytes, Callable[[Request], Reply | DeferredReply]] = {
            b"/livez": self._livez,
            b"/readyz": self._readyz,
        }
        if decides:
            self._routes |= {b"/v1/decision": self._generic, b"/v1/decision/nginx": self._nginx}
        if judging.debug is not None:
            self._routes[b"/v1/debug/session"] = judging.debug.open
            self._routes[b"/v1/debug/logout"] = judging.debug.close

    def __call__(self, request: Request) -> Any:
        """Answer one request: with a `Reply`, or a `DeferredReply` where state is beyond a connection."""
        target = request.target
        route = self._routes.get(target)
        if route is None:
            path = target.partition(b"?")[0]
            route = self._routes.get(path)
            if route is None:
                if self._decides and path.startswith(ENVOY + b"/"):
                    return self._envoy(request)
                if self._decides and self._results is not None and is_result(path):
                    return self._results.take(request)
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
        """nginx turns every refusal but 401 and 403 into a 500, and drops its body: both travel in header fields."""
        if reply.status != 200:
            reply.head += self._judging.answers.carried(reply.status, reply.body)
            reply.status, reply.body = 403, b""
        return reply

    def envoy(self, request: Request) -> Reply | DeferredReply:
        """Answer a question of Envoy's as it is meant."""
        return self._decide(request, envoy_call)

    def _envoy(self, request: Request) -> Reply | DeferredReply:
        reply = self._decide(request, envoy_call, self._for_envoy)
        return reply if isinstance(reply, DeferredReply) else self._for_envoy(reply)

    def _for_envoy(self, reply: Reply) -> Reply:
        """Envoy takes a 5xx for a failure, and lets the request pass where it is to fail open: a denial is no 5xx."""
        if reply.status >= 500 and NO_BUNDLE not in reply.head:
            reply.head += self._judging.answers.real_status(reply.status)
            reply.status = 429
        return reply

    def _decide(
        self,
        request: Request,
        read: Callable[[Request, str], Call],
        later: Callable[[Reply], Reply] = lambda reply: reply,
    ) -> Reply | DeferredReply:
        """Return the reply, or what becomes one: `later` is done to it then."""
        began_ns = perf_counter_ns()
        judging = self._judging
        request_id = judging.request_id()
        try:
            call = read(request, request_id)
        except RequestError as error:
            return _bad(error)
        call.began_ns = began_ns
        results = self._results
        if results is not None:
            results.expect(call)
        if judging.remote is not None:
            pending = DeferredReply()
            judging.ask(
                request,
                call,
                lambda verdict, fields: pending.resolve(lambda: later(self._decided(request, call, verdict, fields))),
            )
            return pending
        fields = b""
        if judging.debug is not None or "content-encoding" in request.headers:
            verdict, fields = judging.decide(request, call)
        else:  # the usual case, without a detour: a call and a tuple cost 2 % here
            try:
                verdict = judging.engine.decide(call)
            except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not stop any traffic
                verdict = judging.fault(error)
        return self._decided(request, call, verdict, fields)

    def _decided(self, request: Request, call: Call, verdict: Verdict, fields: bytes) -> Reply:
        judging, results = self._judging, self._results
        if judging.traces is not None:
            judging.traces.decided(call, verdict)
        judging.timings.decision.note(perf_counter_ns() - call.began_ns)
        if verdict.allowed:
            if results is not None:
                results.keep(call)
            head = judging.answers.allowed(verdict, call.request_id)
            if fields:
                head += fields
            delay_s = verdict.delay_ms / 1000
            if delay_s and request.target.startswith(_WAITS_ITSELF):
                delay_s = 0.0
            return Reply(200, head, b"", delay_s)
        reply = judging.denied(request, call, verdict)
        reply.head += fields
        return reply

    def _livez(self, _request: Request) -> Reply:
        return Reply(200, JSON, b'{"status":"ok"}', 0.0)

    def _readyz(self, _request: Request) -> Reply:
        status, content = self._ready()
        return Reply(status, JSON, json.dumps(content, separators=(",", ":")).encode(), 0.0)


def _bad(error: RequestError) -> Reply:
    content = {"detail": {"error": "bad_request", "message": str(error)}}
    return Reply(error.status, JSON, json.dumps(content, separators=(",", ":")).encode("ascii"), 0.0)
