"""The decision service (SPEC D-3, D-5): `/v1/decision*` for gateways that ask before they forward, and the health
endpoints. Makes a `Call`, asks the engine, renders the verdict; forwarding is the gateway's own business."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter_ns

from breakloop.engine import Engine
from breakloop.errors import RequestError
from breakloop.gateway.answers import Answers
from breakloop.gateway.bounds import Limits
from breakloop.gateway.debug import DebugSessions
from breakloop.gateway.head import Reply, Request
from breakloop.gateway.hub import log_fault
from breakloop.gateway.original import ENVOY, envoy_call, nginx_call, original_call
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import Descriptors
from breakloop.wire import denial
from breakloop.wire.encoding import EncodingError, decoded

_JSON = b"Content-Type: application/json\r\n"
_PROBLEM = b"Content-Type: application/problem+json\r\n"
_BODY_BYTES = Limits().body_bytes
_DECISION_METHODS = frozenset({"POST", "GET", "HEAD"})
_NOT_FOUND = b'{"detail":{"error":"not_found","message":"Not a path of the decision service; see /v1/decision."}}'


class DecisionDoor:
    """A `Handler` for the server: one request in, one reply out."""

    __slots__ = (
        "_answers",
        "_body_bytes",
        "_debug",
        "_descriptors",
        "_engine",
        "_next_id",
        "_ready",
        "_routes",
        "_run_id",
    )

    def __init__(
        self,
        engine: Engine,
        descriptors: Descriptors,
        answers: Answers,
        *,
        ready: Callable[[], tuple[int, dict[str, object]]],
        run_id: str,
        debug: DebugSessions | None = None,
        body_bytes: int = _BODY_BYTES,
    ) -> None:
        self._engine = engine
        self._descriptors = descriptors
        self._answers = answers
        self._ready = ready
        self._debug = debug
        self._run_id = run_id
        self._next_id = 0
        self._body_bytes = body_bytes  # of a body once it is unpacked
        self._routes: dict[bytes, Callable[[Request], Reply]] = {
            b"/v1/decision": self._generic,
            b"/v1/decision/nginx": self._nginx,
            b"/livez": self._livez,
            b"/readyz": self._readyz,
        }
        if debug is not None:
            self._routes[b"/v1/debug/session"] = debug.open
            self._routes[b"/v1/debug/logout"] = debug.close

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        target = request.target
        route = self._routes.get(target)
        if route is None:
            path = target.partition(b"?")[0]
            route = self._routes.get(path)
            if route is None:
                if path.startswith(ENVOY + b"/"):
                    return self._decide(request, envoy_call)
                return Reply(404, _JSON, _NOT_FOUND, 0.0)
        return route(request)

    def _generic(self, request: Request) -> Reply:
        if request.method not in _DECISION_METHODS:
            return Reply(405, b"Allow: GET, HEAD, POST\r\n", b"", 0.0)
        return self._decide(request, original_call)

    def _nginx(self, request: Request) -> Reply:
        """nginx turns every refusal but 401 and 403 into a 500, and drops its body: both travel in header fields."""
        reply = self._decide(request, nginx_call)
        if reply.status != 200:
            reply.head += self._answers.carried(reply.status, reply.body)
            reply.status, reply.body = 403, b""
        return reply

    def _decide(self, request: Request, read: Callable[[Request, str], Call]) -> Reply:
        number = self._next_id
        self._next_id = number + 1
        request_id = f"{self._run_id}{number:x}"
        try:
            call = read(request, request_id)
        except RequestError as error:
            return _bad(error)
        try:
            if "content-encoding" in request.headers:
                self._unpack(call)
            if self._debug is not None and self._debug.holds(request):
                return self._decide_in_debug(request, call)
            verdict = self._engine.decide(call)
            if verdict.allowed:
                return Reply(200, self._answers.allowed(verdict, request_id), b"", verdict.delay_ms / 1000)
            return self._denied(request, call, verdict)
        except Exception as error:  # noqa: BLE001 - the outermost edge: a fault of ours must not stop anybody's traffic
            self._engine.tally.faults += 1
            log_fault(error, "allowed")
            return Reply(200, self._answers.allowed(Verdict(), request_id))

    def _denied(self, request: Request, call: Call, verdict: Verdict) -> Reply:
        head = self._answers.denied(verdict, call.request_id, self._descriptors.caller(call))
        if denial.PROBLEM.encode() in request.headers.get("accept", b""):
            return Reply(verdict.status, head + _PROBLEM, denial.problem(verdict), 0.0)
        chat = self._descriptors.chat(call)
        dialect = chat.dialect if chat else ""
        rpc_id = denial.rpc_id(call.body) if dialect == "mcp" else None
        body = denial.body(verdict, dialect, request_id=call.request_id, rpc_id=rpc_id)
        return Reply(verdict.status, head + _JSON, body, 0.0)

    def _unpack(self, call: Call) -> None:
        """Judge a compressed body by what is in it; one that stays packed is judged as the bytes that it is."""
        if not call.body or call.body_unseen:
            return
        fields = [call.headers["content-encoding"]]
        fields += [value for name, value in call.repeated if name == "content-encoding"]
        try:
            call.body = decoded(call.body, b",".join(fields), self._body_bytes)
        except EncodingError as error:
            self._engine.not_unpacked(call, error.reason)
            return
        # The field spoke of the packed bytes; readers that see it would not touch the plain ones.
        call.headers = {name: value for name, value in call.headers.items() if name != "content-encoding"}

    def _decide_in_debug(self, request: Request, call: Call) -> Reply:
        assert self._debug is not None  # noqa: S101 - only called with one
        started = perf_counter_ns()
        verdict = self._engine.decide(call)
        latency_us = (perf_counter_ns() - started) // 1000
        fields = self._debug.fields(call, verdict, self._engine.bundle, latency_us)
        if verdict.allowed:
            head = self._answers.allowed(verdict, call.request_id) + fields
            return Reply(200, head, b"", verdict.delay_ms / 1000)
        reply = self._denied(request, call, verdict)
        reply.head += fields
        return reply

    def _livez(self, _request: Request) -> Reply:
        return Reply(200, _JSON, b'{"status":"ok"}', 0.0)

    def _readyz(self, _request: Request) -> Reply:
        status, content = self._ready()
        return Reply(status, _JSON, json.dumps(content, separators=(",", ":")).encode(), 0.0)


def _bad(error: RequestError) -> Reply:
    content = {"detail": {"error": "bad_request", "message": str(error)}}
    return Reply(error.status, _JSON, json.dumps(content, separators=(",", ":")).encode("ascii"), 0.0)
