"""The line between the supervisor and each of its processes: short messages, and sockets that are handed over. Its end
is how one learns that the other is gone, whatever it died of."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

_TEXT_MAX: Final = 32 * 1024  # of one value: a packet has to fit into the socket's buffer
_PACKET_MAX: Final = 128 * 1024
_FDS_MAX: Final = 4

Say = dict[str, Any]


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a line."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Line:
    """One end. `heard` gets each message with the sockets that came with it, `ended` is called once."""

    def __init__(
        self,
        end: socket.socket,
        heard: Callable[[Say, list[socket.socket]], None],
        ended: Callable[[], None],
    ) -> None:
        self._end = end
        self._heard = heard
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._open = True
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._read)

    def say(self, message: Say, sockets: Sequence[socket.socket] = ()) -> bool:
        """Send a message; tells whether it could be. Texts that are far too long are cut."""
        if not self._open:
            return False
        short = {name: value[:_TEXT_MAX] if isinstance(value, str) else value for name, value in message.items()}
        try:
            socket.send_fds(self._end, [json.dumps(short).encode()], [one.fileno() for one in sockets])
        except OSError:  # full, or gone: that it is gone is told by reading
            return False
        return True

    def drain(self) -> None:
        """Take what has come and was not looked at yet."""
        self._read()

    def close(self) -> None:
        """End it from this side; nobody is told here."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._end.fileno())
            self._end.close()

    def _read(self) -> None:
        while self._open:
            try:
                data, fds, _, _ = socket.recv_fds(self._end, _PACKET_MAX, _FDS_MAX)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self.close()
                self._ended()
                return
            self._take(data, fds)

    def _take(self, data: bytes, fds: list[int]) -> None:
        for fd in fds:
            os.set_inheritable(fd, False)
        sockets = [socket.socket(fileno=fd) for fd in fds]
        with suppress(ValueError):  # cut off: the packet was larger than any that is sent
            message: Say = json.loads(data)
            self._heard(message, sockets)
