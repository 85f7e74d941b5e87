"""What Envoy sends and reads, for tests: `CheckRequest`s written, and `CheckResponse`s taken apart."""

from __future__ import annotations

from typing import Any, NamedTuple

from breakloop.gateway.envoy_messages import fields, part, varint

Fields = dict[str, str]


def check(
    path: str = "/x",
    method: str = "GET",
    headers: Fields | None = None,
    body: bytes = b"",
    *,
    peer: str = "198.51.100.7",
    raw: bool = False,
) -> bytes:
    """A `CheckRequest`, as Envoy spells it: with the fields that nobody here reads, too."""
    named = {":authority": "api.test", ":method": method, ":path": path, **(headers or {})}
    if raw:
        pairs = [part(1, part(1, name.encode()) + part(3, value.encode())) for name, value in named.items()]
        fields = part(13, b"".join(pairs))
    else:
        fields = b"".join(part(3, part(1, name.encode()) + part(2, text.encode())) for name, text in named.items())
    http = part(1, b"15") + part(2, method.encode()) + fields + part(4, path.encode()) + part(5, b"api.test")
    http += part(6, b"http") + b"\x48" + varint(len(body)) + part(10, b"HTTP/1.1") + part(12 if raw else 11, body)
    source = part(1, part(1, b"\x08\x00" + part(2, peer.encode()) + b"\x18" + varint(40000)))
    time = part(1, b"\x08\x01\x15\x00\x00\x00\x00\x19" + bytes(8))  # a varint, a fixed32, a fixed64
    return part(1, part(1, source) + part(4, time + part(2, http)) + part(11, b""))


class Checked(NamedTuple):
    """A `CheckResponse`."""

    allowed: bool
    status: int
    headers: Fields
    body: bytes


def checked(data: bytes) -> Checked:
    """Read what Envoy would."""
    parts: dict[int, bytes] = dict(fields(data))
    if parts[1] == b"":
        return Checked(True, 200, _headers(parts[3], 6), b"")
    answer: dict[int, bytes] = dict(fields(parts[2]))
    status = answer[1]
    number = status[1] if len(status) == 2 else (status[1] & 0x7F) | status[2] << 7
    return Checked(False, number, _headers(parts[2], 2), answer[3])


def _headers(message: bytes, at: int) -> Fields:
    found: list[dict[int, Any]] = []
    for number, option in fields(message):
        if number == at:
            assert option.endswith(b"\x18\x02")
            found.append(dict(fields(dict(fields(option))[1])))
    return {pair[1].decode().lower(): pair[2].decode() for pair in found}
