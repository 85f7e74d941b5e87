"""Connections to one upstream: kept alive between requests, and made when none is idle. What goes over one of them is
`upstream`'s business."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from breakloop.gateway.answer_head import AnswerHeads
from breakloop.gateway.hub import Hub
from breakloop.gateway.upstream import UpstreamConnection
from breakloop.model.upstream import Upstream
from breakloop.settings_fields import HTTP_IDLE_S, HTTPS_IDLE_S, Proxy

_IDLE_MAX: Final = 256  # connections kept without work, for each upstream
_RESET: Final = "closed the connection while it was made"
_NO_WAY: Final = "cannot be reached: there is no way to its address from here"
_CAUSES: Final = {
    errno.ECONNREFUSED: "refused the connection",
    errno.ECONNRESET: _RESET,
    errno.ECONNABORTED: _RESET,
    errno.EPIPE: _RESET,
    errno.EHOSTUNREACH: _NO_WAY,
    errno.ENETUNREACH: _NO_WAY,
    errno.EADDRNOTAVAIL: "cannot be reached: this machine has no free port or no fitting address left",
    errno.EMFILE: "cannot be reached: this process has too many files open",
    errno.ETIMEDOUT: "did not take the connection in time",
}
_KINDS: Final = ((ConnectionRefusedError, errno.ECONNREFUSED), (ConnectionError, errno.ECONNRESET))


_DEFAULTS: Final = Proxy()


@dataclass(frozen=True, slots=True)
class Times:
    """How long an upstream may take, in seconds."""

    connect_s: float = _DEFAULTS.connect_seconds
    answer_s: float = _DEFAULTS.answer_seconds  # until its answer begins, and between two pieces of it
    idle_s: float = _DEFAULTS.idle_seconds  # how long a connection is kept without work; 0: `idle_for` decides

    def idle_for(self, *, tls: bool) -> float:
        """Return how long a connection is kept."""
        return self.idle_s or (HTTPS_IDLE_S if tls else HTTP_IDLE_S)


class Pool:
    """The connections to one upstream."""

    __slots__ = ("_idle", "_idle_s", "_ssl", "heads", "hub", "live", "opened", "times", "upstream")

    def __init__(
        self, upstream: Upstream, hub: Hub, times: Times, tls: ssl.SSLContext | None, heads: AnswerHeads
    ) -> None:
        self.upstream = upstream
        self.times = times
        self.heads = heads
        self.opened = 0  # connections made since the start
        self.live: set[UpstreamConnection] = set()
        self.hub = hub
        self._ssl = tls if upstream.tls else None
        self._idle: list[UpstreamConnection] = []  # the latest last: it is the surest to be alive
        self._idle_s = times.idle_for(tls=upstream.tls)

    def take(self) -> UpstreamConnection | None:
        """Return an idle connection, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def connect(self) -> UpstreamConnection:
        """Make a connection. Raises `OSError` (of `ssl` too)."""
        upstream = self.upstream
        name = upstream.host if self._ssl is not None else None
        _, connection = await self.hub.loop.create_connection(
            lambda: UpstreamConnection(self.hub, self),
            upstream.host,
            upstream.port,
            ssl=self._ssl,
            server_hostname=name,
        )
        self.opened += 1
        return connection

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request."""
        if len(self._idle) >= _IDLE_MAX or self.hub.draining:
            connection.discard()
        else:
            connection.since = self.hub.tick
            self._idle.append(connection)

    def sweep(self) -> None:
        """Close what was idle for too long; called once a second."""
        oldest = self.hub.tick - self._idle_s
        while self._idle and self._idle[0].since <= oldest:
            self._idle.pop(0).discard()

    def forget(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        self.live.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """End everything."""
        for connection in tuple(self.live):
            connection.discard()
        self._idle.clear()


def unreachable(error: BaseException) -> str:
    """Say what kind of failure it was that there is no connection, without what the system says about addresses."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "does not speak TLS as we do"
    if isinstance(error, socket.gaierror):
        return "has a host name that cannot be resolved (DNS)"
    if isinstance(error, TimeoutError):
        return "did not take the connection in time"
    return _CAUSES.get(_errno(error), "could not be reached")


def _errno(error: BaseException) -> int:
    """Return the system's number for it. A host with several addresses fails with all of their numbers in one text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    number = found.pop() if len(found) == 1 else 0
    return number or next((code for kind, code in _KINDS if isinstance(error, kind)), 0)
