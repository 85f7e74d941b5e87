"""The request a gateway asks about (SPEC D-3): read from `X-Original-*`, `X-Forwarded-*` or the path behind
`/v1/decision/envoy`. nginx sets the first, Traefik and Caddy the second; each passes on what the client made up of
the other, so where both are there and disagree the request is refused instead of believed."""

from __future__ import annotations

from collections.abc import Mapping

from breakloop.errors import RequestError
from breakloop.gateway.head import Request
from breakloop.model.call import Call
from breakloop.policy.paths import normalise, normalise_host, split_target, strip_agent

ENVOY = b"/v1/decision/envoy"


def original_call(request: Request, request_id: str) -> Call:
    """Return the call behind a request to `/v1/decision`."""
    headers = request.headers
    target = _agreed(headers, "x-original-uri", "x-forwarded-uri") or request.target
    method = _agreed(headers, "x-original-method", "x-forwarded-method")
    host = _agreed(headers, "x-original-host", "x-forwarded-host") or headers.get("host", b"")
    return _call(request, request_id, target, method, host)


def nginx_call(request: Request, request_id: str) -> Call:
    """Return the call behind a request to `/v1/decision/nginx`: only what nginx itself sets is read."""
    headers = request.headers
    target = headers.get("x-original-uri") or request.target
    host = headers.get("x-original-host") or headers.get("host", b"")
    return _call(request, request_id, target, headers.get("x-original-method"), host)


def envoy_call(request: Request, request_id: str) -> Call:
    """Return the call behind a request to `/v1/decision/envoy/...`: method, path and host are its own."""
    return _call(request, request_id, request.target[len(ENVOY) :], None, request.headers.get("host", b""))


def _agreed(headers: Mapping[str, bytes], original: str, forwarded: str) -> bytes | None:
    first = headers.get(original)
    second = headers.get(forwarded)
    if first and second and first != second:
        raise RequestError(400, f"{original} and {forwarded} contradict each other; the gateway has to set one of them")
    return first or second


def _call(request: Request, request_id: str, target: bytes, method: bytes | None, host: bytes) -> Call:
    if not target.startswith(b"/"):
        target = _without_authority(target)
    path, query = split_target(target)
    headers = request.headers
    plain = normalise(path)
    agent = ""
    if plain.startswith("/agents/"):
        agent, plain = strip_agent(plain)
    hidden = headers.get("x-original-content-length", b"0")
    return Call(
        method.decode("latin-1") if method else request.method,
        plain,
        host=normalise_host(host),
        query=query.decode("latin-1"),
        headers=headers,
        peer=request.peer,
        body=request.body,
        body_unseen=hidden not in {b"0", b""} and not request.body,
        request_id=request_id,
        path_agent=agent,
        repeated=request.repeated,
    )


def _without_authority(target: bytes) -> bytes:
    """Some gateways send the whole URL."""
    scheme, found, rest = target.partition(b"://")
    if found and scheme.lower() in {b"http", b"https"}:
        rest, mark, query = rest.partition(b"?")  # a slash in the query begins no path
        slash = rest.find(b"/")
        return (rest[slash:] if slash >= 0 else b"/") + mark + query
    raise RequestError(400, "the original URI has to begin with a slash")
