"""Large bodies that cannot be confused with anything, their digests, and how much of them may be on the way."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable

from tests.e2e.proxied import MIB
from tests.e2e.raw_client import RawClient

BLOCK = os.urandom(MIB)
BOUND_MIB = 64.0
BETWEEN_MIB = 24.0  # what two pairs of sockets may hold between them on a machine that gives them much


def some(size: int) -> bytes:
    """So many bytes of noise."""
    return (BLOCK * (size // MIB + 1))[:size]


def pieces(size: int, piece_bytes: int = 64 * 1024) -> list[bytes]:
    """The same, cut up."""
    content = some(size)
    return [content[at : at + piece_bytes] for at in range(0, size, piece_bytes)]


def sha(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def upload(client: RawClient, content: bytes, *lines: str, chunk_bytes: int = 0) -> None:
    """Send a POST, with its length or in chunks of a size."""
    if chunk_bytes:
        client.ask("POST", "/upload", b"", "Transfer-Encoding: chunked", *lines)
        for at in range(0, len(content), chunk_bytes):
            piece = content[at : at + chunk_bytes]
            client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        client.send(b"0\r\n\r\n")
    else:
        client.ask("POST", "/upload", b"", f"Content-Length: {len(content)}", *lines)
        client.send(content)


def standstill(value: Callable[[], int]) -> int:
    """Wait until a number has not grown for a while."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < 0.4:
        if (now := value()) != last:
            last, since = now, time.monotonic()
        time.sleep(0.02)
    return last
