"""ASGI middleware for tool servers and gateways of your own. It needs no web framework.

    from breakloop.integrations.asgi import GuardASGIMiddleware
    app = GuardASGIMiddleware(app)

HTTP requests are checked, and denials answered. Everything else passes untouched: streamed bodies, web sockets,
lifespan events. What the application asks an LLM meanwhile is in the tree of agents of the request that it answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final

from breakloop.model.call import NO_ANSWER, Answer, Call
from breakloop.sdk.context import agent
from breakloop.sdk.guard import Guard
from breakloop.sdk.http import SettlingReader, denied_response, steered_body
from breakloop.sdk.requests import BODY_MAX_BYTES, is_readable, request_call
from breakloop.sdk.toolkit import toolkit_of

__all__ = ["App", "GuardASGIMiddleware", "Message", "Receive", "Scope", "Send"]

Scope = MutableMapping[str, Any]  # what ASGI calls the scope of a connection
Message = MutableMapping[str, Any]  # an event of ASGI
Receive = Callable[[], Awaitable[Message]]  # returns the next event of the client
Send = Callable[[Message], Awaitable[None]]  # sends an event to the client
App = Callable[[Scope, Receive, Send], Awaitable[None]]  # an ASGI application

_BODY: Final = "http.request"
_DISCONNECT: Final = "http.disconnect"


class GuardASGIMiddleware:
    """Checks the requests of an ASGI application, and answers those that are denied:

    ```python
    app = GuardASGIMiddleware(app, guard=Guard("policy.yaml"))
    app.add_middleware(GuardASGIMiddleware)  # or like this, in Starlette and FastAPI
    ```
    """

    def __init__(self, app: App, guard: Guard | None = None) -> None:
        self._app = app
        self.guard = guard or Guard()
        self._toolkit = toolkit_of(self.guard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        kind, length = (headers.get(name, b"").decode("latin-1") for name in (b"content-type", b"content-length"))
        body = b""
        if is_readable(kind, length):
            replayed = _ReplayedBody(receive)
            body = await replayed.read()
            receive = replayed
        io = self._toolkit.asynchronous
        decision = await io.decide(_call(scope, headers, body))
        if not decision.allowed:
            await _respond(send, *denied_response(decision))
            return
        await io.wait(decision)
        steered = steered_body(decision)
        if steered is not None and isinstance(receive, _ReplayedBody):
            receive.replace(steered)
            scope = {**scope, "headers": _resized(scope["headers"], len(steered))}
        tapped = _TappedSend(send, partial(SettlingReader, self._toolkit, decision))
        try:
            with agent(received=_text(headers)):
                await self._app(scope, receive, tapped)
        except BaseException:
            if tapped.reader is None:
                await io.settle(decision, Answer(NO_ANSWER))
            raise
        finally:
            if tapped.reader is not None:
                await tapped.reader.aend(complete=tapped.complete)


class _ReplayedBody:
    """A `receive` whose body was read before and comes again in one piece. Later messages are the server's."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._first: Message | None = None

    async def read(self) -> bytes:
        """Read the body; b"" if the client disconnects before its end."""
        pieces: list[bytes] = []
        size, more = 0, True
        while more and size <= BODY_MAX_BYTES:
            message = await self._receive()
            if message["type"] == _DISCONNECT:
                self._first = message
                return b""
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            more = message.get("more_body", False)
        body = b"".join(pieces)
        self._first = {"type": _BODY, "body": body, "more_body": more}
        return body

    def replace(self, body: bytes) -> None:
        self._first = {"type": _BODY, "body": body, "more_body": False}

    async def __call__(self) -> Message:
        first, self._first = self._first, None
        return first if first is not None else await self._receive()


class _TappedSend:
    """A `send` whose messages are read as they pass."""

    def __init__(self, send: Send, start: Callable[[int, bytes, bytes], SettlingReader]) -> None:
        self._send = send
        self._start = start
        self.reader: SettlingReader | None = None
        self.complete = False

    async def __call__(self, message: Message) -> None:
        await self._send(message)
        if message["type"] == "http.response.start":
            fields = {bytes(name).lower(): bytes(value) for name, value in message.get("headers", ())}
            kind, encoding = fields.get(b"content-type", b""), fields.get(b"content-encoding", b"")
            self.reader = self._start(message["status"], kind, encoding)
        elif self.reader is not None:  # a body, or a file that the server sends by itself
            self.reader.feed(message.get("body", b""))
            self.complete = self.complete or not message.get("more_body", False)


def _call(scope: Scope, headers: dict[bytes, bytes], body: bytes) -> Call:
    target = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    if scope.get("query_string"):
        target = target + b"?" + scope["query_string"]
    client = scope.get("client")
    call = request_call(scope["method"], target, scope["headers"], body, peer=client[0] if client else "")
    call.body_unseen = not body and (headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers)
    return call


def _text(headers: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}


def _resized(headers: Any, length: int) -> list[tuple[bytes, bytes]]:
    kept = [
        (name, value) for name, value in headers if bytes(name).lower() not in {b"content-length", b"content-encoding"}
    ]
    return [*kept, (b"content-length", str(length).encode())]


async def _respond(send: Send, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    fields = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
