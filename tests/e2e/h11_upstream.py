"""An upstream that reads with h11: a second opinion on what the gateway sends, and a record of every byte of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, Self, cast

import h11

from breakloop.testing.llm import LoopThread

Headers = list[tuple[bytes, bytes]]


class Heard(NamedTuple):
    """A request that was complete."""

    method: str
    target: str
    headers: Headers
    body: bytes

    def all(self, name: bytes) -> list[bytes]:
        return [value for known, value in self.headers if known == name]


class H11Upstream:
    """Answers every request with its target; `async with` runs it."""

    def __init__(self) -> None:
        self.port = 0
        self.heard: list[Heard] = []
        self.raw: list[bytearray] = []  # one for each connection
        self.faults: list[str] = []
        self.unfinished: list[str] = []  # targets of requests whose connection ended before their body

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[Self]:
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def __aenter__(self) -> Self:
        self._held = self._running()
        return await self._held.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await self._held.__aexit__(None, None, None)

    def forget(self) -> None:
        """Begin a new act."""
        for record in (self.heard, self.raw, self.faults, self.unfinished):
            record.clear()

    @property
    def received(self) -> int:
        return sum(map(len, self.raw))


class ThreadedUpstream:
    """The same in a thread of its own."""

    def __init__(self) -> None:
        self.upstream = H11Upstream()
        self._thread = LoopThread(self.upstream)

    def __enter__(self) -> H11Upstream:
        self._thread.start()
        return self.upstream

    def __exit__(self, *_: object) -> None:
        self._thread.stop()


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: H11Upstream) -> None:
        self._upstream = upstream
        self._h11 = h11.Connection(h11.SERVER)
        self._request: h11.Request | None = None
        self._body = b""
        self._raw = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._raw:
            self._upstream.raw.append(self._raw)
        self._raw += data
        self._h11.receive_data(data)
        try:
            while self._take(self._h11.next_event()):
                pass
        except h11.RemoteProtocolError as error:
            self._upstream.faults.append(f"{error}: {bytes(self._raw[-200:])!r}")
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._request is not None:
            self._upstream.unfinished.append(self._request.target.decode())

    def _take(self, event: object) -> bool:
        if isinstance(event, h11.Request):
            self._request, self._body = event, b""
        elif isinstance(event, h11.Data):
            self._body += event.data
        elif isinstance(event, h11.EndOfMessage):
            self._answer()
        elif event is h11.NEED_DATA or event is h11.PAUSED:
            return False
        return True

    def _answer(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        method, target = request.method.decode(), request.target.decode()
        self._upstream.heard.append(Heard(method, target, list(request.headers), self._body))
        content = b"%b %b" % (request.method, request.target)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(content)
        self._transport.write(head if request.method == b"HEAD" else head + content)
        self._h11.send(h11.Response(status_code=200, headers=[("content-length", str(len(content)))]))
        if request.method != b"HEAD":
            self._h11.send(h11.Data(data=content))
        self._h11.send(h11.EndOfMessage())
        if self._h11.our_state is h11.DONE:
            self._h11.start_next_cycle()
