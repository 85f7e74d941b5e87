"""Envoy's `ext_authz` over gRPC, an extra (`breakloop[envoy]`).

Serves `envoy.service.auth.v3.Authorization/Check` with the handler of the HTTP variant, so that both decide alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from breakloop.errors import RequestError, SettingsError
from breakloop.gateway.decision import ENVOY, NO_BUNDLE
from breakloop.gateway.exchange import DeferredReply, MakeReply
from breakloop.gateway.http_request import Handler, HeadParser, Reply, Request, RequestLimits
from breakloop.gateway.http_response import error_reply, log_fault

# The messages are read and written here, without the protobuf library: a decision needs about ten fields of them, which
# is a hundred lines. Generated classes would add `protobuf` to the extra (grpcio does not need it) and the definitions
# of all packages that Envoy's messages refer to.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_OVERWRITE: Final = b"\x18\x02"  # HeaderValueOption.append_action: OVERWRITE_IF_EXISTS_OR_ADD
_DENIED_CODE: Final = 7  # google.rpc.Status: PERMISSION_DENIED; Envoy only checks that it is not OK
_MALFORMED: Final = "malformed CheckRequest"

Field = tuple[bytes, bytes]


class EnvoyRequest(NamedTuple):
    """One `CheckRequest`: the HTTP request that Envoy received."""

    method: bytes
    path: bytes  # with the query
    host: bytes
    peer: str  # the address of Envoy's client; "" for a Unix socket
    headers: tuple[Field, ...]
    body: bytes


def parse_request(data: bytes) -> EnvoyRequest:
    """Parse a `CheckRequest`. Raises `ValueError`."""
    attributes = _one(data, 1)
    http = _one(_one(attributes, 4), 2)
    plain: dict[int, bytes] = {}
    headers: list[Field] = []
    for number, value in _fields(http):
        if number == 3:  # a map: one entry for each header
            headers.append(_pair(value))
        elif number == 13:  # HeaderMap, where encode_raw_headers is set
            headers += [_raw_pair(entry) for at, entry in _fields(value) if at == 1]
        else:
            plain[number] = value
    socket_address = _one(_one(_one(attributes, 1), 1), 1)
    return EnvoyRequest(
        method=plain.get(2, b""),
        path=plain.get(4, b""),
        host=plain.get(5, b""),
        peer=_one(socket_address, 2).decode("latin-1"),
        headers=tuple(headers),
        body=plain.get(12) or plain.get(11, b""),
    )


def allowed_response(fields: Iterable[Field]) -> bytes:
    """Return a `CheckResponse` that allows the request, with header fields for the response to the client."""
    return _part(1, b"") + _part(3, b"".join(_part(6, _option(field)) for field in fields))


def denied_response(status: int, fields: Iterable[Field], body: bytes) -> bytes:
    """Return a `CheckResponse` that denies the request, with the response to the client."""
    response = _part(1, b"\x08" + _varint(status)) + b"".join(_part(2, _option(field)) for field in fields)
    return _part(1, b"\x08" + _varint(_DENIED_CODE)) + _part(2, response + _part(3, body))


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields of a message; numbers are skipped, because none is needed."""
    at, stop = 0, len(data)
    while at < stop:
        key = data[at]
        at += 1
        if key > 0x7F:  # rare: the numbers of fields are small
            key, at = _read_varint(data, at - 1)
        kind = key & 7
        if kind == _BYTES:
            size, at = _read_varint(data, at)
            end = at + size
            if end > stop:
                raise ValueError(_MALFORMED)
            yield key >> 3, data[at:end]
            at = end
        elif kind == _VARINT:
            _, at = _read_varint(data, at)
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(_MALFORMED)
    if at > stop:
        raise ValueError(_MALFORMED)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for position in range(at, min(at + 10, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise ValueError(_MALFORMED)


def _one(data: bytes, number: int) -> bytes:
    """Return the last field with this number, which is the one that counts in protobuf, or nothing."""
    found = b""
    for at, value in _fields(data):
        if at == number:
            found = value
    return found


def _pair(entry: bytes) -> Field:
    if len(entry) > 3 and entry[0] == 0x0A and entry[1] < 0x80:  # fast path: two short strings
        at = 4 + entry[1]
        if at <= len(entry) < at + 0x80 and entry[at - 2] == 0x12 and entry[at - 1] == len(entry) - at:
            return entry[2 : at - 2], entry[at:]
    parts = dict(_fields(entry))
    return parts.get(1, b""), parts.get(2, b"")


def _raw_pair(entry: bytes) -> Field:
    parts = dict(_fields(entry))
    return parts.get(1, b""), parts.get(3) or parts.get(2, b"")


def _option(field: Field) -> bytes:
    name, value = field
    return _part(1, _part(1, name) + _part(2, value)) + _OVERWRITE


def _part(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


SERVICE: Final = "envoy.service.auth.v3.Authorization"
_MISSING: Final = 'envoy_grpc_port needs an extra that is not installed: pip install "breakloop[envoy]", or set it to 0'
_MESSAGE_OVERHEAD: Final = 1024 * 1024  # size of a message without the body
_GRACE_S: Final = 1.0
_PARTIAL: Final = b"x-envoy-auth-partial-body"
_KEY: Final = "x-breakloop-key"
# About the connection between client and Envoy, or contained in the message; the rest describes the request.
_DROPPED: Final = frozenset(
    (b"host", b"connection", b"content-length", b"transfer-encoding", b"upgrade", b"expect", _PARTIAL)
)
_WITH_BODY: Final = frozenset((b"POST", b"PUT", b"PATCH"))


class EnvoyCheck:
    """Handles `CheckRequest` messages; bytes in, bytes out."""

    def __init__(self, handler: Handler, limits: RequestLimits) -> None:
        self._handler = handler
        self._heads = HeadParser(limits)

    async def check(self, data: bytes, key: bytes = b"") -> bytes | None:
        """Return a `CheckResponse`; None where there is no decision, which is a failure for Envoy. `key` is the key of
        Envoy itself, from the metadata of its call.
        """
        try:
            request = self._request(parse_request(data))
            if key:
                request.headers[_KEY] = key
        except RequestError as error:
            refusal = error_reply(error.status, str(error))
            return denied_response(refusal.status, _lines(refusal.head), refusal.body)
        result = self._handler(request)
        reply: Reply = await _wait_for(result) if isinstance(result, DeferredReply) else result
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if reply.status == 200:
            return allowed_response(_lines(reply.head))
        if reply.status == 503 and NO_BUNDLE in reply.head:
            return None
        return denied_response(reply.status, _lines(reply.head), reply.body)

    def _request(self, question: EnvoyRequest) -> Request:
        """Return the request that Envoy would have sent over HTTP, parsed by the same rules."""
        lines = [b"%b %b%b HTTP/1.1" % (question.method, ENVOY, question.path), b"host: " + question.host]
        lines += [
            b"%b: %b" % field for field in question.headers if field[0][:1] != b":" and field[0].lower() not in _DROPPED
        ]
        if _body_missing(question):
            lines.append(_PARTIAL + b": true")
        head = b"\r\n".join((*lines, b"", b""))
        if head.count(b"\n") != len(lines) + 1:
            raise RequestError(400, "a header field with a line break")
        request = self._heads.parse(head, question.peer)
        request.body = question.body
        return request


async def _wait_for(pending: DeferredReply) -> Reply:
    """Wait for a decision that needs a remote store. Envoy may cancel the call meanwhile."""
    if pending.make is None:
        future: asyncio.Future[MakeReply] = asyncio.get_running_loop().create_future()
        pending.wait(lambda make: None if future.done() else future.set_result(make))
        try:
            reply = (await future)()
        except asyncio.CancelledError:
            pending.cancel()
            raise
    else:
        reply = pending.make()
    assert isinstance(reply, Reply)  # noqa: S101 - the decision service forwards nothing
    return reply


def _body_missing(question: EnvoyRequest) -> bool:
    """Return whether the body, or a part of it, was not sent. Envoy sets a header for a partial body; without a body,
    that header may come from the client and is ignored."""
    headers = {name.lower(): value for name, value in question.headers}
    if question.body:
        return headers.get(_PARTIAL) == b"true"
    length = headers.get(b"content-length")
    if length is not None:
        return length != b"0"
    return question.method in _WITH_BODY or b"transfer-encoding" in headers


def _lines(head: bytes) -> list[Field]:
    return [(name, value) for line in head.split(b"\r\n") if line for name, _, value in [line.partition(b": ")]]


@asynccontextmanager
async def serve_envoy(
    handler: Handler, address: str, limits: RequestLimits, *, shared: bool, tls: tuple[bytes, bytes] | None
) -> AsyncIterator[None]:
    """Serve on an address (`host:port`) while the block runs. `shared`: other processes listen on it, too; `tls`: a key
    and its certificates, PEM. Raises `SettingsError`."""
    try:
        import grpc  # noqa: PLC0415 - an extra
        import grpc.aio  # noqa: PLC0415
    except ImportError:
        raise SettingsError(_MISSING) from None
    server = _server(grpc, EnvoyCheck(handler, limits), limits, shared=shared)
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, grpc.ssl_server_credentials([tls]))
    except RuntimeError:
        raise SettingsError(f"envoy_grpc_port: cannot listen on {address}; another program may be using it") from None
    await server.start()
    try:
        yield
    finally:
        await server.stop(_GRACE_S)


def _server(grpc: Any, check: EnvoyCheck, limits: RequestLimits, *, shared: bool) -> Any:
    codes = grpc.StatusCode

    async def serve(data: bytes, context: Any) -> bytes:
        try:
            key = next((value for name, value in context.invocation_metadata() or () if name == _KEY), "")
            response, code, why = await check.check(data, key.encode()), codes.UNAVAILABLE, NO_BUNDLE.decode()
        except ValueError as error:  # not a CheckRequest
            response, code, why = None, codes.INVALID_ARGUMENT, str(error)
        except Exception as error:  # noqa: BLE001 - fail-open edge: Envoy then acts as configured for failures
            log_fault(error, "no decision")
            response, code, why = None, codes.INTERNAL, ""
        if response is None:
            await context.abort(code, why)
        return response or b""

    options = [
        ("grpc.max_receive_message_length", limits.body_bytes + _MESSAGE_OVERHEAD),
        ("grpc.so_reuseport", int(shared)),  # if not shared, a second instance must fail
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.connections)
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(serve)}  # without serializers: bytes
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    return server
