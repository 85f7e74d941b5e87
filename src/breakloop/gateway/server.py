"""The server: listening, the sweep that enforces time limits once a second, and shutdown without losing replies.

Several worker processes can accept from one socket. The kernel would give nearly all connections of a burst to the
process that wakes up first, so `FairAcceptor` accepts only while its process has no more connections than the others; a
connection that waits for a few milliseconds is accepted by any process.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import mmap
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from breakloop.clock import Clock, SystemClock
from breakloop.gateway.connection import Connection, ServerCore
from breakloop.gateway.http_request import Handler, RequestLimits
from breakloop.observe.log import log

_ABSENT: Final = 0xFFFFFFFF
_PAUSE_S: Final = 0.001  # the resolution of the loop's clock
_PATIENCE_S: Final = 0.005  # on a busy machine, waking up takes some milliseconds
_NEXT_WAIT_S: Final = 0.02  # after this time, it must be another connection that waits
_BURST: Final = 32
_NO_DESCRIPTORS_S: Final = 1.0
_SLACK_SHIFT: Final = 3  # an eighth more than the process with the fewest is still fair
_RECENT_SHIFT: Final = 4
_RECENT_S: Final = 1.0


class ConnectionCounts:
    """Number of connections of each worker process, in shared memory."""

    def __init__(self, fd: int, count: int) -> None:
        self._memory = mmap.mmap(fd, count * 4)
        self._counts = memoryview(self._memory).cast("I")

    def remove(self, index: int) -> None:
        """The process accepts no connections, or no more."""
        self._counts[index] = _ABSENT

    def set(self, index: int, connections: int) -> None:
        self._counts[index] = connections

    def may_accept(self, connections: int, recent: int = 0) -> bool:
        """Return whether a process with so many connections may accept another one. `recent` connections make this more
        generous: many short connections need speed rather than fairness."""
        least = min(self._counts)
        return connections <= least + (least >> _SLACK_SHIFT) + (recent >> _RECENT_SHIFT)


class FairAcceptor:
    """The listener of a `Server` on a shared socket. `connected` returns the number of open connections."""

    def __init__(
        self,
        sock: socket.socket,
        counts: ConnectionCounts,
        index: int,
        make: Callable[[], asyncio.BaseProtocol],
        connected: Callable[[], int],
        tls: dict[str, Any] | None = None,
    ) -> None:
        self._sock = sock
        self._counts = counts
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
        if not self._closed:
            self._counts.set(self._index, self._connected() + len(self._opening))

    def close(self) -> None:
        """Stop accepting. The other processes keep the socket open, and accept what waits in it."""
        if self._closed:
            return
        self._closed = True
        self._counts.remove(self._index)
        if self._timer is None:
            self._loop.remove_reader(self._sock.fileno())
        else:
            self._timer.cancel()
        self._sock.close()

    async def wait_closed(self) -> None:
        """Wait for connections that are being accepted."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def _readable(self) -> None:
        if self._may_accept():
            self._patience_s = _PATIENCE_S
            for _ in range(_BURST):
                if not self._accept() or not self._may_accept():
                    return
        elif self._waits_for_others():
            self._pause(_PAUSE_S)
        else:
            self._patience_s /= 2
            self._waits_since = 0.0
            self._accept()

    def _may_accept(self) -> bool:
        return self._counts.may_accept(self._connected() + len(self._opening), self._recent)

    def _waits_for_others(self) -> bool:
        """Return whether to leave the connection to a process with fewer. If that is too busy to accept it in time, any
        process may, and the time becomes shorter each time."""
        now = self._loop.time()
        if now - self._waits_since > _NEXT_WAIT_S:
            self._waits_since = now
        return now - self._waits_since < self._patience_s

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._timer = self._loop.call_later(seconds, self._watch)

    def _accept(self) -> bool:
        try:
            accepted, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError:  # no descriptors left: retry when connections have been closed
            self._pause(_NO_DESCRIPTORS_S)
            return False
        accepted.setblocking(False)
        self._note_recent()
        task = self._loop.create_task(self._open(accepted))
        self._opening.add(task)
        task.add_done_callback(self._opened)
        self.changed()
        return True

    def _note_recent(self) -> None:
        now = self._loop.time()
        if now - self._recent_since > _RECENT_S:
            self._recent = 0
            self._recent_since = now
        self._recent += 1

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, accepted, **self._tls)
        except (OSError, TimeoutError):  # the client left at once, or the TLS handshake failed
            accepted.close()

    def _opened(self, task: asyncio.Task[Any]) -> None:
        self._opening.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        self.changed()


BACKLOG: Final = 1024
_SWEEP_S: Final = 1.0
_REPORT_S: Final = 60


class ListenError(OSError):
    """An address cannot be listened on; the message has the address and the reason."""


def _tls(tls: ssl.SSLContext | None, limits: RequestLimits) -> dict[str, Any]:
    """Return TLS options of a listener. The handshake has the time limit of a head, because it is not counted as a
    connection yet; the wait for close_notify is bounded, so that it does not delay shutdown."""
    return {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": limits.head_s, "ssl_shutdown_timeout": 1.0}


class Server(ServerCore):
    """The server of the data plane. Create it in a running event loop."""

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
        self._acceptors: list[FairAcceptor] = []
        self._timer: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None
        self._reported = (0, 0, 0)
        self._report_tick = 0  # when the next line about full limits may be logged
        self.status_lines.renew(self._clock.now())

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, tls: ssl.SSLContext | None = None) -> int:
        """Listen on an address; return the port. Raises `ListenError`."""
        # Without SO_REUSEPORT: a second instance must fail here instead of silently taking half of the traffic.
        try:
            listener = await self.loop.create_server(
                self._connect, host, port, backlog=BACKLOG, reuse_port=False, **_tls(tls, self.limits)
            )
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise ListenError(error.errno, f"cannot listen on {host}:{port}: {why}") from error
        self._begin(listener)
        return int(listener.sockets[0].getsockname()[1])

    def share(
        self, sock: socket.socket, counts: ConnectionCounts, index: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """Listen on a socket that other processes accept from, too."""
        sock.setblocking(False)
        acceptor = FairAcceptor(sock, counts, index, self._connect, self.live.__len__, _tls(tls, self.limits))
        self._acceptors.append(acceptor)
        self._begin(acceptor)

    def _begin(self, listener: asyncio.AbstractServer | FairAcceptor) -> None:
        self._listeners.append(listener)
        if self._timer is None:
            self._timer = self.loop.call_later(_SWEEP_S, self._on_timer)

    def _connect(self) -> Connection:
        return Connection(self)

    def _on_timer(self) -> None:
        self._timer = self.loop.call_later(_SWEEP_S, self._on_timer)
        self.sweep()

    def sweep(self) -> None:
        """Update the Date line and enforce time limits; called once a second."""
        self.tick += 1
        self.status_lines.renew(self._clock.now())
        self._report_limits()
        for step in [*[connection.expire for connection in self.live], *self.on_sweep]:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - fail-safe edge: the others must be checked too
                self.handler_failed(error)

    def _report_limits(self) -> None:
        """Log how many connections were refused or closed because of their number, at most once a minute."""
        counts = self.refused, self.refused_of_peer, self.reclaimed
        if counts == self._reported or self.tick < self._report_tick:
            return
        refused, of_peer, reclaimed = (now - before for now, before in zip(counts, self._reported, strict=True))
        fields: dict[str, object] = {"open": len(self.live), "refused": refused, "idle_closed": reclaimed}
        if of_peer:
            fields |= {"refused_of_peer": of_peer, "peer": self.refused_peer}
        log(logging.WARNING, "connections.limit", fields)
        self._reported, self._report_tick = counts, self.tick + _REPORT_S

    def remove(self, connection: Connection) -> None:
        """Drop a closed connection, and wake up `stop` after the last."""
        super().remove(connection)
        for acceptor in self._acceptors:
            acceptor.changed()
        if not self.live and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def stop(self, grace_s: float = 10.0) -> int:
        """Stop accepting, let requests finish for up to `grace_s`, close; return how many connections were cut off."""
        self.process_reads()
        self.draining = True
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self.live):
            connection.drain()
        await self._wait_until_empty(grace_s)
        left = tuple(self.live)
        for connection in left:
            connection.stop()
        await self._wait_until_empty(min(grace_s, 1.0))
        for connection in tuple(self.live):
            connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for callback in self.on_stop:
            callback()
        for listener in self._listeners:
            await listener.wait_closed()
        return len(left)

    async def _wait_until_empty(self, timeout_s: float) -> None:
        if self.live:
            self._empty = self.loop.create_future()
            await asyncio.wait((self._empty,), timeout=timeout_s)


_BIND_ERRORS: Final = {
    errno.EADDRINUSE: "is in use (stop the other program, or choose another port with --port)",
    errno.EACCES: "is not allowed (ports below 1024 need a privilege: choose another with --port)",
    errno.EADDRNOTAVAIL: "cannot be used: this machine has no such address (see --host)",
}


_OTHER_FILES: Final = 200  # open files beside connections: admin port, state, history, logs, Redis


def connections_for(wanted: int) -> int:
    """Return how many client connections the limit on open files allows, at most `wanted`. Each may need a second one
    to an upstream, so that clients alone cannot use up all files. The soft limit is raised first, up to the hard one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * wanted + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    if hard == resource.RLIM_INFINITY or hard > soft:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(OSError, ValueError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(wanted, max(1, (soft - _OTHER_FILES) // 2))


def bind(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for all addresses of a host, for processes that share them. Port 0 selects a free port,
    the same for all. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound.append(socket.socket(family, kind, protocol))
            chosen = port or (bound[0].getsockname()[1] if len(bound) > 1 else 0)
            _bind(bound[-1], (address[0], chosen, *address[2:]))
            bound[-1].listen(BACKLOG)
            bound[-1].setblocking(False)
    except BaseException:
        for one in bound:
            one.close()
        raise
    return bound


def check_free(host: str, port: int) -> None:
    """Raise `OSError` if another program listens on the port, or if binding is not permitted. Other errors show when it
    is bound. Nothing stays bound: this is a check before anything else is started."""
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


def _bind(sock: socket.socket, address: tuple[object, ...]) -> None:
    # Without SO_REUSEPORT: a second instance must fail here instead of silently taking half of the traffic.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind(address)


def why_not(host: str, port: int, error: OSError) -> str:
    """Describe why an address cannot be listened on."""
    # asyncio skips addresses that are not available; since Python 3.13, its error has no errno if none is left.
    why = _BIND_ERRORS.get(error.errno or errno.EADDRNOTAVAIL)
    return f"{host}:{port} {why}" if why else f"cannot listen on {host}:{port}: {error.strerror or error}"


def url(host: str, port: int, *, tls: bool) -> str:
    """Return the URL that clients connect to."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
