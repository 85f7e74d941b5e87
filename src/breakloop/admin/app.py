"""The admin application: security, authentication and routes as one ASGI application, and its server.

Every response passes `SecurityMiddleware`: only known Host names, so that DNS rebinding does not work; bodies of
limited size; strict header fields for browsers; one shape of errors. The server is uvicorn on the running event
loop, without signal handlers and log settings of its own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any, Final

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from breakloop.admin.actions import AdminServices
from breakloop.admin.api import api_routes, body_max
from breakloop.admin.api.operations import BUNDLE_MAX
from breakloop.admin.auth import METRICS, Auth, AuthMiddleware
from breakloop.admin.dashboard import dashboard_routes, page_renderer
from breakloop.admin.dashboard.render import PageRenderer
from breakloop.admin.errors import CODES, ApiError, fault_of
from breakloop.errors import BreakloopError
from breakloop.gateway.server import bind
from breakloop.policy.client import is_loopback

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


class AllowedHosts:
    def __init__(self, listening: str, more: Collection[str] = ()) -> None:
        self._any_address = listening in _WILDCARDS
        self._names = {name.lower().rstrip(".") for name in (listening, *more) if name} | _LOOPBACK_NAMES

    def known(self, host: str) -> bool:
        """Return whether a Host header is accepted. An IP address is not a name that could be rebound."""
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


class SecurityMiddleware:
    """The outermost layer of the application. `trusts` tells whether a peer is a proxy that may name the scheme."""

    def __init__(
        self, app: ASGIApp, hosts: AllowedHosts, trusts: Callable[[str], bool] = lambda _address: False
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._trusts = trusts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # neither websockets nor lifespan events are used
            return
        if self._is_tls_ended(scope):
            scope = {**scope, "scheme": "https"}
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                _add(MutableHeaders(scope=message), scope)
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, _bounded(receive, body_max(scope)), guarded)
        except ApiError as fault:
            if not begun:
                await fault.response()(scope, receive, guarded)
        except Exception:  # an internal error is logged and answered; other requests go on
            logging.getLogger("breakloop").exception("admin request failed")
            if begun:
                raise
            await ApiError(500, "internal error; see the log").response()(scope, receive, guarded)

    def _is_tls_ended(self, scope: Scope) -> bool:
        """Return whether the client used TLS up to a trusted proxy."""
        said = Headers(scope=scope).get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        return said == "https" and bool(scope["client"]) and self._trusts(scope["client"][0])

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if not self._hosts.known(headers.get("host", "")):
            raise ApiError(421, "the Host header is not accepted (set admin_hosts to allow this name)")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > BUNDLE_MAX:
            raise ApiError(413, f"the body is larger than {BUNDLE_MAX} bytes")


def _bounded(receive: Receive, limit: int) -> Receive:
    size = 0

    async def bounded() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise ApiError(413, f"the body is larger than {limit} bytes")
        return message

    return bounded


def _add(headers: MutableHeaders, scope: Scope) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")
    if scope["scheme"] == "https":
        headers["Strict-Transport-Security"] = "max-age=31536000"


PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
THIS_PLANE: Final = {"X-Breakloop-Plane": "admin"}


def admin_app(
    services: AdminServices,
    auth: Auth,
    *,
    host: str = "127.0.0.1",
    hosts: Collection[str] = (),
    trusts: Callable[[str], bool] = lambda _address: False,
) -> ASGIApp:
    """Return the application. `host` is the listening address, `hosts` are further accepted Host names, and `trusts`
    tells whether an address is a trusted proxy.
    """
    renderer = page_renderer(services)
    routes: list[BaseRoute] = [
        Route("/livez", livez, methods=["GET"]),
        Route(METRICS, _metrics(services), methods=["GET"]),
        *api_routes(services),
        *dashboard_routes(renderer, auth),
    ]
    handlers = {HTTPException: _http_error(renderer), BreakloopError: _own_error}
    inner = ExceptionMiddleware(_routed(Router(routes, redirect_slashes=False)), handlers)
    return SecurityMiddleware(AuthMiddleware(inner, auth), AllowedHosts(host, hosts), trusts)


def _routed(router: Router) -> ASGIApp:
    """Omit Starlette's outermost layer, which would answer internal errors; `SecurityMiddleware` does that."""

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # with this set, the router raises errors instead of answering them
        await router(scope, receive, send)

    return routed


async def livez(_request: Request) -> Response:
    """Liveness check. It also identifies the admin port, so that a client does not send its token to another port."""
    return Response("ok\n", media_type="text/plain", headers=THIS_PLANE)


def _metrics(services: AdminServices) -> Any:
    async def metrics(_request: Request) -> Response:
        return Response(services.metrics(), media_type=PROMETHEUS)

    return metrics


def _http_error(pages: PageRenderer) -> Any:
    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - the handler is registered for this type
        status = error.status_code if error.status_code in CODES else 400
        message = "not found" if status == 404 else error.detail
        if status == 404 and _wants_page(request):
            return await pages.problem(request, ApiError(404, "The address is wrong, or the page no longer exists."))
        return ApiError(status, message, headers=error.headers).response()

    return http_error


def _wants_page(request: Request) -> bool:
    """Return whether a browser asks for a page; programs get JSON."""
    looks = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    return looks and not request.url.path.startswith(("/api/", "/static/"))


async def _own_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, BreakloopError)  # noqa: S101 - the handler is registered for this type
    return fault_of(error).response()


_GRACE_S: Final = 1  # event streams do not end by themselves
_CONNECTIONS_MAX: Final = 500
_RESERVED: Final = 50  # connections from this machine beyond the maximum; and where idle ones begin to make room
_REQUEST_S: Final = 10.0  # to send the head of a request
_BODY_S: Final = 60.0  # to send the body of a request, after that, and to read a part of the response


async def _full(scope: Scope, receive: Receive, send: Send) -> None:
    message = "the admin port has too many connections: close some, try again, or connect from its own machine"
    fault = ApiError(503, message, headers={**HEADERS, **THIS_PLANE, "Connection": "close"})
    await fault.response()(scope, receive, send)


class _Quiet(uvicorn.Server):
    """A server that leaves signals to the process and has an event for "listening"."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class _BoundedProtocol(H11Protocol):
    """A connection that has to send its request, and to read the response, within a time limit. If there are too many
    connections, one that waits for its client is closed for a new one, so that idle connections keep nobody out. If all
    are busy, the new one is answered 503; some from this machine are served even then, so that `breakloop kill` works.
    """

    _timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None  # the client does not read
    _is_local = False

    @property
    def _is_uploading(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and cycle.more_body and not cycle.response_complete

    @property
    def _is_waiting(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.more_body or cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = [one for one in self.connections if isinstance(one, _BoundedProtocol)]
        self._make_room(others, len(others) + 1 + _RESERVED - _CONNECTIONS_MAX)
        super().connection_made(transport)
        self._is_local = self.client is not None and is_loopback(self.client[0])
        if len(self.connections) > _CONNECTIONS_MAX:
            local = sum(one._is_local for one in others)  # noqa: SLF001 - of its own class
            if not self._is_local or local >= _RESERVED:
                self.app = _full
        self._timer = self.loop.call_later(_REQUEST_S, self._expire)

    def _make_room(self, others: list[_BoundedProtocol], places: int) -> None:
        if places > 0:
            waiting = [one for one in others if one._is_waiting or one._unread_timer]  # noqa: SLF001 - of its own class
            waiting.sort(key=lambda one: (one._is_local, one._is_uploading))  # noqa: SLF001 - as above
            for one in waiting[:places]:
                one.transport.abort()
                self.connections.discard(one)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_waiting:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(_REQUEST_S, self._expire)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(_BODY_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def _expire(self, body_s: float = _BODY_S) -> None:
        self._timer = None
        if body_s and self._is_uploading:
            self._timer = self.loop.call_later(body_s, self._expire, 0.0)
        elif self._is_waiting:
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


class AdminServer:
    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._server: _Quiet | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Start listening; return the port. Raises `OSError`."""
        sockets = bind(self._host, self._port)
        config = uvicorn.Config(
            self._app,
            http=_BoundedProtocol,  # h11: strict; speed does not matter here
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # `SecurityMiddleware` logs errors, without header fields of requests
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Quiet(config)
        self._task = asyncio.create_task(self._server.serve(sockets))
        await self._server.listening.wait()
        port: int = sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop listening, and end open requests after a grace period."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            with suppress(asyncio.CancelledError):
                await self._task
            self._server = self._task = None
