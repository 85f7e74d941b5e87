"""Envoy's `ext_authz` over gRPC, an extra (`breakloop[envoy]`): serves `envoy.service.auth.v3.Authorization/Check` by
asking the decision service as the HTTP variant would, so that both say the same. What the messages look like is
`envoy_messages`', what is decided the door's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from breakloop.errors import RequestError, SettingsError
from breakloop.gateway.bounds import Limits
from breakloop.gateway.decision import NO_BUNDLE
from breakloop.gateway.envoy_messages import Asked, Field, allowed, asked, denied
from breakloop.gateway.head import Handler, HeadParser, Reply, Request
from breakloop.gateway.hub import log_fault
from breakloop.gateway.original import ENVOY
from breakloop.gateway.pending import Made, Pending
from breakloop.gateway.reply import error_reply

SERVICE: Final = "envoy.service.auth.v3.Authorization"
_MISSING: Final = "envoy_grpc_port needs an extra that is not installed: pip install 'breakloop[envoy]', or set it to 0"
_BESIDE_BODY: Final = 1024 * 1024  # what a message holds beside the body
_GRACE_S: Final = 1.0
_PARTIAL: Final = b"x-envoy-auth-partial-body"
# Of the connection between client and Envoy, or said by the message itself; the rest describes the request.
_DROPPED: Final = frozenset(
    (b"host", b"connection", b"content-length", b"transfer-encoding", b"upgrade", b"expect", _PARTIAL)
)
_WITH_BODY: Final = frozenset((b"POST", b"PUT", b"PATCH"))


class EnvoyCheck:
    """Answers one `CheckRequest` after the other; bytes in, bytes out."""

    def __init__(self, door: Handler, limits: Limits) -> None:
        self._door = door
        self._heads = HeadParser(limits)

    async def answer(self, data: bytes) -> bytes | None:
        """Return a `CheckResponse`; None where there is no decision, which Envoy takes as a failure."""
        try:
            request = self._request(asked(data))
        except RequestError as error:
            reply = error_reply(error.status, str(error))
            return denied(reply.status, _lines(reply.head), reply.body)
        reply = await self._decided(request)
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if reply.status == 200:
            return allowed(_lines(reply.head))
        if reply.status == 503 and NO_BUNDLE in reply.head:
            return None
        return denied(reply.status, _lines(reply.head), reply.body)

    def _request(self, question: Asked) -> Request:
        """Make the request that Envoy would have sent over HTTP, by the same rules as any other head."""
        lines = [b"%b %b%b HTTP/1.1" % (question.method, ENVOY, question.path), b"host: " + question.host]
        lines += [
            b"%b: %b" % field for field in question.headers if field[0][:1] != b":" and field[0].lower() not in _DROPPED
        ]
        if _unseen(question):
            lines.append(_PARTIAL + b": true")
        head = b"\r\n".join((*lines, b"", b""))
        if head.count(b"\n") != len(lines) + 1:
            raise RequestError(400, "a header field with a line break")
        request = self._heads.parse(head, question.peer)
        request.body = question.body
        return request

    async def _decided(self, request: Request) -> Reply:
        result = self._door(request)
        if isinstance(result, Pending):
            return await _awaited(result)
        found: Reply = result
        return found


async def _awaited(pending: Pending) -> Reply:
    """Wait for a decision whose state is elsewhere; Envoy may leave meanwhile."""
    if pending.make is None:
        future: asyncio.Future[Made] = asyncio.get_running_loop().create_future()
        pending.wait(lambda make: None if future.done() else future.set_result(make))
        try:
            made = (await future)()
        except asyncio.CancelledError:
            pending.cancel()
            raise
    else:
        made = pending.make()
    assert isinstance(made, Reply)  # noqa: S101 - the decision service forwards nothing
    return made


def _unseen(question: Asked) -> bool:
    """Whether there is a body that was not sent, or only a part of it. Envoy says so beside a body; what a client says
    in that field without one is not believed."""
    said = {name.lower(): value for name, value in question.headers}
    if question.body:
        return said.get(_PARTIAL) == b"true"
    length = said.get(b"content-length")
    if length is not None:
        return length != b"0"
    return question.method in _WITH_BODY or b"transfer-encoding" in said


def _lines(head: bytes) -> list[Field]:
    found = (line.partition(b": ") for line in head.split(b"\r\n") if line)
    return [(name, value) for name, _, value in found]


@asynccontextmanager
async def envoy_door(
    door: Handler, address: str, limits: Limits, *, shared: bool, tls: tuple[bytes, bytes] | None
) -> AsyncIterator[None]:
    """Serve on an address (`host:port`) for as long as the block runs. `shared`: other processes do so, too; `tls` is
    a key and its certificates, PEM. Raises `SettingsError`."""
    try:
        import grpc  # noqa: PLC0415 - an extra
        import grpc.aio  # noqa: PLC0415
    except ImportError:
        raise SettingsError(_MISSING) from None
    server = _server(grpc, EnvoyCheck(door, limits), limits, shared=shared)
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, grpc.ssl_server_credentials([tls]))
    except RuntimeError:
        raise SettingsError(f"envoy_grpc_port: cannot listen on {address}; another program may be there") from None
    await server.start()
    try:
        yield
    finally:
        await server.stop(_GRACE_S)


def _server(grpc: Any, check: EnvoyCheck, limits: Limits, *, shared: bool) -> Any:
    codes = grpc.StatusCode

    async def serve(data: bytes, context: Any) -> bytes:
        try:
            answer, code, why = await check.answer(data), codes.UNAVAILABLE, NO_BUNDLE.decode()
        except ValueError as error:  # not the message that it should be
            answer, code, why = None, codes.INVALID_ARGUMENT, str(error)
        except Exception as error:  # noqa: BLE001 - the outermost edge: Envoy does what it does without an answer
            log_fault(error, "no decision")
            answer, code, why = None, codes.INTERNAL, ""
        if answer is None:
            await context.abort(code, why)
        return answer or b""

    options = [
        ("grpc.max_receive_message_length", limits.body_bytes + _BESIDE_BODY),
        ("grpc.so_reuseport", int(shared)),  # alone, a second instance must fail and not take half of the traffic
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.connections)
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(serve)}  # without serialisers: bytes
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    return server
