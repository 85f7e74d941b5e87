"""The event stream of AWS: binary frames with a head, a payload and checksums.

The type of an event is only in its head, so the parser returns the payload below that name: `{"messageStop":{...}}`. A
`chunk` holds an event of the model's own API, which is returned as it is.
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from breakloop.dialects.framing import EVENT_MAX_BYTES

_PRELUDE: Final = Struct(">III")  # length of all, length of the headers, checksum of both
_LENGTHS: Final = Struct(">II")
_CHECKSUM: Final = Struct(">I")
_FRAME_MIN: Final = _PRELUDE.size + _CHECKSUM.size
_STRING: Final = 7
# Sizes of the other types of header values; -1: two bytes hold the size.
_VALUE_SIZES: Final = (0, 0, 1, 2, 4, 8, -1, -1, 8, 16)
_EVENT_NAMES: Final = (b":event-type", b":exception-type", b":error-code")
_CHUNK: Final = b"chunk"


class _Chunk(msgspec.Struct, gc=False):
    bytes: str


_decode_chunk: Final = msgspec.json.Decoder(_Chunk).decode


class AwsEventParser:
    """Splits an AWS event stream. Once a frame is broken, nothing more is read."""

    __slots__ = ("_buffer", "_max_bytes", "_over", "_rest", "skipped")

    def __init__(self, max_bytes: int = EVENT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._rest = 0  # bytes of a frame that is too long
        self._over = False
        self.skipped = 0

    @property
    def between(self) -> bool:
        return not (self._buffer or self._rest or self._over)

    def feed(self, data: bytes) -> Sequence[bytes]:
        if self._over:
            return ()
        buffer, found, at = self._buffer, list[bytes](), 0
        if self._rest:
            dropped = min(self._rest, len(data))
            self._rest -= dropped
            data = data[dropped:]
        buffer += data
        while len(buffer) - at >= _PRELUDE.size:
            size, headers, checksum = _PRELUDE.unpack_from(buffer, at)
            known = zlib.crc32(memoryview(buffer)[at : at + _LENGTHS.size])
            if checksum != known or not 0 <= headers <= size - _FRAME_MIN:
                self._break()
                return found
            if size > self._max_bytes:
                self.skipped += 1
                self._rest = max(0, size - (len(buffer) - at))
                at = min(len(buffer), at + size)
                continue
            if len(buffer) - at < size:
                break
            frame = bytes(buffer[at : at + size])
            at += size
            payload = _payload(frame[_PRELUDE.size : _PRELUDE.size + headers], frame[_PRELUDE.size + headers : -4])
            if payload:
                found.append(payload)
        del buffer[:at]
        return found

    def finish(self) -> Sequence[bytes]:
        """Return nothing: a frame that is not complete cannot be read."""
        return ()

    def _break(self) -> None:
        self.skipped += 1
        self._over = True
        self._buffer.clear()


def _payload(headers: bytes, payload: bytes) -> bytes:
    kind = _event_kind(headers)
    if kind == _CHUNK:
        try:
            return b64decode(_decode_chunk(payload).bytes)
        except ValueError:
            return payload
    return b'{"%b":%b}' % (kind, payload or b"{}")


def _event_kind(headers: bytes) -> bytes:
    """Return the type of an event or an exception: letters and digits, or b""."""
    at = 0
    while at < len(headers):
        name_end = at + 1 + headers[at]
        name, kind = headers[at + 1 : name_end], headers[name_end : name_end + 1]
        if not kind or kind[0] >= len(_VALUE_SIZES):
            break
        at, size = name_end + 1, _VALUE_SIZES[kind[0]]
        if size < 0:
            size = int.from_bytes(headers[at : at + 2], "big")
            at += 2
        value = headers[at : at + size]
        at += size
        if kind[0] == _STRING and name in _EVENT_NAMES and value.isalnum():
            return value
    return b""


def aws_event(kind: str, payload: bytes, *, exception: bool = False) -> bytes:
    """Return one frame of an AWS event stream."""
    fields = {
        ":exception-type" if exception else ":event-type": kind,
        ":content-type": "application/json",
        ":message-type": "exception" if exception else "event",
    }
    headers = b"".join(
        b"%c%b%c%b%b" % (len(name), name.encode(), _STRING, len(value).to_bytes(2, "big"), value.encode())
        for name, value in fields.items()
    )
    lengths = _LENGTHS.pack(_FRAME_MIN + len(headers) + len(payload), len(headers))
    frame = lengths + _CHECKSUM.pack(zlib.crc32(lengths)) + headers + payload
    return frame + _CHECKSUM.pack(zlib.crc32(frame))
