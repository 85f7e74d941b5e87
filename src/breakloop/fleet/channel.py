"""Messages between a worker and the control process, over a pair of connected sockets. What finds no room is not sent:
nobody ever waits for the other side. Which messages there are is `messages`' business."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from breakloop.fleet.messages import Message, decode, encode

_LENGTH_BYTES: Final = 4
_FRAME_MAX: Final = 256 * 1024 * 1024
_WAITING_MAX: Final = 1024 * 1024  # bytes that may wait for the other side to read

_log = logging.getLogger("breakloop.fleet")


class Channel(asyncio.Protocol):
    """One end. `received` gets each message, `ended` is called once, `roomy` when there is room again."""

    def __init__(
        self,
        received: Callable[[Message], None],
        ended: Callable[[], None],
        roomy: Callable[[], None] | None = None,
    ) -> None:
        self._received = received
        self._ended = ended
        self._roomy = roomy
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._full = False
        self._gone = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Tell whether something can be sent now."""
        return self._transport is not None and not self._full and not self._transport.is_closing()

    def send(self, message: Message) -> bool:
        """Send, if there is room; tells whether there was."""
        if self._transport is None or not self.has_room:
            return False
        data = encode(message)
        self._transport.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        return True

    def close(self) -> None:
        """End it, after what was sent."""
        if self._transport is not None:
            self._transport.close()

    async def finish(self, timeout_s: float) -> None:
        """End it when the other side has read everything: it closes then. Closing here at once would lose what it has
        not read, if it writes something meanwhile."""
        if self._transport is None:
            return
        if not self._transport.is_closing():
            self._transport.write_eof()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), timeout_s)
        self.close()

    # -- what the transport says -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It can be used."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WAITING_MAX)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """The other end is gone."""
        self._transport = None
        self._gone.set()
        self._ended()

    def pause_writing(self) -> None:
        """The other side does not read."""
        self._full = True

    def resume_writing(self) -> None:
        """It reads again."""
        self._full = False
        if self._roomy is not None:
            self._roomy()

    def data_received(self, data: bytes) -> None:
        """Take messages out of bytes."""
        buffer = self._buffer
        buffer += data
        begin = 0
        while len(buffer) - begin >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[begin : begin + _LENGTH_BYTES], "big")
            if length > _FRAME_MAX:
                self._refuse("a message is too long")
                return
            end = begin + _LENGTH_BYTES + length
            if len(buffer) < end:
                break
            self._take(bytes(buffer[begin + _LENGTH_BYTES : end]))
            begin = end
        del buffer[:begin]

    def _take(self, data: bytes) -> None:
        try:
            message = decode(data)
        except ValueError:
            self._refuse("a message cannot be read")
            return
        self._received(message)

    def _refuse(self, why: str) -> None:
        """The other end is of another kind than this one: better none than a wrong one."""
        _log.error("a channel is closed: %s", why)
        self._buffer.clear()
        if self._transport is not None:
            self._transport.abort()


async def open_channel(end: socket.socket, channel: Channel) -> None:
    """Connect a channel to its end of a pair."""
    end.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)
