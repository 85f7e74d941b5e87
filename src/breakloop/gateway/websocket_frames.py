"""Frames and messages of websockets (RFC 6455), without extensions.

A `MessageReader` takes the bytes of one direction apart. What it returns keeps the bytes as received, so that messages
that nobody changes are passed on as they came.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_OPCODES: Final = frozenset((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG))
_CONTROL: Final = 8  # from this opcode on
_CONTROL_BYTES: Final = 125
_FRAGMENTS_MAX: Final = 10_000

GOING_AWAY, PROTOCOL_ERROR, POLICY, TOO_BIG, INTERNAL = 1001, 1002, 1008, 1009, 1011


class FrameError(Exception):
    """The peer violates the protocol, or sends more than is allowed. `code` is for the close frame."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Message(NamedTuple):
    """One message, or one control frame."""

    kind: int  # TEXT, BINARY, CLOSE, PING or PONG
    payload: bytes
    raw: bytes  # its frames as received


class _Frame:
    """A frame, of which a part may have arrived. The payload is unmasked as it arrives: that takes time."""

    __slots__ = ("final", "kind", "left", "mask", "payload", "raw", "size")

    def __init__(self, final: bool, kind: int, size: int, mask: bytes) -> None:  # noqa: FBT001 - called once
        self.final = final
        self.kind = kind
        self.mask = mask  # b"": the payload is not masked
        self.size = self.left = size  # of the payload, and what of it is to come
        self.raw: bytes | bytearray = b""  # not a list: pieces of one byte would take 40 times their size
        self.payload: bytes | bytearray = b""

    def take(self, raw: bytes, start: int) -> None:
        """Take received bytes. The payload begins at `start`."""
        piece = raw[start:] if start else raw
        if self.mask:
            at = (self.size - self.left) % 4
            piece = _unmask(piece, self.mask[at:] + self.mask[:at])
        self.left -= len(piece)
        if not self.raw:  # usually it arrives at once
            self.raw, self.payload = raw, piece
            return
        if isinstance(self.raw, bytes):
            self.raw, self.payload = bytearray(self.raw), bytearray(self.payload)
        self.raw += raw
        self.payload += piece


class MessageReader:
    """Reads the messages of one side. `masked`: it is the client's, whose frames are masked."""

    def __init__(self, max_bytes: int, *, masked: bool) -> None:
        self._max_bytes = max_bytes
        self._masked = masked
        self._buffer = bytearray()  # the begin of the head of a frame
        self._frame: _Frame | None = None  # the one that is arriving
        self._kind = CONTINUATION  # of a message whose last frame has not arrived
        self._payloads: list[bytes] = []
        self._raw: list[bytes] = []
        self._size = 0  # of these payloads

    def __len__(self) -> int:
        """Return how many bytes are held."""
        return len(self._buffer) + self._size + (0 if self._frame is None else len(self._frame.raw))

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete now. Raises `FrameError`."""
        buffer = self._buffer
        buffer += data
        found: list[Message] = []
        at = 0
        while True:
            frame, start = self._frame, 0
            if frame is None:
                opened = self._open(at)
                if opened is None:
                    break
                frame, start = opened
            stop = min(len(buffer), at + start + frame.left)
            frame.take(bytes(buffer[at:stop]), start)
            at = stop
            if frame.left:
                self._frame = frame
                break
            self._frame = None
            message = self._add(frame)
            if message is not None:
                found.append(message)
        del buffer[:at]
        return found

    def _open(self, at: int) -> tuple[_Frame, int] | None:
        """Return the frame that begins at a position of the buffer and the size of its head, if that is complete."""
        buffer, have = self._buffer, len(self._buffer) - at
        if have < 2:
            return None
        first, second = buffer[at], buffer[at + 1]
        kind, size, start = first & 0x0F, second & 0x7F, 2
        if first & 0x70 or kind not in _OPCODES or bool(second & 0x80) is not self._masked:
            raise FrameError(PROTOCOL_ERROR, "invalid frame")
        if kind >= _CONTROL and (size > _CONTROL_BYTES or not first & 0x80):
            raise FrameError(PROTOCOL_ERROR, "invalid control frame")
        if size > _CONTROL_BYTES:
            extra = 2 if size == 126 else 8
            if have < start + extra:
                return None
            size = int.from_bytes(buffer[at + 2 : at + 2 + extra])
            start += extra
        if size + self._size > self._max_bytes:
            raise FrameError(TOO_BIG, f"a message has more than {self._max_bytes} bytes")
        start += 4 * self._masked
        if have < start:
            return None
        mask = bytes(buffer[at + start - 4 : at + start]) if self._masked else b""
        return _Frame(bool(first & 0x80), kind, size, mask), start

    def _add(self, frame: _Frame) -> Message | None:
        """Add a frame to the message that it belongs to; return the message if this completes it."""
        payload, raw = bytes(frame.payload), bytes(frame.raw)
        if frame.kind >= _CONTROL:
            return Message(frame.kind, payload, raw)
        if bool(self._payloads) is not (frame.kind == CONTINUATION):
            raise FrameError(PROTOCOL_ERROR, "invalid sequence of frames")
        if not self._payloads:
            if frame.final:
                return Message(frame.kind, payload, raw)
            self._kind = frame.kind
        self._payloads.append(payload)
        self._raw.append(raw)
        self._size += len(payload)
        if len(self._payloads) > _FRAGMENTS_MAX:
            raise FrameError(TOO_BIG, f"a message has more than {_FRAGMENTS_MAX} frames")
        if not frame.final:
            return None
        whole = Message(self._kind, b"".join(self._payloads), b"".join(self._raw))
        self._payloads, self._raw, self._size = [], [], 0
        return whole


def text_frame(payload: bytes, *, masked: bool) -> bytes:
    """Return a text message in one frame. `masked`: it is sent as by a client."""
    return _frame_bytes(TEXT, payload, masked=masked)


def close_frame(code: int, reason: str, *, masked: bool) -> bytes:
    """Return the frame that closes a websocket."""
    return _frame_bytes(CLOSE, code.to_bytes(2) + reason.encode()[: _CONTROL_BYTES - 2], masked=masked)


def _frame_bytes(kind: int, payload: bytes, *, masked: bool) -> bytes:
    size, bit = len(payload), 0x80 * masked
    if size <= _CONTROL_BYTES:
        head = bytes((0x80 | kind, bit | size))
    elif size < 1 << 16:
        head = bytes((0x80 | kind, bit | 126)) + size.to_bytes(2)
    else:
        head = bytes((0x80 | kind, bit | 127)) + size.to_bytes(8)
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + _unmask(payload, mask)


def _unmask(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    repeated = mask * (size // 4 + 1)
    return (int.from_bytes(payload) ^ int.from_bytes(repeated[:size])).to_bytes(size)
