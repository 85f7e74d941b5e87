"""ASGI middleware for tool servers and gateways of one's own: judges HTTP requests with a `Guard`, answers denials, and
passes all else untouched: streams as they come, web sockets, lifespan. It needs no framework, and knows none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from breakloop.model.call import NO_ANSWER, Answer, Call
from breakloop.sdk.backend import BODY_MAX_BYTES, is_readable, request_call
from breakloop.sdk.guard import Guard
from breakloop.sdk.http import SettlingReader, denied, steered

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BODY: Final = "http.request"
_LEFT: Final = "http.disconnect"


class GuardASGIMiddleware:
    """`app = GuardASGIMiddleware(app, guard=Guard("policy.yaml"))`, or `app.add_middleware(GuardASGIMiddleware)`."""

    def __init__(self, app: App, guard: Guard | None = None) -> None:
        self._app = app
        self.guard = guard or Guard()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        body = b""
        if is_readable(headers.get(b"content-type", b""), int(length) if length.isdigit() else None):
            read = _Replayed(receive)
            body = await read.whole()
            receive = read
        call = _call(scope, headers, body)
        decision = await self.guard.ajudge(call)
        if not decision.allowed:
            await _answer(send, *denied(decision))
            return
        await self.guard.await_(decision)
        noted = steered(decision)
        if noted is not None and isinstance(receive, _Replayed):
            receive.replace(noted)
            scope = {**scope, "headers": _resized(scope["headers"], len(noted))}
        tapped = _Tapped(
            send, lambda status, kind, encoding: SettlingReader(self.guard, decision, status, kind, encoding)
        )
        try:
            await self._app(scope, receive, tapped)
        except BaseException:
            if tapped.along is None:
                await self.guard.asettle(decision, Answer(NO_ANSWER))
            raise
        finally:
            if tapped.along is not None:
                await tapped.along.aend(complete=tapped.complete)


class _Replayed:
    """A `receive` whose body was read before, and comes again in one piece; what follows is the server's."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._first: Message | None = None

    async def whole(self) -> bytes:
        """Read the body; what a client that leaves has sent until then."""
        pieces: list[bytes] = []
        size, more = 0, True
        while more and size <= BODY_MAX_BYTES:
            message = await self._receive()
            if message["type"] == _LEFT:
                self._first = message
                return b""
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            more = message.get("more_body", False)
        body = b"".join(pieces)
        self._first = {"type": _BODY, "body": body, "more_body": more}
        return body

    def replace(self, body: bytes) -> None:
        """Let another body come."""
        self._first = {"type": _BODY, "body": body, "more_body": False}

    async def __call__(self) -> Message:
        """Return what comes next."""
        first, self._first = self._first, None
        return first if first is not None else await self._receive()


class _Tapped:
    """A `send` that is read along."""

    def __init__(self, send: Send, begin: Callable[[int, bytes, bytes], SettlingReader]) -> None:
        self._send = send
        self._begin = begin
        self.along: SettlingReader | None = None
        self.complete = False

    async def __call__(self, message: Message) -> None:
        """Pass a message on, then look at it."""
        await self._send(message)
        if message["type"] == "http.response.start":
            fields = {bytes(name).lower(): bytes(value) for name, value in message.get("headers", ())}
            kind, encoding = fields.get(b"content-type", b""), fields.get(b"content-encoding", b"")
            self.along = self._begin(message["status"], kind, encoding)
        elif self.along is not None:  # a body, or a file that the server sends by itself
            self.along.feed(message.get("body", b""))
            self.complete = self.complete or not message.get("more_body", False)


def _call(scope: Scope, headers: dict[bytes, bytes], body: bytes) -> Call:
    target = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    if scope.get("query_string"):
        target = target + b"?" + scope["query_string"]
    client = scope.get("client")
    call = request_call(scope["method"], target, scope["headers"], body, peer=client[0] if client else "")
    call.body_unseen = not body and (headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers)
    return call


def _resized(headers: Any, length: int) -> list[tuple[bytes, bytes]]:
    kept = [
        (name, value) for name, value in headers if bytes(name).lower() not in {b"content-length", b"content-encoding"}
    ]
    return [*kept, (b"content-length", str(length).encode())]


async def _answer(send: Send, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    fields = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
