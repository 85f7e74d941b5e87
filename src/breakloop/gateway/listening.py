"""Addresses to listen on: bound without a server, for processes that share them; why one cannot be, in words; and as a
URL. Accepting from them is `server`'s and `sharing`'s."""

from __future__ import annotations

import errno
import socket
from typing import Final

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
