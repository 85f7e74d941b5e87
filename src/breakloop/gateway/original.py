"""The request a gateway asks about (SPEC D-3): read from `X-Original-*`, `X-Forwarded-*` or the path behind
`/v1/decision/envoy`. nginx sets the first, Traefik and Caddy the second; each passes on what the client made up of
the other, so where both are there and disagree the request is refused instead of believed."""

from __future__ import annotations

from collections.abc import Mapping

from breakloop.errors import RequestError
from breakloop.gateway.head import Request
from breakloop.model.call import Call
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
