"""Envoy's protobuf messages, read and written without the protobuf library.

Decisions need about twenty of their fields. Generated classes would add `protobuf` to the extra (grpcio does not need
it) and the definitions of all packages that Envoy's messages refer to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_OVERWRITE: Final = b"\x18\x02"  # HeaderValueOption.append_action: OVERWRITE_IF_EXISTS_OR_ADD
_DENIED_CODE: Final = 7  # google.rpc.Status: PERMISSION_DENIED; Envoy only checks that it is not OK
_MALFORMED: Final = "malformed message"

Field = tuple[bytes, bytes]


class EnvoyRequest(NamedTuple):
    """The HTTP request that Envoy received."""

    method: bytes
    path: bytes  # with the query
    host: bytes
    peer: str  # the address of Envoy's client; "" for a Unix socket
    headers: tuple[Field, ...]
    body: bytes


def parse_request(data: bytes) -> EnvoyRequest:
    """Parse a `CheckRequest`. Raises `ValueError`."""
    attributes = one(data, 1)
    http = one(one(attributes, 4), 2)
    plain: dict[int, bytes] = {}
    headers: list[Field] = []
    for number, value in fields(http):
        if number == 3:  # a map: one entry for each header
            headers.append(_pair(value))
        elif number == 13:  # HeaderMap, where encode_raw_headers is set
            headers += [_raw_pair(entry) for at, entry in fields(value) if at == 1]
        else:
            plain[number] = value
    socket_address = one(one(one(attributes, 1), 1), 1)
    return EnvoyRequest(
        method=plain.get(2, b""),
        path=plain.get(4, b""),
        host=plain.get(5, b""),
        peer=one(socket_address, 2).decode("latin-1"),
        headers=tuple(headers),
        body=plain.get(12) or plain.get(11, b""),
    )


def allowed_response(header_fields: Iterable[Field]) -> bytes:
    """Return a `CheckResponse` that allows the request, with header fields for the response to the client."""
    return part(1, b"") + part(3, b"".join(part(6, _option(field)) for field in header_fields))


def denied_response(status: int, header_fields: Iterable[Field], body: bytes) -> bytes:
    """Return a `CheckResponse` that denies the request, with the response to the client."""
    response = part(1, b"\x08" + varint(status)) + b"".join(part(2, _option(field)) for field in header_fields)
    return part(1, b"\x08" + varint(_DENIED_CODE)) + part(2, response + part(3, body))


def walk(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the fields of a message: content of length-delimited ones, and varints as numbers. Raises `ValueError`."""
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
            number, at = _read_varint(data, at)
            yield key >> 3, number
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(_MALFORMED)
    if at > stop:
        raise ValueError(_MALFORMED)


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields of a message."""
    for number, value in walk(data):
        if type(value) is bytes:
            yield number, value


def numbers(data: bytes) -> dict[int, int]:
    """Return the varints of a message, by the number of their field."""
    return {number: value for number, value in walk(data) if type(value) is int}


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


def one(data: bytes, number: int) -> bytes:
    """Return the last field with this number, which is the one that counts in protobuf, or nothing."""
    found = b""
    for at, value in fields(data):
        if at == number:
            found = value
    return found


def _pair(entry: bytes) -> Field:
    if len(entry) > 3 and entry[0] == 0x0A and entry[1] < 0x80:  # fast path: two short strings
        at = 4 + entry[1]
        if at <= len(entry) < at + 0x80 and entry[at - 2] == 0x12 and entry[at - 1] == len(entry) - at:
            return entry[2 : at - 2], entry[at:]
    parts = dict(fields(entry))
    return parts.get(1, b""), parts.get(2, b"")


def _raw_pair(entry: bytes) -> Field:
    parts = dict(fields(entry))
    return parts.get(1, b""), parts.get(3) or parts.get(2, b"")


def _option(field: Field) -> bytes:
    name, value = field
    return part(1, part(1, name) + part(2, value)) + _OVERWRITE


def part(number: int, content: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- ext_proc ----------------------------------------------------------------------------------------------------------

# Fields of `ProcessingRequest`. In `ProcessingResponse`, the number of the field for the reply is one less.
REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY, REQUEST_TRAILERS, RESPONSE_TRAILERS = range(2, 8)
_ATTRIBUTES, _PROTOCOL = 9, 11
_IMMEDIATE: Final = 7
BUFFERED: Final = 2  # ProcessingMode.BodySendMode
_SOURCE: Final = b"source.address"


class ProcessingRequest(NamedTuple):
    """One message of the stream in which Envoy sends a request and its response."""

    kind: int  # one of the numbers above; 0: none of them
    headers: tuple[Field, ...]  # with pseudo-headers, such as `:path`
    body: bytes
    end_of_stream: bool
    peer: str  # the address of Envoy's client, if Envoy sends it as an attribute
    body_mode: int | None  # how Envoy sends request bodies; only the first message states it


def parse_processing(data: bytes) -> ProcessingRequest:
    """Parse a `ProcessingRequest`. Raises `ValueError`."""
    kind, content, peer, mode = 0, b"", "", None
    for number, value in fields(data):
        if REQUEST_HEADERS <= number <= RESPONSE_TRAILERS:
            kind, content = number, value
        elif number == _ATTRIBUTES:
            peer = _source_address(value) or peer
        elif number == _PROTOCOL:
            mode = numbers(value).get(1, 0)
    if kind in {REQUEST_HEADERS, RESPONSE_HEADERS}:
        headers = tuple(_raw_pair(entry) for number, entry in fields(one(content, 1)) if number == 1)
        return ProcessingRequest(kind, headers, b"", bool(numbers(content).get(3)), peer, mode)
    body = one(content, 1) if kind in {REQUEST_BODY, RESPONSE_BODY} else b""
    return ProcessingRequest(kind, (), body, bool(numbers(content).get(2)), peer, mode)


def _source_address(entry: bytes) -> str:
    """Return `source.address` without its port from an entry of the map of attributes, or ""."""
    for number, item in fields(one(entry, 2)):  # google.protobuf.Struct
        if number == 1 and one(item, 1) == _SOURCE:
            host, _, port = one(one(item, 2), 3).decode("latin-1").rpartition(":")
            return host.strip("[]") if port.isdigit() else ""
    return ""


def passed_message(kind: int, set_fields: Iterable[Field] = (), removed: Iterable[bytes] = ()) -> bytes:
    """Return a `ProcessingResponse` that lets a message of this kind pass, with these changes of its head."""
    if kind in {REQUEST_TRAILERS, RESPONSE_TRAILERS}:
        return part(kind - 1, b"")
    return _processed(kind, _head_changes(set_fields, removed))


def replaced_body(body: bytes) -> bytes:
    """Return a `ProcessingResponse` with another body of the request, which is not compressed."""
    length = (b"content-length", b"%d" % len(body))  # Envoy fails a request whose body has another one
    return _processed(REQUEST_BODY, _head_changes([length], [b"content-encoding"]) + part(3, part(1, body)))


def replaced_piece(piece: bytes) -> bytes:
    """Return a `ProcessingResponse` with another piece of the response, or nothing, in place of the one that came."""
    return _processed(RESPONSE_BODY, part(3, part(1, piece) if piece else b"\x10\x01"))  # clear_body


def immediate_response(status: int, set_fields: Iterable[Field], body: bytes) -> bytes:
    """Return a `ProcessingResponse` that ends the request with this response."""
    head = part(2, b"".join(part(1, _raw_option(field)) for field in set_fields))
    return part(_IMMEDIATE, part(1, b"\x08" + varint(status)) + head + part(3, body))


def _processed(kind: int, common: bytes) -> bytes:
    return part(kind - 1, part(1, common))


def _raw_option(field: Field) -> bytes:
    name, value = field
    return part(1, part(1, name) + part(3, value)) + _OVERWRITE


def _head_changes(set_fields: Iterable[Field], removed: Iterable[bytes]) -> bytes:
    changes = b"".join(part(1, _raw_option(field)) for field in set_fields) + b"".join(
        part(2, name) for name in removed
    )
    return part(2, changes) if changes else b""
