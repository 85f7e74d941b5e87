"""Compressed bodies as they pass: piece by piece the same comes out, as soon as it can, within the limits."""

from __future__ import annotations

import gc
import gzip
import hashlib
import tracemalloc
import weakref
import zlib
from collections.abc import Callable
from contextlib import suppress

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects.encoding import EncodingError, Unpacker, decoded
from tests.unit.dialects.test_encoding import BODY, EACH, MB, PACKS, Pack, br, zeros, zstd

Flush = Callable[[bytes], bytes]


def unpack(packed: bytes, name: bytes, size: int = 0, max_bytes: int = 10 * MB) -> bytes:
    unpacker = Unpacker(name, max_bytes)
    size = size or len(packed) or 1
    return b"".join([unpacker.feed(packed[start : start + size]) for start in range(0, len(packed), size)])


def why(packed: bytes, name: bytes, size: int = 0, max_bytes: int = 10 * MB) -> str:
    with pytest.raises(EncodingError) as raised:
        unpack(packed, name, size, max_bytes)
    return raised.value.reason


@EACH
def test_any_pieces(name: bytes, pack: Pack) -> None:
    """The same comes out, in one piece, byte by byte, or cut in two anywhere (C-9)."""
    packed = pack(BODY * 3)
    for size in range(len(packed)):
        assert unpack(packed, name, size) == BODY * 3


@EACH
@given(body=st.binary(max_size=3000), size=st.integers(1, 50))
def test_what_was_packed_comes_out(name: bytes, pack: Pack, body: bytes, size: int) -> None:
    """Any bytes, the empty body too (C-9)."""
    assert unpack(pack(body), name, size) == body


@EACH
def test_larger_bodies(name: bytes, pack: Pack) -> None:
    """More than one piece of a decoder's output, up to the very limit (C-9)."""
    body = hashlib.shake_256(b"seed").digest(MB)
    packed = pack(body)
    assert unpack(packed, name, 10_000, len(body)) == body
    assert why(packed, name, 10_000, len(body) - 1) == "too_large"


def gzip_stream() -> Flush:
    packing = zlib.compressobj(wbits=31)
    return lambda piece: packing.compress(piece) + packing.flush(zlib.Z_SYNC_FLUSH)


def deflate_stream() -> Flush:
    packing = zlib.compressobj(wbits=-15)
    return lambda piece: packing.compress(piece) + packing.flush(zlib.Z_SYNC_FLUSH)


def br_stream() -> Flush:
    packing = brotli.Compressor()
    return lambda piece: bytes(packing.process(piece) + packing.flush())


def zstd_flushed() -> Flush:
    packing = zstandard.ZstdCompressor().compressobj()
    return lambda piece: packing.compress(piece) + packing.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@pytest.mark.parametrize(
    ("name", "make"),
    [(b"gzip", gzip_stream), (b"deflate", deflate_stream), (b"br", br_stream), (b"zstd", zstd_flushed)],
)
def test_nothing_is_held_back(name: bytes, make: Callable[[], Flush]) -> None:
    """An event that the sender has flushed can be read, though the body has no end yet (D-1)."""
    flush, unpacker = make(), Unpacker(name, MB)
    for number in range(20):
        event = b"data: {%d}\n\n" % number
        assert unpacker.feed(flush(event)) == event


@pytest.mark.parametrize("name", [b"", b"identity", b" Identity , "])
def test_nothing_to_do(name: bytes) -> None:
    """No coding leaves the body as it is (C-9)."""
    assert unpack(BODY, name, 7) == BODY


def test_lists_are_undone_from_the_end() -> None:
    """The last coding was applied last (C-9)."""
    packed = zstd(br(gzip.compress(BODY)))
    for size in (0, 1, 5):
        assert unpack(packed, b"gzip, br, zstd", size) == BODY


@pytest.mark.parametrize(("name", "reason"), [(b"compress", "unknown_coding"), (b"br,br,br,br", "too_many_codings")])
def test_what_we_cannot_read(name: bytes, reason: str) -> None:
    """Is known before the first byte (C-9)."""
    with pytest.raises(EncodingError, match=reason):
        Unpacker(name, MB)


@EACH
def test_cut_off_bodies(name: bytes, pack: Pack) -> None:
    """What came before the cut can be read; that something is missing is for HTTP to say (C-9)."""
    packed = pack(BODY * 3)
    for stop in range(len(packed)):
        assert (BODY * 3).startswith(unpack(packed[:stop], name, 3))


@EACH
@pytest.mark.parametrize("size", [0, 1])
def test_something_behind_the_end(name: bytes, pack: Pack, size: int) -> None:
    """Another reader might use it, so it is broken here as it is in a whole body (C-9)."""
    for rest in (b"rest", b"\x00" * 100):
        assert why(pack(BODY) + rest, name, size) == "broken"


def test_several_members() -> None:
    """gzip and zstd bodies may be made of several; many empty ones would be work without end (C-9)."""
    for size in (0, 1, 11):
        assert unpack(gzip.compress(BODY) * 3, b"gzip", size) == BODY * 3
        assert unpack(zstd(BODY) * 3, b"zstd", size) == BODY * 3
    assert why(gzip.compress(b"") * 17, b"gzip") == "broken"
    assert why(zlib.compress(BODY) * 2, b"deflate") == "broken"


@pytest.mark.parametrize("name", sorted({name for name, _ in PACKS.values()}))
@given(pieces=st.lists(st.binary(min_size=1, max_size=50), max_size=6))
def test_noise_never_raises_anything_else(name: bytes, pieces: list[bytes]) -> None:
    """Whatever comes, it is unpacked or there is a reason (C-9)."""
    unpacker = Unpacker(name, MB)
    with suppress(EncodingError):
        for piece in pieces:
            assert len(unpacker.feed(piece)) <= 256 * 1024


def test_ratio() -> None:
    """What grows beyond all measure is stopped early; what is small, or grows as text does, is not (C-9)."""
    assert len(unpack(br(bytes(256 * 1024)), b"br")) == 256 * 1024
    assert why(zeros(b"br", 64), b"br", 100, 10**9) == "ratio"
    assert why(zeros(b"zstd", 64), b"zstd", 100, 10**9) == "ratio"


@pytest.mark.slow
@pytest.mark.parametrize("name", [b"gzip", b"br", b"zstd"])
def test_bombs(name: bytes) -> None:
    """A gigabyte in one small piece takes no more memory than the limit (C-9, Y-2)."""
    packed = zeros(name, 1024)
    tracemalloc.start()
    try:
        assert why(packed, name) in {"ratio", "too_large"}
        assert tracemalloc.get_traced_memory()[1] < 30 * MB
    finally:
        tracemalloc.stop()


def test_windows_are_bounded() -> None:
    """A zstd body that asks for more than 8 MB of memory is refused before it gets it (C-9)."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    packing = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert why(packing.compress(BODY) + packing.flush(), b"zstd") == "broken"


@EACH
def test_as_a_whole_body(name: bytes, pack: Pack) -> None:
    """Both ways come to the same (C-9)."""
    packed = pack(BODY * 50)
    assert unpack(packed, name, 13) == decoded(packed, name, MB)


def test_nothing_stays_behind() -> None:
    """A decoder and what it writes to do not hold each other, so a thousand streams leave nothing (Y-2)."""
    unpacker = Unpacker(b"zstd", MB)
    unpacker.feed(zstd(BODY)[:20])

    class Witness:
        """Something that can be watched."""

    witness = Witness()
    unpacker._decoders[0]._sink.pieces.append(witness)  # type: ignore[attr-defined]
    watched = weakref.ref(witness)
    gc.disable()
    try:
        del unpacker, witness
        assert watched() is None
    finally:
        gc.enable()
