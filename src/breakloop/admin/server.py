"""Serves the admin plane with uvicorn, on the loop that is there already: no signal handlers, no loop, no log settings
of its own. The process decides when it starts and ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import uvicorn
from starlette.types import ASGIApp

_GRACE_S: Final = 1  # streams of events do not end by themselves
_CONNECTIONS_MAX: Final = 500
_BACKLOG: Final = 128


class _Quiet(uvicorn.Server):
    """Leaves signals to the process, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing of the kind."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        self.listening.set()


class AdminServer:
    """One listening port."""

    def __init__(self, app: ASGIApp, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._tls = tls
        self._server: _Quiet | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Begin to accept; returns the port. Raises `OSError` where it cannot listen."""
        sockets = _bound(self._host, self._port)
        config = uvicorn.Config(
            self._app,
            http="h11",  # strict, and this plane is not in a hurry
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what goes wrong is logged by `shield`, without anybody's header fields
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_graceful_shutdown=_GRACE_S,
        )
        config.load()
        config.ssl = self._tls
        self._server = _Quiet(config)
        self._task = asyncio.create_task(self._server.serve(sockets))
        await self._server.listening.wait()
        port: int = sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stop accepting, and end what is under way after a moment."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            with suppress(asyncio.CancelledError):
                await self._task
            self._server = self._task = None


def _bound(host: str, port: int) -> list[socket.socket]:
    """Listen on every address that the host has. Port 0 is the same free one on all of them."""
    bound: list[socket.socket] = []
    try:
        for found in dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)):
            family, _, _, _, address = found
            chosen = port or (bound[0].getsockname()[1] if bound else 0)
            one = socket.socket(family, socket.SOCK_STREAM)
            bound.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], chosen, *address[2:]))
            one.listen(_BACKLOG)
            one.setblocking(False)
    except BaseException:
        for one in bound:
            one.close()
        raise
    return bound
