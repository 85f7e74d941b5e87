"""Addresses that are bound without a server."""

from __future__ import annotations

import errno
import socket

import pytest

from breakloop.gateway.server import bind, check_free, url, why_not
from tests.deadlines import DEADLINE_S


def test_a_free_port_is_listened_on() -> None:
    """Connections wait in its queue, whoever accepts them (S-5)."""
    (listener,) = bind("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname(), timeout=DEADLINE_S):
        assert not listener.getblocking()
        taken, _ = listener.accept()
        taken.close()


def test_nobody_else_gets_it() -> None:
    """A second instance fails, also one that would share the port (S-5)."""
    (listener,) = bind("127.0.0.1", 0)
    with listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError) as raised:
            bind("127.0.0.1", port)
        assert raised.value.errno == errno.EADDRINUSE
        with socket.socket() as sharing:
            sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            with pytest.raises(OSError):
                sharing.bind(("127.0.0.1", port))


def test_all_addresses_of_a_name_get_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` may be two; one that fails leaves none behind (S-5)."""
    two = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: two)
    bound = bind("two.example", 0)
    try:
        assert len({one.getsockname()[1] for one in bound}) == 1
        assert [one.getsockname()[0] for one in bound] == ["127.0.0.1", "127.0.0.2"]
        with pytest.raises(OSError):
            bind("two.example", bound[1].getsockname()[1])
    finally:
        for one in bound:
            one.close()


def test_a_port_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays bound; what is no matter of the port is left to the start (S-5)."""
    (listener,) = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with listener, pytest.raises(OSError) as raised:
        check_free("127.0.0.1", port)
    assert raised.value.errno == errno.EADDRINUSE
    check_free("127.0.0.1", port)
    check_free("127.0.0.1", port)

    def unknown(*_: object, **_options: object) -> None:
        raise socket.gaierror(-2, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    check_free("nowhere.example", port)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (errno.EADDRINUSE, "127.0.0.1:80 is in use (stop the other program"),
        (errno.EACCES, "127.0.0.1:80 is not allowed (ports below 1024"),
        (errno.EADDRNOTAVAIL, "127.0.0.1:80 cannot be used: this machine has no such address"),
        (errno.EMFILE, "cannot listen on 127.0.0.1:80: too many"),
    ],
)
def test_why_not(code: int, text: str) -> None:
    """One line that says what to do (T-2)."""
    assert why_not("127.0.0.1", 80, OSError(code, "too many")).startswith(text)


def test_url() -> None:
    """As clients write it (T-2)."""
    assert url("127.0.0.1", 1, tls=False) == "http://127.0.0.1:1"
    assert url("::1", 2, tls=True) == "https://[::1]:2"
