"""What transports do not offer and their sockets do: ending with a reset, and seeing that somebody left unread."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from typing import Final

_AT_ONCE: Final = struct.pack("ii", 1, 0)  # linger for no time at all: what the other end gets is a reset


def reset(transport: asyncio.Transport) -> None:
    """End a connection so that the other end cannot take it for a proper end, nor has to read first to learn of it."""
    socket_ = transport.get_extra_info("socket")
    if socket_ is not None and not transport.is_closing():
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()


def has_left(transport: asyncio.Transport) -> bool:
    """Tell whether the other end is gone although nothing is read from it: a transport tells only readers."""
    socket_ = transport.get_extra_info("socket")
    if socket_ is None or socket_.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket_.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
