"""The stand-in upstream: reads a whole request, gives the answer that a header field (`bench.runs`) or the last message
of a chat request (`bench.chat`) asks for, and does nothing else, for it shares a core with the load. `python -m
bench.upstream CERT KEY` prints its two ports, the second with TLS. (nginx would do for whole answers, but it answers
before it has read a large body.)"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from itertools import count
from time import monotonic_ns
from typing import cast

import uvloop

from bench import chat, runs

PACE_S = 0.02
_END_OF_HEAD = b"\r\n\r\n"
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"
_LENGTHS = (b"Content-Length: ", b"content-length: ")
_NUMBERS = count(1)


class Upstream(asyncio.Protocol):
    """One connection; a request at a time, as proxies send them."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._seen = b""  # of the request, as long as it is small
        self._left: int | None = None  # bytes of it that are still to come; None: its head is not complete
        self._first_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _problem: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._left is None:
            if not self._seen:
                self._first_ns = monotonic_ns()
            data, self._seen = self._seen + data, b""
            self._left = _message_length(data)
        if self._left is None:
            self._seen = data
            return
        if len(self._seen) <= chat.SMALL_BYTES:
            self._seen += data
        self._left -= len(data)
        if self._left <= 0:
            request, self._seen, self._left = self._seen, b"", None
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        asked = request.find(runs.ANSWER_FIELD, 0, request.find(_END_OF_HEAD))
        if asked >= 0:
            asked += len(runs.ANSWER_FIELD)
            self._write(runs.answer(request[asked : request.index(b"\r", asked)]))
            return
        at = -1 if len(request) > chat.SMALL_BYTES else request.find(chat.BEFORE_NUMBER)
        word = request[at - len(chat.WHOLE) : at]
        if at < 0 or word == chat.WHOLE:
            self._write(chat.answer())
        elif word == chat.FLAT_OUT:
            self._write(chat.stream_head() + b"".join(chat.stream_chunks()))
        elif word == chat.PACED:
            self._write(chat.stream_head())
            self._later(0)
        else:
            at += len(chat.BEFORE_NUMBER)
            heard = {"number": int(request[at : at + len(chat.NUMBER)]), "first_byte_ns": self._first_ns}
            self._write(chat.completion(json.dumps(heard)))

    def _write(self, answer: bytes) -> None:
        self._transport.write(chat.numbered(answer, next(_NUMBERS)))

    def _later(self, number: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(PACE_S, self._drip, number)

    def _drip(self, number: int) -> None:
        self._transport.write(chat.stream_chunks()[number])
        if number + 1 < chat.CHUNKS:
            self._later(number + 1)


def _message_length(data: bytes) -> int | None:
    """Bytes of the request that begins here, or None when that cannot be told yet."""
    end = data.find(_END_OF_HEAD)
    if end < 0:
        return None
    for name in _LENGTHS:  # spelled as the clients and proxies here spell it
        at = data.find(name, 0, end)
        if at >= 0:
            return end + len(_END_OF_HEAD) + int(data[at + len(name) : data.index(b"\r", at)])
    return len(data) if data.endswith(_END_OF_CHUNKS) else None


async def _serve(certificate: str, key: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Upstream, "127.0.0.1", 0, ssl=tls) for tls in (None, context)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:3]))
