"""Listening, the one sweep per second that enforces every time limit, and shutting down without losing replies."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Any

from breakloop.clock import Clock, SystemClock
from breakloop.gateway.bounds import Limits
from breakloop.gateway.connection import Connection
from breakloop.gateway.head import Handler
from breakloop.gateway.hub import Hub, Member
from breakloop.gateway.sharing import Shares, Turns

_SWEEP_S = 1.0
_BACKLOG = 1024


class ListenError(OSError):
    """The address cannot be listened on; the message says which and why."""


def _tls(tls: ssl.SSLContext | None, limits: Limits) -> dict[str, Any]:
    """A handshake may take as long as a head: before it is over, a connection is not even counted. A farewell that is
    not answered must not hold up the end of the process."""
    return {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": limits.head_s, "ssl_shutdown_timeout": 1.0}


class Server(Hub):
    """The data plane's server. Its counters are plain integers, see `Hub`. Make it inside a running loop."""

    def __init__(
        self,
        handler: Handler,
        limits: Limits | None = None,
        *,
        clock: Clock | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(handler, limits or Limits(), loop or asyncio.get_running_loop())
        self._clock = clock or SystemClock()
        self._listeners: list[asyncio.AbstractServer | Turns] = []
        self._turns: list[Turns] = []
        self._timer: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None
        self.lines.renew(self._clock.now())

    async def start(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        sock: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """Listen on an address, or on a socket that is bound already; returns the port (0 for a Unix socket)."""
        listener = await (self._listen(host, port, tls) if sock is None else self._adopt(sock, tls))
        self._begin(listener)
        name = listener.sockets[0].getsockname()
        return int(name[1]) if isinstance(name, tuple) else 0

    def share(self, sock: socket.socket, shares: Shares, index: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a socket that other processes accept from, too."""
        sock.setblocking(False)
        turns = Turns(sock, shares, index, self._connect, self.live.__len__, _tls(tls, self.limits))
        self._turns.append(turns)
        self._begin(turns)

    def _begin(self, listener: asyncio.AbstractServer | Turns) -> None:
        self._listeners.append(listener)
        if self._timer is None:
            self._timer = self.loop.call_later(_SWEEP_S, self._on_timer)

    async def _listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
        # Without SO_REUSEPORT: a second instance must fail here and not silently take half of the traffic.
        try:
            return await self.loop.create_server(
                self._connect, host, port, backlog=_BACKLOG, reuse_port=False, **_tls(tls, self.limits)
            )
        except OSError as error:
            why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise ListenError(error.errno, f"cannot listen on {host}:{port}: {why}") from error

    async def _adopt(self, sock: socket.socket, tls: ssl.SSLContext | None) -> asyncio.Server:
        sock.setblocking(False)
        options = _tls(tls, self.limits)
        if sock.family == socket.AF_UNIX:
            return await self.loop.create_unix_server(self._connect, sock=sock, backlog=_BACKLOG, **options)
        return await self.loop.create_server(self._connect, sock=sock, backlog=_BACKLOG, **options)

    def _connect(self) -> Connection:
        return Connection(self)

    def _on_timer(self) -> None:
        self._timer = self.loop.call_later(_SWEEP_S, self._on_timer)
        self.sweep()

    def sweep(self) -> None:
        """One second has passed: renew the Date line and end what takes too long."""
        self.tick += 1
        self.lines.renew(self._clock.now())
        for step in [*[connection.expire for connection in self.live], *self.sweeps]:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - the outermost edge: the others are looked at all the same
                self.handler_failed(error)

    def gone(self, connection: Member) -> None:
        """Forget a closed connection, and let `stop` know when it was the last."""
        super().gone(connection)
        for turns in self._turns:
            turns.changed()
        if not self.live and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def stop(self, grace_s: float = 10.0) -> int:
        """Stop accepting, let running requests finish for up to `grace_s`, close; returns how many were cut off."""
        self.answer()
        self.draining = True
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self.live):
            connection.drain()
        await self._wait_until_empty(grace_s)
        left = tuple(self.live)
        for connection in left:
            connection.cut()
        await self._wait_until_empty(min(grace_s, 1.0))
        for connection in tuple(self.live):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for ending in self.endings:
            ending()
        for listener in self._listeners:
            await listener.wait_closed()
        return len(left)

    async def _wait_until_empty(self, timeout_s: float) -> None:
        if self.live:
            self._empty = self.loop.create_future()
            await asyncio.wait((self._empty,), timeout=timeout_s)
