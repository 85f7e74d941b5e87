"""The few fields of Envoy's `envoy.service.auth.v3` messages that a decision needs, read from and written as the bytes
of protocol buffers: a generated package of all of Envoy's messages would weigh more than everything else here. Serving
them is `envoy_grpc`'s."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_OVERWRITE: Final = b"\x18\x02"  # HeaderValueOption.append_action: OVERWRITE_IF_EXISTS_OR_ADD
_DENIED_CODE: Final = 7  # google.rpc.Status: PERMISSION_DENIED; what counts is that it is not OK
_MALFORMED: Final = "malformed CheckRequest"

Field = tuple[bytes, bytes]


class Asked(NamedTuple):
    """One `CheckRequest`: the HTTP request as Envoy got it."""

    method: bytes
    path: bytes  # with the query
    host: bytes
    peer: str  # the address that is connected to Envoy; "" for a socket without one
    headers: tuple[Field, ...]
    body: bytes


def asked(data: bytes) -> Asked:
    """Read a `CheckRequest`; raises `ValueError`."""
    attributes = _one(data, 1)
    http = _one(_one(attributes, 4), 2)
    plain: dict[int, bytes] = {}
    headers: list[Field] = []
    for number, value in _fields(http):
        if number == 3:  # a map: one entry a field
            headers.append(_pair(value))
        elif number == 13:  # HeaderMap, where encode_raw_headers is set
            headers += [_raw_pair(entry) for at, entry in _fields(value) if at == 1]
        else:
            plain[number] = value
    socket_address = _one(_one(_one(attributes, 1), 1), 1)
    return Asked(
        method=plain.get(2, b""),
        path=plain.get(4, b""),
        host=plain.get(5, b""),
        peer=_one(socket_address, 2).decode("latin-1"),
        headers=tuple(headers),
        body=plain.get(12) or plain.get(11, b""),
    )


def allowed(fields: Iterable[Field]) -> bytes:
    """Return a `CheckResponse` that lets the request pass, with fields for the answer that the client gets."""
    return _part(1, b"") + _part(3, b"".join(_part(6, _option(field)) for field in fields))


def denied(status: int, fields: Iterable[Field], body: bytes) -> bytes:
    """Return a `CheckResponse` that answers the client."""
    answer = _part(1, b"\x08" + _varint(status)) + b"".join(_part(2, _option(field)) for field in fields)
    return _part(1, b"\x08" + _varint(_DENIED_CODE)) + _part(2, answer + _part(3, body))


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message; numbers are left out, for none of them matters here."""
    at, stop = 0, len(data)
    while at < stop:
        key = data[at]
        at += 1
        if key > 0x7F:  # seldom: the numbers of fields are small
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
    for place in range(at, min(at + 10, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise ValueError(_MALFORMED)


def _one(data: bytes, number: int) -> bytes:
    """The last field of this number, as readers of protocol buffers take it, or nothing."""
    found = b""
    for at, value in _fields(data):
        if at == number:
            found = value
    return found


def _pair(entry: bytes) -> Field:
    if len(entry) > 3 and entry[0] == 0x0A and entry[1] < 0x80:  # the usual spelling: two short texts
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
