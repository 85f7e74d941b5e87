"""However a client's bytes are cut up, the upstream gets the same requests; and whatever reaches the upstream is what
h11 reads in the client's own bytes (Y-3). Over real sockets, in one process, so that every piece arrives alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import h11
import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.deadlines import DEADLINE_S
from tests.e2e.h11_upstream import H11Upstream, Heard
from tests.e2e.proxied import JSON, OCTETS
from tests.e2e.raw_client import chunked, request
from tests.e2e.stage import Gateway, gateway, turns_until

pytestmark = pytest.mark.e2e

LAST = request("GET", "/last", b"", "Connection: close")
HELLO = b"hello\r\n\r\n"
VALID = {
    "get": request("GET", "/a?b=c", b"", "X-A: 1", "X-A: 2"),
    "length": request("POST", "/a", HELLO, JSON),
    "length that passes in pieces": request("POST", "/a", HELLO, OCTETS),
    "chunks": request("POST", "/a", chunked(b"hel", b"lo\r\n\r\n"), JSON, "Transfer-Encoding: chunked"),
    "chunks that pass": request("POST", "/a", chunked(b"hel", b"lo\r\n\r\n"), OCTETS, "Transfer-Encoding: chunked"),
    "trailers": request(
        "POST", "/a", chunked(HELLO, trailers=b"A: b\r\nAuthorization: c\r\n"), OCTETS, "Transfer-Encoding: chunked"
    ),
    "extensions": request(
        "POST", "/a", b"9;a=b\r\n" + HELLO + b"\r\n0;c\r\n\r\n", OCTETS, "Transfer-Encoding: chunked"
    ),
    "pipelined": request("GET", "/1") + request("HEAD", "/2") + request("PUT", "/3", HELLO) + request("DELETE", "/4"),
    "h2c": request("POST", "/a", HELLO, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: A"),
    "empty line": b"\r\n" + request("POST", "/a", HELLO) + b"\r\n",
    "1.0": request("POST", "/a", HELLO, "Connection: keep-alive", version="1.0"),
}
INVALID = {
    "two lengths": request("POST", "/a", HELLO, "Content-Length: 9", "Content-Length: 9"),
    "two framings": request("POST", "/a", chunked(HELLO), "Content-Length: 9", "Transfer-Encoding: chunked"),
    "folded": request("POST", "/a", HELLO, "X: a", " b"),
    "bare LF": request("POST", "/a", HELLO, "X: a\nY: b"),
    "bad chunk": request("POST", "/a", b"3\r\nabcd\r\n0\r\n\r\n", JSON, "Transfer-Encoding: chunked"),
    "bad chunk that passes": request("POST", "/a", b"3\r\nabc\r\n3 \r\nabc\r\n", OCTETS, "Transfer-Encoding: chunked"),
    "bad trailer": request("POST", "/a", chunked(HELLO, trailers=b"Host: b\r\n"), OCTETS, "Transfer-Encoding: chunked"),
}


class Outcome(NamedTuple):
    """What came of a stream of requests: for the client, and for the upstream."""

    answered: bytes
    heard: list[Heard]


class Stage:
    """A client, a gateway and an h11 upstream in this loop."""

    def __init__(self, upstream: H11Upstream, server: Gateway) -> None:
        self.upstream = upstream
        self._gateway = server

    async def send(self, *pieces: bytes) -> Outcome:
        """Send these, each when the one before has arrived; the client reads until the end."""
        self.upstream.forget()
        self._gateway.forget()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.port)
        arrived, sent = self._gateway.from_client, []
        for piece in filter(None, pieces):
            if reader.at_eof() or writer.is_closing():
                break
            sent.append(piece)
            writer.write(piece)
            await turns_until(lambda: len(arrived) >= len(sent) or reader.at_eof())
        answered = await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
        if not self._gateway.bad_requests:
            assert arrived == sent, "the pieces did not arrive as they were sent"
        self._gateway.bad_requests = 0
        assert self.upstream.faults == []
        for pattern in (rb"(?<=X-Breakloop-Request-Id: )\S+", rb"(?<=date: )[^\r]+"):
            answered = re.sub(pattern, b"-", answered)
        heard = [one._replace(headers=unframed(one.headers)) for one in self.upstream.heard]
        return Outcome(answered.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""), heard)


def unframed(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without the framing: a body that came in one piece goes on with its length, another perhaps in chunks."""
    return [field for field in headers if field[0] not in {b"content-length", b"transfer-encoding", b"x-breakloop-hop"}]


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    async with H11Upstream() as upstream, gateway(folder, upstream.port) as server:
        yield Stage(upstream, server)


@pytest.mark.parametrize("name", [*VALID, *INVALID])
def test_requests_cut_in_two_at_every_byte(tmp_path: Path, name: str) -> None:
    """In two pieces, cut anywhere, and byte by byte: as in one (Y-3)."""
    stream = (VALID | INVALID)[name] + LAST

    async def acts() -> None:
        async with stage(tmp_path) as on:
            whole = await on.send(stream)
            targets = [heard.target for heard in whole.heard]
            assert targets == ([] if name in INVALID else [heard.target for heard in h11_reads(stream)])
            assert (b"HTTP/1.1 400" in whole.answered) is (name in INVALID)
            for at in range(1, len(stream)):
                assert await on.send(stream[:at], stream[at:]) == whole, at
            assert await on.send(*(stream[at : at + 1] for at in range(len(stream)))) == whole

    uvloop.run(acts())


def h11_reads(stream: bytes) -> list[Heard]:
    """The requests in a client's bytes, as h11 frames them, until it refuses or has no more."""
    requests: list[Heard] = []
    while stream := stream.removeprefix(b"\r\n"):  # RFC 9112 section 2.2: one empty line is skipped; h11 does not
        server = h11.Connection(h11.SERVER)
        server.receive_data(stream)
        try:
            found, body = server.next_event(), b""
            while isinstance(event := server.next_event(), h11.Data):
                body += event.data
        except h11.RemoteProtocolError:
            break
        if not isinstance(found, h11.Request) or not isinstance(event, h11.EndOfMessage):
            break
        requests.append(Heard(found.method.decode(), found.target.decode(), list(found.headers), body))
        stream = server.trailing_data[0]
    return requests


STARTS = st.sampled_from(
    [b"GET /g HTTP/1.1", b"POST /p HTTP/1.1", b"POST /p HTTP/1.0", b"HEAD /h HTTP/1.1", b"GET  / HTTP/1.1"]
)
FIELDS = st.sampled_from(
    [
        b"Host: a", b"Host:", b"host: b:80", b"Content-Length: 5", b"Content-Length: 05", b"Content-Length: 0", b"content-length:5 ", b"Content-Length: 5,5",
        b"Transfer-Encoding: chunked", b"transfer-encoding: CHUNKED ", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding : chunked", b"Transfer_Encoding: chunked",
        b"X: \x80\xff", b"X: a\x01b", b"X:\ta\t", b"X: a\nContent-Length: 5", b"X: a\r", b" folded", b"X", b"Connection: close", b"Connection: content-length, host",
        b"Connection: upgrade", b"Upgrade: h2c", b"Expect: 100-continue", b"Content-Type: application/json", b"Content-Type: a/b", b"Trailer: X", b"X-Breakloop-Hop: a",
    ]
)  # fmt: skip
BODIES = st.sampled_from(
    [
        b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"05\r\nhello\r\n0\r\n\r\n", b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n",
        b"5\r\nhello0\r\n\r\n", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"0\r\n\r\n", b"0\r\nHost: b\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", LAST,
    ]
)  # fmt: skip


@given(STARTS, st.lists(FIELDS, max_size=5), BODIES, st.floats(0, 1))
@example(
    b"POST /p HTTP/1.1",
    [b"Host: a", b"Transfer-Encoding: chunked", b"Content-Type: a/b"],
    b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n",
    0.8,
)
@example(b"POST /p HTTP/1.1", [b"Host: a", b"Content-Length: 5"], b"hello", 0.9)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_reaches_the_upstream_is_what_h11_reads(
    tmp_path: Path, start: bytes, fields: list[bytes], body: bytes, cut: float
) -> None:
    """h11 on the upstream's side understands every byte, and finds the requests that it finds on the client's (Y-3)."""
    stream = b"\r\n".join([start, *fields, b"", b""]) + body + LAST

    async def acts() -> None:
        async with stage(tmp_path) as on:
            at = int(cut * len(stream))
            outcome = await on.send(stream[:at], stream[at:])
            expected = h11_reads(stream)[: len(outcome.heard)]
            assert [(one.method, one.target, one.body) for one in outcome.heard] == [
                (one.method, one.target, one.body) for one in expected
            ]
            assert outcome.answered.count(b"HTTP/1.1 200") == len(outcome.heard)

    uvloop.run(acts())
