"""Listening, the one sweep per second that enforces every time limit, and shutting down without losing replies.

Addresses to listen on: bound without a server, for processes that share them; why one cannot be, in words; and as a
URL. Accepting from them is `server`'s and `sharing`'s.

Several processes that accept from one listening socket. The system would give nearly all connections of a burst to
whoever wakes up first, so each takes one only while it has no more than the others have; a connection that nobody
takes within a moment is taken by anybody. Who the processes are is `fleet`'s business.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from breakloop.clock import Clock, SystemClock
from breakloop.gateway.connection import Connection
from breakloop.gateway.http_request import Handler, RequestLimits
from breakloop.gateway.hub import LoopTurn, TurnMember

_ABSENT: Final = 0xFFFFFFFF
_PAUSE_S: Final = 0.001  # the finest that the loop's clock has
_PATIENCE_S: Final = 0.005  # on a busy machine it takes some milliseconds to wake up
_AGAIN_S: Final = 0.02  # so long after it began to wait, it is another connection that waits
_AT_ONCE: Final = 32
_NONE_LEFT_S: Final = 1.0
_SLACK_SHIFT: Final = 3  # an eighth more than the least is still fair
_RECENT_SHIFT: Final = 4
_RECENT_S: Final = 1.0


class ConnectionCounts:
    """How many connections each process has, in memory that all of them see."""

    __slots__ = ("_counts", "_memory")

    def __init__(self, fd: int, count: int) -> None:
        self._memory = mmap.mmap(fd, count * 4)
        self._counts = memoryview(self._memory).cast("I")

    def absent(self, index: int) -> None:
        """It takes no connections, or none any more."""
        self._counts[index] = _ABSENT

    def has(self, index: int, connections: int) -> None:
        """It has so many now."""
        self._counts[index] = connections

    def allows(self, connections: int, recent: int = 0) -> bool:
        """Tell whether somebody with so many may take another one, after so many that were taken just now. Connections
        that come and go by the thousand need no fairness, but speed."""
        least = min(self._counts)
        return connections <= least + (least >> _SLACK_SHIFT) + (recent >> _RECENT_SHIFT)

    def shown(self) -> list[int | None]:
        """Return all of them; None for those that are absent."""
        return [None if count == _ABSENT else count for count in self._counts]


class FairAcceptor:
    """Accepts for one process, as a `Server`'s listener. `connected` counts the connections that are open."""

    def __init__(
        self,
        sock: socket.socket,
        shares: ConnectionCounts,
        index: int,
        make: Callable[[], asyncio.BaseProtocol],
        connected: Callable[[], int],
        tls: dict[str, Any] | None = None,
    ) -> None:
        self._sock = sock
        self._shares = shares
        self._index = index
        self._make = make
        self._connected = connected
        self._tls = tls or {}
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._waits_since = 0.0
        self._patience_s = _PATIENCE_S
        self._recent = 0  # accepted since then
        self._recent_since = 0.0
        self._closed = False
        self._watch()
        self.changed()

    def changed(self) -> None:
        """Tell the others how many there are now."""
        if not self._closed:
            self._shares.has(self._index, self._connected() + len(self._opening))

    def close(self) -> None:
        """Accept no more. The socket itself stays open elsewhere: what waits in it is for the others."""
        if self._closed:
            return
        self._closed = True
        self._shares.absent(self._index)
        if self._timer is None:
            self._loop.remove_reader(self._sock.fileno())
        else:
            self._timer.cancel()
        self._sock.close()

    async def wait_closed(self) -> None:
        """Wait for connections that were just being made."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def _readable(self) -> None:
        if self._may():
            self._patience_s = _PATIENCE_S
            for _ in range(_AT_ONCE):
                if not self._accept() or not self._may():
                    return
        elif self._is_patient():
            self._rest(_PAUSE_S)
        else:
            self._patience_s, self._waits_since = self._patience_s / 2, 0.0
            self._accept()

    def _may(self) -> bool:
        return self._shares.allows(self._connected() + len(self._opening), self._recent)

    def _is_patient(self) -> bool:
        """Whoever has less is awake too, and will be quicker. If not, it is busy: after a moment anybody may, and after
        a shorter one each time that goes on."""
        now = self._loop.time()
        if now - self._waits_since > _AGAIN_S:
            self._waits_since = now
        return now - self._waits_since < self._patience_s

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._timer = self._loop.call_later(seconds, self._watch)

    def _accept(self) -> bool:
        try:
            taken, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError:  # no descriptors left: those that wait get their turn when others have gone
            self._rest(_NONE_LEFT_S)
            return False
        taken.setblocking(False)
        self._note_recent()
        task = self._loop.create_task(self._open(taken))
        self._opening.add(task)
        task.add_done_callback(self._opened)
        self.changed()
        return True

    def _note_recent(self) -> None:
        now = self._loop.time()
        if now - self._recent_since > _RECENT_S:
            self._recent, self._recent_since = 0, now
        self._recent += 1

    async def _open(self, taken: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, taken, **self._tls)
        except (OSError, TimeoutError):  # it left at once, or a handshake that failed: as if it had never come
            taken.close()

    def _opened(self, task: asyncio.Task[Any]) -> None:
        self._opening.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that nobody is told of it at the end
        self.changed()


_SWEEP_S = 1.0
_BACKLOG = 1024


class ListenError(OSError):
    """The address cannot be listened on; the message says which and why."""


def _tls(tls: ssl.SSLContext | None, limits: RequestLimits) -> dict[str, Any]:
    """A handshake may take as long as a head: before it is over, a connection is not even counted. A farewell that is
    not answered must not hold up the end of the process."""
    return {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": limits.head_s, "ssl_shutdown_timeout": 1.0}


class Server(LoopTurn):
    """The data plane's server. Its counters are plain integers, see `LoopTurn`. Make it inside a running loop."""

    def __init__(
        self,
        handler: Handler,
        limits: RequestLimits | None = None,
        *,
        clock: Clock | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(handler, limits or RequestLimits(), loop or asyncio.get_running_loop())
        self._clock = clock or SystemClock()
        self._listeners: list[asyncio.AbstractServer | FairAcceptor] = []
        self._turns: list[FairAcceptor] = []
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

    def share(
        self, sock: socket.socket, shares: ConnectionCounts, index: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """Listen on a socket that other processes accept from, too."""
        sock.setblocking(False)
        turns = FairAcceptor(sock, shares, index, self._connect, self.live.__len__, _tls(tls, self.limits))
        self._turns.append(turns)
        self._begin(turns)

    def _begin(self, listener: asyncio.AbstractServer | FairAcceptor) -> None:
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

    def gone(self, connection: TurnMember) -> None:
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


BACKLOG: Final = 1024
_WHY: Final = {
    errno.EADDRINUSE: "is in use (stop the other program, or choose another port with --port)",
    errno.EACCES: "is not allowed (ports below 1024 need a privilege: choose another with --port)",
    errno.EADDRNOTAVAIL: "cannot be used: this machine has no such address (see --host)",
}


def bind(host: str, port: int) -> list[socket.socket]:
    """Listen on every address that the host has; raises `OSError`. Port 0 is the same free one on all of them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound.append(socket.socket(family, kind, protocol))
            chosen = port or (bound[0].getsockname()[1] if len(bound) > 1 else 0)
            _listen(bound[-1], (address[0], chosen, *address[2:]))
    except BaseException:
        for one in bound:
            one.close()
        raise
    return bound


def check_free(host: str, port: int) -> None:
    """Raise `OSError` where another program listens there, or we may not; whatever else is wrong shows when it is
    bound. Nothing stays bound: this is for a start that must not touch anything before it knows."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            with socket.socket(family, kind, protocol) as tried:
                _bind(tried, address)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                raise


def _listen(sock: socket.socket, address: tuple[object, ...]) -> None:
    _bind(sock, address)
    sock.listen(BACKLOG)
    sock.setblocking(False)


def _bind(sock: socket.socket, address: tuple[object, ...]) -> None:
    # Without SO_REUSEPORT: a second instance must fail here and not silently take half of the traffic.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind(address)


def why_not(host: str, port: int, error: OSError) -> str:
    """Return one line about an address that cannot be listened on."""
    why = _WHY.get(error.errno or 0)
    return f"{host}:{port} {why}" if why else f"cannot listen on {host}:{port}: {error.strerror or error}"


def url(host: str, port: int, *, tls: bool) -> str:
    """Return where clients connect to."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
