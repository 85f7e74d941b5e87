"""The pool: which connection is taken, what is kept, what is thrown away. Whole exchanges are in test_exchange."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

from breakloop.config import settings
from breakloop.gateway import upstream as pools
from breakloop.gateway.http_request import Reply
from breakloop.gateway.http_response import ResponseHeadParser
from breakloop.gateway.server import Server
from breakloop.gateway.upstream import UpstreamPool, connect_error
from breakloop.model.upstream import parse_upstream
from tests.each import each
from tests.unit.gateway.fake_client import FakeTransport, get
from tests.unit.gateway.fake_upstream import FakeConnection, Proxy


def idle(proxy: Proxy, count: int) -> list[FakeConnection]:
    """So many connections that wait for work, the latest last."""
    pool = proxy.pools["up"]
    made = []
    for _ in range(count):
        connection = FakeConnection(proxy.server, pool)
        connection.connection_made(FakeTransport())
        connection.reusable = True
        connection.finish()
        made.append(connection)
    return made


def test_the_latest_is_taken_first_and_dead_ones_are_passed_over() -> None:
    with Proxy() as proxy:
        one, two, three = idle(proxy, 3)
        three.wire.closed = True
        pool = proxy.pools["up"]
        assert [pool.take(), pool.take(), pool.take()] == [two, one, None]


def test_only_so_many_are_kept() -> None:
    with Proxy() as proxy:
        made = idle(proxy, pools._IDLE_MAX + 1)
        assert [connection.wire.aborted for connection in made] == [False] * pools._IDLE_MAX + [True]
        assert len(proxy.pools["up"].live) == pools._IDLE_MAX


def test_the_oldest_go_first() -> None:
    with Proxy(times=settings.Proxy(idle_seconds=2)) as proxy:
        old = idle(proxy, 1)[0]
        proxy.server.sweep()
        new = idle(proxy, 1)[0]
        proxy.server.sweep()
        assert (old.wire.aborted, new.wire.aborted) == (True, False)


def test_one_that_dies_idle_is_forgotten() -> None:
    with Proxy() as proxy:
        [only] = idle(proxy, 1)
        only.goes()
        assert proxy.pools["up"].take() is None
        assert not proxy.pools["up"].live


def test_the_end_closes_everything() -> None:
    """Idle ones, and those at work (S-6)."""
    with Proxy() as proxy:
        proxy.send(get("/a"))
        [waiting] = idle(proxy, 1)
        proxy.pools["up"].close()
        assert (waiting.wire.aborted, proxy.upstream().wire.aborted) == (True, True)


def test_nothing_is_kept_while_the_server_stops() -> None:
    with Proxy() as proxy:
        proxy.server.draining = True
        assert idle(proxy, 1)[0].wire.aborted


@each(
    "error, said",
    [
        (ConnectionRefusedError(), "refused the connection"),
        (OSError("somewhere:443 failed"), "could not be reached"),
        (ssl.SSLError("bad record"), "failed the TLS handshake"),
        (socket.gaierror(-2, "somewhere"), "has a host name that cannot be resolved (DNS)"),
        (TimeoutError(), "did not accept the connection in time"),
        (OSError(errno.ETIMEDOUT, "somewhere"), "did not accept the connection in time"),
        (ConnectionResetError(), "closed the connection while connecting"),
        (OSError(errno.EHOSTUNREACH, "somewhere"), "cannot be reached: no route to host"),
        (OSError("Multiple exceptions: [Errno 111] ('::1', 9), [Errno 111] ('127.0.0.1', 9)"), "refused the connection"),
        (OSError("Multiple exceptions: [Errno 111] ('::1', 9), [Errno 113] ('127.0.0.1', 9)"), "could not be reached"),
    ],
)  # fmt: skip
def test_why_there_is_no_connection(error: OSError, said: str) -> None:
    """What the system says about addresses is not for clients (Y-1)."""
    assert connect_error(error) == said


def test_a_certificate_that_is_not_trusted_is_named() -> None:
    error = ssl.SSLCertVerificationError(1, "x")
    error.verify_message = "self-signed certificate"
    assert connect_error(error) == "has a certificate that is not trusted: self-signed certificate"


def test_a_real_connection_is_made_and_counted() -> None:
    """The one thing that the fakes do not do."""

    async def run() -> int:
        taken = asyncio.Event()

        def take(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            taken.set()

        listener = await asyncio.start_server(take, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        server = Server(lambda _request: Reply(200))
        pool = UpstreamPool(
            parse_upstream("x", f"http://127.0.0.1:{port}"), server, settings.Proxy(), None, ResponseHeadParser()
        )
        connection = await pool.connect()
        await taken.wait()
        assert connection in pool.live
        pool.close()
        listener.close()
        await server.stop(0)
        return pool.opened

    assert asyncio.run(run()) == 1
