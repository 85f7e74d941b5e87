"""The decision service: `/v1/decision*` for gateways that ask before they forward, and the health endpoints.

The request in question is read from `X-Original-*` (set by nginx), `X-Forwarded-*` (set by Traefik and Caddy), or the
path after `/v1/decision/envoy`. Gateways pass on fields that a client invented, so a request in which both kinds are
present and disagree is rejected.

Gateways that forward requests themselves may report the outcome to `POST /v1/decision/{result_id}/result`. Then
detectors know failed and running requests and limits know the actual usage, as behind the proxy. A report becomes an
`Answer`, which the engine settles. Only whoever asked for a decision knows its result id, which is a secret; request
ids are sequential, and clients see them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hmac import compare_digest
from secrets import token_hex
from time import perf_counter_ns
from typing import Any, Final, Literal

import msgspec

from breakloop.clock import Clock
from breakloop.dialects import content, registry
from breakloop.dialects.answers import CALLS_MAX, TEXT_MAX_CHARS, TOKENS_MAX, tokens
from breakloop.dialects.openai_chat import openai_usage
from breakloop.engine.decision_state import PendingResult
from breakloop.engine.engine import Engine
from breakloop.errors import RequestError
from breakloop.gateway.admission import CALLER_ERRORS, JSON, Admission
from breakloop.gateway.exchange import DeferredReply
from breakloop.gateway.http_request import TWO_DIGITS, Reply, Request
from breakloop.gateway.http_response import error_reply
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call, ToolCall, Usage
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import Descriptors
from breakloop.policy.paths import agent_and_path, normalise_host
from breakloop.store.memory import ExpiringTable

ENVOY = b"/v1/decision/envoy"
_URI, _METHOD, _HOST = "x-original-uri", "x-original-method", "x-original-host"
_LENGTH = "x-original-content-length"
_FORWARDED = ("x-forwarded-uri", "x-forwarded-method", "x-forwarded-host")
_OTHERS = frozenset((_LENGTH, *_FORWARDED))  # what else a call may depend on, and few gateways send
_UNIQUE = frozenset((_URI, _METHOD, _HOST, _LENGTH, *_FORWARDED))


class _Asked(msgspec.Struct, frozen=True, gc=False):
    """What follows from the head of a request to `/v1/decision`, but for the URI. Kept with its template."""

    method: str
    host: str


def original_call(request: Request, request_id: str) -> Call:
    """Return the call that a request to `/v1/decision` asks about."""
    headers, template = request.headers, request.template
    if template is not None:
        asked: _Asked | Literal[False] | None = template.asked
        if asked is None:
            asked = template.asked = _asked(request, template.varying)
        if asked and headers[_URI]:
            return _call_to(request, request_id, headers[_URI], asked.method, asked.host)
    target, method, host = headers.get(_URI), headers.get(_METHOD), headers.get(_HOST)
    unseen = target is not None and _LENGTH in headers and _hides_body(request)
    if request.repeated:
        _reject_ambiguous(request)
    if "x-forwarded-uri" in headers or "x-forwarded-method" in headers or "x-forwarded-host" in headers:
        target = _agreed(headers, _URI, "x-forwarded-uri")
        method = _agreed(headers, _METHOD, "x-forwarded-method")
        host = _agreed(headers, _HOST, "x-forwarded-host")
    return _call(request, request_id, target, method, host, unseen=unseen)


def _asked(request: Request, varying: Sequence[str]) -> _Asked | Literal[False]:
    """Return what all requests with this head ask about, but for the URI; False if they may differ in more, or if one
    of them may be ambiguous.
    """
    headers = request.headers
    if (
        request.repeated
        or _URI not in headers
        or not _OTHERS.isdisjoint(headers)
        or _METHOD in varying
        or _HOST in varying
    ):
        return False
    return _Asked(*_method_and_host(request, headers.get(_METHOD), headers.get(_HOST)))


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
        raise RequestError(400, f"{original} and {forwarded} differ; configure the gateway to set only one of them")
    return first or second


def _reject_ambiguous(request: Request) -> None:
    """Reject a field that the gateway set and a client sent in another spelling: `X_Original_URI`."""
    for name, value in request.repeated:
        if name in _UNIQUE and value != request.headers[name]:
            remedy = "configure the gateway to overwrite the client's header"
            raise RequestError(400, f"{name} was sent twice with different values; {remedy}")


def _hides_body(request: Request) -> bool:
    """Return whether the gateway declares a body that it did not send. Used only with the URI that it sets."""
    return not request.body and request.headers[_LENGTH] not in {b"0", b""}


def _call(
    request: Request, request_id: str, target: bytes | None, method: bytes | None, host: bytes | None, *, unseen: bool
) -> Call:
    return _call_to(request, request_id, target or request.target, *_method_and_host(request, method, host), unseen)


def _method_and_host(request: Request, method: bytes | None, host: bytes | None) -> tuple[str, str]:
    """Return them as a gateway states them, or else those of its own request."""
    named = method.decode("latin-1") if method else request.method
    return named, normalise_host(host or request.headers.get("host", b""))


def _call_to(
    request: Request,
    request_id: str,
    target: bytes,
    method: str,
    host: str,
    unseen: bool = False,  # noqa: FBT001, FBT002 - by position, as below
) -> Call:
    if target[:1] != b"/":
        target = _without_authority(target)
    path, _, query = target.partition(b"?")
    agent, plain = agent_and_path(path)
    return Call(  # by position: keyword arguments cost a fifth more
        method,
        plain,
        host,
        query.decode("latin-1"),
        request.headers,
        request.peer,
        request.body,
        unseen,
        request_id,
        agent,
        "",
        request.repeated,
        request.template,
    )


def _without_authority(target: bytes) -> bytes:
    """Remove scheme and host: some gateways send the whole URL."""
    scheme, found, rest = target.partition(b"://")
    if found and scheme.lower() in {b"http", b"https"}:
        rest, mark, query = rest.partition(b"?")  # a slash in the query is not part of the path
        slash = rest.find(b"/")
        return (rest[slash:] if slash >= 0 else b"/") + mark + query
    raise RequestError(400, "the original URI must begin with a slash")


KEPT_S: Final = 900.0  # a result is accepted so long after the decision
REPORTER_S: Final = 600.0  # after a report, a caller is expected to report all results for so long
BODY_MAX_BYTES: Final = 1024 * 1024
_OPEN_MAX: Final = 100_000  # 0.2 to 0.5 KB each
_BLOCK: Final = 256  # places: the last two digits of one are its place in the block
_DIGITS: Final = 27  # random ones of a result id: 108 bits
# The request id, the random digits, and the place.
_RESULT_ID: Final = re.compile(r"([0-9A-Za-z-]{1,64})\.([0-9a-f]{27})([0-9a-f]{5})").fullmatch
_REPORTERS_MAX: Final = 10_000
_BEFORE: Final = b"/v1/decision/"
_AFTER: Final = b"/result"
_DIGEST: Final = "<digest:"
_DIGEST_MAX: Final = 256
_ERROR_FROM: Final = 400
_NAME_SHOWN: Final = 100
_NOT_OPEN: Final = (
    b'{"detail":{"error":"not_found","message":"No result is awaited under this result id: it was told already, the '
    b'decision was a denial or is more than 15 minutes old, or nothing depends on it."}}'
)


class ReportedResults:
    """Keeps allowed requests until their results are reported. Call `expect` before a decision, `keep` after it.

    The last `max_open` are in a ring, with up to a block of older ones. A result id ends in random digits and the place
    in the ring: a place is found without a hash, and the oldest request is replaced without a search. The random digits
    of a block of places are one text, because an object for each request costs more than all the rest of `keep`.
    """

    def __init__(self, engine: Engine, descriptors: Descriptors, clock: Clock, max_open: int = _OPEN_MAX) -> None:
        self._engine = engine
        self._descriptors = descriptors
        self._clock = clock
        blocks = -(-max_open // _BLOCK) + 1
        self._ring: list[PendingResult | None] = [None] * (blocks * _BLOCK)
        self._secrets = [""] * blocks  # the random digits of each block
        self._drawn = ""  # those of the block at `_next`
        self._block = ""  # the digits of its place
        self._next = 0  # the place of the next one
        self.reporters = ExpiringTable(_REPORTERS_MAX)  # empty if no caller has reported a result

    def __len__(self) -> int:
        return sum(pending is not None for pending in self._ring)

    def expect(self, call: Call) -> None:
        """Prepare a call whose result may be reported."""
        call.reported = True
        if self.reporters:
            call.tracked = self.is_reporter(call)

    def is_reporter(self, call: Call) -> bool:
        """Return whether the caller reports results: then it is known which of its requests are running."""
        return self.reporters.live(self._descriptors.caller(call), self._clock.steady()) is not None

    def keep(self, call: Call) -> str:
        """Keep a call that was allowed and awaits its result; return its result id."""
        place = self._next
        inside = place % _BLOCK
        if not inside:
            place = self._begin_block(place)
        self._next = place + 1
        self._ring[place] = self._engine.pending_result(call)
        at = inside * _DIGITS
        return f"{call.request_id}.{self._drawn[at : at + _DIGITS]}{self._block}{TWO_DIGITS[inside]}"

    def _begin_block(self, place: int) -> int:
        """Draw the random digits of the block at a place, and drop the requests in it. Returns the place, which is that
        of the first block after the last one.
        """
        place %= len(self._ring)
        self._block = f"{place // _BLOCK:03x}"
        self._ring[place : place + _BLOCK] = [None] * _BLOCK
        self._secrets[place // _BLOCK] = self._drawn = token_hex(_BLOCK * _DIGITS // 2)
        return place

    def _find(self, result_id: str, now: float) -> tuple[int, PendingResult] | None:
        """Return the request with a result id, and its place, if its result is awaited."""
        found = _RESULT_ID(result_id)
        place = int(found[3], 16) if found else len(self._ring)
        pending = self._ring[place] if place < len(self._ring) else None
        if found is None or pending is None or pending.kept_at + KEPT_S <= now:
            return None
        at = place % _BLOCK * _DIGITS
        secret = self._secrets[place // _BLOCK][at : at + _DIGITS]
        return (place, pending) if compare_digest(secret, found[2]) else None

    def handle(self, request: Request) -> Reply:
        """Handle `POST /v1/decision/{result_id}/result`."""
        if request.method != "POST":
            return Reply(405, b"Allow: POST\r\n", b"", 0.0)
        result_id = request.target.partition(b"?")[0][len(_BEFORE) : -len(_AFTER)].decode("latin-1")
        now = self._clock.steady()
        found = self._find(result_id, now)
        if found is None:
            return Reply(404, JSON, _NOT_OPEN, 0.0)
        place, pending = found
        try:
            answer = read_report(request)
        except RequestError as error:
            return error_reply(error.status, str(error))
        self._ring[place] = None
        self.reporters.put(pending.caller, (now + REPORTER_S,), now)
        request_id = result_id.partition(".")[0]
        self._engine.settle_result(pending, request_id, answer, with_charges=_has_usage(answer))
        return Reply(204, b"", b"", 0.0)


def _has_usage(answer: Answer) -> bool:
    """Return whether a report contains what was used: by a count, by content, or by an error, which costs nothing."""
    if answer.usage is not None or answer.calls:
        return True
    if answer.status >= _ERROR_FROM and answer.status != CLIENT_LEFT:
        return True
    return bool(answer.text) and not answer.text.startswith(_DIGEST)


def is_result(path: bytes) -> bool:
    """Return whether `ReportedResults.handle` is responsible for a path without its query."""
    return path.startswith(_BEFORE) and path.endswith(_AFTER) and len(path) > len(_BEFORE) + len(_AFTER)


def read_report(request: Request) -> Answer:
    """Parse a report. The `RequestError` of an invalid one names the field and what to send instead."""
    if len(request.body) > BODY_MAX_BYTES:
        raise RequestError(413, f"a result has at most {BODY_MAX_BYTES} bytes: send a digest instead of a long text")
    if request.headers.get("content-encoding", b"identity").lower() != b"identity":
        raise _wrong("Content-Encoding", "send the result uncompressed")
    report = content.load(request.body)
    if not isinstance(report, dict):
        raise RequestError(400, 'the body must be a JSON object such as {"status": 200}')
    status = _status(report)
    return Answer(
        status,
        text=_text(report),
        calls=_tool_calls(report.get("tool_calls")),
        usage=_usage(report.get("usage")),
        complete=status not in {NO_ANSWER, CLIENT_LEFT},
        unkept_chars=max(0, len(report.get("text") or "") - TEXT_MAX_CHARS),
    )


def _wrong(field: str, remedy: str) -> RequestError:
    return RequestError(400, f"{field}: {remedy}")


def _status(report: dict[str, Any]) -> int:
    remedy = "send the HTTP status of the response as a number, or 0 if there was none (refused, cut off, timeout)"
    if report.get("status") is None:
        raise _wrong("status", f"is missing; {remedy}")
    status = content.count(report["status"])
    if status is None or not (status == NO_ANSWER or 100 <= status <= 999):
        raise _wrong("status", f"is not a status; {remedy}")
    return status


def _text(report: dict[str, Any]) -> str:
    """Return the text, or a digest in its place, in the form that media have in a conversation."""
    text, digest = report.get("text"), report.get("digest")
    if text is not None:
        if not isinstance(text, str):
            raise _wrong("text", "send the text of the response as a string, or leave it out")
        return content.clean(text[:TEXT_MAX_CHARS])
    if digest is None:
        return ""
    if not isinstance(digest, str) or len(digest) > _DIGEST_MAX:
        raise _wrong("digest", f"send a string of at most {_DIGEST_MAX} characters, equal for equal responses")
    return content.clean(f"{_DIGEST}{digest}>") if digest else ""


def _tool_calls(calls: Any) -> tuple[ToolCall, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise _wrong("tool_calls", 'send a list such as [{"name": "search", "arguments": {}}]')
    return tuple([_tool_call(item, f"tool_calls[{number}]") for number, item in enumerate(calls[:CALLS_MAX])])


def _tool_call(item: Any, field: str) -> ToolCall:
    """Read a call in our format, or in that of OpenAI (`function`), Anthropic (`input`) or Gemini (`functionCall`)."""
    if not isinstance(item, dict):
        raise _wrong(field, "send an object with name and arguments")
    made = item.get("function") or item.get("functionCall") or item
    name = made.get("name") if isinstance(made, dict) else None
    if not isinstance(name, str) or not name:
        raise _wrong(f"{field}.name", "send the name of the tool as a string")
    given = next((made[key] for key in ("arguments", "input", "args") if key in made), None)
    return ToolCall(content.clean(name), content.clean(content.arguments(given)))


def _usage(usage: Any) -> Usage | None:
    """Read tokens in our format, or in that of OpenAI (both APIs), Anthropic or Gemini."""
    if usage is None:
        return None
    _check_tokens(usage, "usage")
    for name, value in usage.items():
        if name.endswith("_details") and value is not None:
            _check_tokens(value, f"usage.{name}")
    dialect = registry.DIALECTS.of_usage(usage)
    if dialect is not None:
        return dialect.answer_builder().read_usage(usage)
    found = openai_usage(usage)
    if found is None:
        return None
    return found._replace(cache_write_tokens=found.cache_write_tokens or tokens(usage, "cache_write_tokens"))


def _check_tokens(counts: Any, field: str) -> None:
    """Validate token counts. Readers of responses are tolerant, but a reporting gateway gets an error."""
    if not isinstance(counts, dict):
        raise _wrong(field, 'send an object such as {"input_tokens": 100, "output_tokens": 20}')
    for name, value in counts.items():
        if not name.endswith(("_tokens", "TokenCount")) or value is None:
            continue
        number = content.count(value)
        if number is None or not 0 <= number <= TOKENS_MAX:
            remedy = f"send a whole number of tokens, from 0 to {TOKENS_MAX:,}"
            raise _wrong(f"{field}.{name}"[:_NAME_SHOWN], remedy)


_DECISION_METHODS = frozenset({"POST", "GET", "HEAD"})
NO_BUNDLE = b"no_bundle_loaded"  # the only denial that is a failure: gateways then act as without a response
_GENERIC = b"/v1/decision"
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
            nginx = partial(self._decide, read=nginx_call, adapt=self._for_nginx)
            self._routes |= {_GENERIC: self._generic, b"/v1/decision/nginx": nginx}
        if admission.debug is not None:
            self._routes[b"/v1/debug/session"] = admission.debug.open
            self._routes[b"/v1/debug/logout"] = admission.debug.close

    def __call__(self, request: Request) -> Any:
        """Return a `Reply`, or a `DeferredReply` where the state is in a remote store."""
        target = request.target
        if target == _GENERIC and self._decides and request.method in _DECISION_METHODS:
            return self._decide(request, original_call)
        route = self._routes.get(target)
        if route is None:
            path = target.partition(b"?")[0]
            route = self._routes.get(path)
            if route is None:
                if self._decides and path.startswith(ENVOY + b"/"):
                    return self._decide(request, envoy_call, self._for_envoy, reported=False)
                if self._decides and self._results is not None and is_result(path):
                    return self._result(request, self._results)
                return Reply(404, JSON, _NOT_FOUND, 0.0)
        return route(request)

    def _result(self, request: Request, results: ReportedResults) -> Reply:
        if self._admission.needs_key:
            refusal = self._admission.unknown_caller(Call("POST", "", headers=request.headers), asked=True)
            if refusal is not None:
                return refused_caller(*refusal)
        return results.handle(request)

    def _generic(self, request: Request) -> Reply | DeferredReply:
        if request.method not in _DECISION_METHODS:
            return Reply(405, b"Allow: GET, HEAD, POST\r\n", b"", 0.0)
        return self._decide(request, original_call)

    def _for_nginx(self, reply: Reply) -> Reply:
        """nginx turns every denial but 401 and 403 into a 500 and drops its body: send both in header fields."""
        if reply.status != 200:
            reply.head += self._admission.headers.carried(reply.status, reply.body)
            reply.status = 403
            reply.body = b""
        return reply

    def envoy(self, request: Request) -> Reply | DeferredReply:
        """Decide about a request of Envoy over gRPC, which can express every status."""
        return self._decide(request, envoy_call, reported=False)

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
        adapt: Callable[[Reply], Reply] | None = None,
        *,
        reported: bool = True,
    ) -> Reply | DeferredReply:
        """Return the reply, now or deferred, as `adapt` changes it for a gateway. `reported` is False for Envoy: it
        passes our header fields to the client, which must not know the result id.
        """
        began_ns = perf_counter_ns()
        admission = self._admission
        try:
            ids = admission.unused_ids or admission.renew_ids()  # as in `Admission.request_id`, without the call
            call = read(request, ids.pop())
        except RequestError as error:
            refused = _bad(error)
            return refused if adapt is None else adapt(refused)
        if admission.needs_key:
            refusal = admission.unknown_caller(call, asked=True)
            if refusal is not None:
                refused = refused_caller(*refusal)
                return refused if adapt is None else adapt(refused)
        call.began_ns = began_ns
        results = self._results
        if reported and results is not None:
            if results.reporters:
                results.expect(call)
            else:
                call.reported = True
        if admission.remote is not None:
            return self._decide_remotely(request, call, adapt)
        lines = b""
        if admission.debug is not None or "content-encoding" in request.headers:
            verdict, lines = admission.decide(request, call)
        else:  # the usual case: a further call and a tuple would cost 2 %
            try:
                verdict = admission.engine.decide(call)
            except Exception as error:  # noqa: BLE001 - fail-open edge: a fault of ours must not stop traffic
                verdict = admission.fail_open(error)
        return self._decided(request, call, verdict, lines, adapt)

    def _decide_remotely(self, request: Request, call: Call, adapt: Callable[[Reply], Reply] | None) -> DeferredReply:
        # A method of its own: the variables of a function that another one uses take longer.
        pending = DeferredReply()

        def decided(verdict: Verdict, lines: bytes = b"") -> None:
            pending.resolve(lambda: self._decided(request, call, verdict, lines, adapt))

        self._admission.decide_remote(request, call, decided)
        return pending

    def _decided(
        self, request: Request, call: Call, verdict: Verdict, lines: bytes, adapt: Callable[[Reply], Reply] | None
    ) -> Reply:
        """Return the reply for a verdict. `lines` are the header lines of a debug session."""
        admission, results = self._admission, self._results
        if admission.traces is not None:
            admission.traces.decided(call, verdict)
        took_ns, timings = perf_counter_ns() - call.began_ns, admission.timings.decision
        timings.counts[took_ns.bit_length()] += 1  # as in `note`, without the call
        timings.total_ns += took_ns
        if verdict.allowed:
            result_id = ""
            if call.reported and results is not None and call.decision.awaits_result:
                result_id = results.keep(call)
            head = admission.headers.allowed(verdict, call.request_id, result_id)
            if lines:
                head += lines
            delay_s = verdict.delay_ms / 1000
            if delay_s and request.target.startswith(_CLIENT_WAITS):
                delay_s = 0.0
            return Reply(200, head, b"", delay_s)  # for all gateways alike
        reply = admission.gateway_denial(request, call, verdict)
        reply.head += lines
        return reply if adapt is None else adapt(reply)

    def _livez(self, _request: Request) -> Reply:
        return Reply(200, JSON, b'{"status":"ok"}', 0.0)

    def _readyz(self, _request: Request) -> Reply:
        status, shown = self._ready()
        return Reply(status, JSON, json.dumps(shown, separators=(",", ":")).encode(), 0.0)


def refused_caller(status: int, why: str) -> Reply:
    """Return the refusal of a request whose caller is unknown or ambiguous."""
    detail = {"error": CALLER_ERRORS[status], "message": why}
    return Reply(status, JSON, json.dumps({"detail": detail}, separators=(",", ":")).encode("ascii"), 0.0)


def _bad(error: RequestError) -> Reply:
    detail = {"error": "bad_request", "message": str(error)}
    return Reply(error.status, JSON, json.dumps({"detail": detail}, separators=(",", ":")).encode("ascii"), 0.0)
