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


class _Frame(NamedTuple):
    final: bool
    kind: int
    payload: bytes
    size: int  # with its head


class MessageReader:
    """Reads the messages of one side. `masked`: it is the client's, whose frames are masked."""

    def __init__(self, max_bytes: int, *, masked: bool) -> None:
        self._max_bytes = max_bytes
        self._masked = masked
        self._buffer = bytearray()
        self._kind = CONTINUATION  # of a message whose last frame has not arrived
        self._payloads: list[bytes] = []
        self._raw: list[bytes] = []
        self._size = 0  # of these payloads

    def __len__(self) -> int:
        """Return how many bytes are held."""
        return len(self._buffer) + self._size

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete now. Raises `FrameError`."""
        buffer = self._buffer
        buffer += data
        found: list[Message] = []
        at = 0
        while (frame := self._frame(at)) is not None:
            raw = bytes(buffer[at : at + frame.size])
            at += frame.size
            if frame.kind >= _CONTROL:
                found.append(Message(frame.kind, frame.payload, raw))
            elif (message := self._add(frame, raw)) is not None:
                found.append(message)
        del buffer[:at]
        return found

    def _frame(self, at: int) -> _Frame | None:
        """Return the frame that begins at a position of the buffer, if it is complete."""
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
        if have < start + size:
            return None
        payload = bytes(buffer[at + start : at + start + size])
        if self._masked:
            payload = _unmask(payload, bytes(buffer[at + start - 4 : at + start]))
        return _Frame(bool(first & 0x80), kind, payload, start + size)

    def _add(self, frame: _Frame, raw: bytes) -> Message | None:
        """Add a frame to the message that it belongs to; return the message if this completes it."""
        if bool(self._payloads) is not (frame.kind == CONTINUATION):
            raise FrameError(PROTOCOL_ERROR, "invalid sequence of frames")
        if not self._payloads:
            if frame.final:
                return Message(frame.kind, frame.payload, raw)
            self._kind = frame.kind
        self._payloads.append(frame.payload)
        self._raw.append(raw)
        self._size += len(frame.payload)
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
