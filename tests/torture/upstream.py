"""An upstream in a process of its own: `python -m tests.torture.upstream` prints its port. A request says in its head how
it is answered: `X-Hold: SECONDS` delays the response, `X-Events: N` streams so many tiny events as fast as they are taken.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

import uvloop

from tests.e2e.forking import ROOT, SRC

_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HOLD: Final = re.compile(rb"\r\nx-hold: *([\d.]+)", re.IGNORECASE)
_EVENTS: Final = re.compile(rb"\r\nx-events: *(\d+)", re.IGNORECASE)
_BODY: Final = (
    b'{"id":"a","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"Done."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}'
)
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)
_STREAM: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
EVENT: Final = b'data: {"choices":[{"delta":{"content":"%07d "}}]}\n\n'
_BATCH: Final = 2000


class Upstream(asyncio.Protocol):
    """One connection, one request at a time."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._head = b""
        self._left = -1  # bytes of the body that are still to come; -1: the head is not complete
        self._events = 0
        self._sent = 0
        self._may_write = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            end = self._head.find(_END)
            if end < 0:
                return
            length = _LENGTH.search(self._head, 0, end)
            self._left = int(length[1]) if length else 0
            data, self._head = self._head[end + len(_END) :], self._head[: end + 2]
        self._left -= len(data)
        if self._left <= 0:
            head, self._head, self._left = self._head, b"", -1
            hold, events = _HOLD.search(head), _EVENTS.search(head)
            self._events, self._sent = int(events[1]) if events else 0, 0
            asyncio.get_running_loop().call_later(float(hold[1]) if hold else 0, self._answer)

    def _answer(self) -> None:
        if not self._events:
            self._transport.write(_ANSWER)
            return
        self._transport.write(_STREAM)
        self._more()

    def _more(self) -> None:
        while self._may_write and self._sent < self._events and not self._transport.is_closing():
            last = min(self._events, self._sent + _BATCH)
            self._transport.write(b"".join(EVENT % number for number in range(self._sent, last)))
            self._sent = last
        if self._sent >= self._events:
            self._transport.write(b"data: [DONE]\n\n")
            self._transport.close()

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        self._more()


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def upstream() -> Iterator[str]:
    """Run one; returns its URL."""
    environment = {"PYTHONPATH": f"{SRC}:{ROOT}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    uvloop.run(_main())
