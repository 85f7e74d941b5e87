"""Compressing and re-cutting the pieces of a body, on the fly."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator

from breakloop.testing.http import SeenRequest

_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


def accepted(seen: SeenRequest, coding: str) -> bool:
    """Tell whether the client takes this content coding."""
    if not coding:
        return False
    offers = ",".join(seen.header_all("accept-encoding")).lower().split(",")
    named = {name.strip(): weight.replace(" ", "") for name, _, weight in (offer.partition(";") for offer in offers)}
    weight = named.get(coding, named.get("*"))
    return weight is not None and weight not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}


def compressed(
    pieces: Iterable[bytes], coding: str, packed_by: Callable[[bytes], bytes] | None, *, streamed: bool
) -> Iterable[bytes]:
    """Compress a body: piece by piece where it is streamed and the coding can be flushed."""
    if packed_by is not None:
        plain = list(pieces)
        packed = packed_by(b"".join(plain))
        return list(pieces_of([packed], -(-len(packed) // max(len(plain), 1)))) if packed else []
    if streamed:
        return _flushed(pieces, coding)
    packer = zlib.compressobj(wbits=_WINDOW_BITS[coding])
    return [packer.compress(b"".join(pieces)) + packer.flush()]


def _flushed(pieces: Iterable[bytes], coding: str) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=_WINDOW_BITS[coding])
    for piece in pieces:
        yield packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
    yield packer.flush()


def pieces_of(pieces: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    """Cut a body anew into pieces of that size."""
    kept = b""
    for piece in pieces:
        kept += piece
        whole = len(kept) - len(kept) % size_bytes
        for start in range(0, whole, size_bytes):
            yield kept[start : start + size_bytes]
        kept = kept[whole:]
    if kept:
        yield kept
