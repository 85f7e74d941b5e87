"""What surrounds every answer of the admin plane (SPEC Y-3): only known Host names, so that no other site's name leads
a browser here; bodies of a bounded size; header fields that keep browsers strict; one shape for what goes wrong. Who
may ask is `guard`'s business."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from breakloop.admin.faults import Fault
from breakloop.admin.operations import BODY_MAX, BUNDLE_MAX

_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not listened on
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Hosts:
    """Which Host names are ours."""

    __slots__ = ("_any_address", "_names")

    def __init__(self, listening: str, more: Collection[str] = ()) -> None:
        self._any_address = listening in _WILDCARDS
        self._names = {name.lower().rstrip(".") for name in (listening, *more) if name} | _LOOPBACK_NAMES

    def known(self, host: str) -> bool:
        """Tell whether a Host header names us. An address that somebody typed is no name that could be rebound."""
        name = _without_port(host).lower().rstrip(".")
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _small(_scope: Scope) -> int:
    return BODY_MAX


class Shield:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, hosts: Hosts, body_max: Callable[[Scope], int] = _small) -> None:
        """`body_max` returns how large the body of a request may be."""
        self._app = app
        self._hosts = hosts
        self._body_max = body_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, and nothing out without our header fields."""
        if scope["type"] != "http":  # no websockets here; lifespan is nobody's
            return
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                _add(MutableHeaders(scope=message), scope)
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, _bounded(receive, self._body_max(scope)), guarded)
        except Fault as fault:
            if not begun:
                await fault.response()(scope, receive, guarded)
        except Exception:  # the edge: a mistake of ours is logged and answered, and ends nothing else
            logging.getLogger("breakloop").exception("admin request failed")
            if begun:
                raise
            await Fault(500, "a mistake of ours; the log has it").response()(scope, receive, guarded)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if not self._hosts.known(headers.get("host", "")):
            raise Fault(421, "the Host header names somebody else (set admin_hosts to allow this name)")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > BUNDLE_MAX:
            raise Fault(413, f"the body is larger than {BUNDLE_MAX} bytes")


def _bounded(receive: Receive, limit: int) -> Receive:
    size = 0

    async def bounded() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise Fault(413, f"the body is larger than {limit} bytes")
        return message

    return bounded


def _add(headers: MutableHeaders, scope: Scope) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")
    if scope["scheme"] == "https":
        headers["Strict-Transport-Security"] = "max-age=31536000"
