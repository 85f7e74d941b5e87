"""Compressed bodies: what comes out, what stays packed, and what that may cost."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from breakloop.dialects import encoding
from breakloop.dialects.encoding import EncodingError, decoded

MB = 1024 * 1024
BODY = b'{"model":"m","messages":[{"role":"user","content":"again and again"}]}'
Pack = Callable[[bytes], bytes]


def raw_deflate(body: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-15)
    return packing.compress(body) + packing.flush()


def br(body: bytes) -> bytes:
    packed: bytes = brotli.compress(body, quality=4)
    return packed


def zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(body)


def zstd_stream(body: bytes) -> bytes:
    """As streaming senders write it: without the size in front."""
    packing = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return packing.compress(body) + packing.flush()


PACKS: dict[str, tuple[bytes, Pack]] = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip": (b"x-gzip", gzip.compress),
    "zlib": (b"deflate", zlib.compress),
    "raw deflate": (b"deflate", raw_deflate),
    "br": (b"br", br),
    "zstd": (b"zstd", zstd),
    "zstd stream": (b"zstd", zstd_stream),
}
EACH = pytest.mark.parametrize(("name", "pack"), PACKS.values(), ids=PACKS)


def why(body: bytes, name: bytes, max_bytes: int = 10 * MB) -> str:
    with pytest.raises(EncodingError) as raised:
        decoded(body, name, max_bytes)
    return raised.value.reason


@EACH
@given(body=st.binary(max_size=3000))
def test_what_was_packed_comes_out(name: bytes, pack: Pack, body: bytes) -> None:
    """Every coding, any bytes, the empty body too (C-9)."""
    assert decoded(pack(body), name, 10 * MB) == body


@EACH
def test_larger_bodies(name: bytes, pack: Pack) -> None:
    """More than one piece of a decoder's output, up to the very limit (C-9)."""
    body = hashlib.shake_256(b"seed").digest(MB)
    assert decoded(pack(body), name, len(body)) == body
    assert why(pack(body), name, len(body) - 1) == "too_large"


@pytest.mark.parametrize("level", range(1, 10))
def test_levels_do_not_matter(level: int) -> None:
    """The same body packed harder is the same body (C-9)."""
    packed = (gzip.compress(BODY, level), brotli.compress(BODY, quality=level))
    assert [decoded(one, name, MB) for one, name in zip(packed, (b"gzip", b"br"), strict=True)] == [BODY, BODY]


@pytest.mark.parametrize("name", [b"", b"identity", b" Identity ", b"identity,identity,identity,identity", b" , "])
def test_nothing_to_do(name: bytes) -> None:
    """No coding leaves the body as it is (C-9)."""
    assert decoded(BODY, name, MB) == BODY


@pytest.mark.parametrize("name", [b"GZIP", b" gzip ", b"gzip,", b"identity, gzip"])
def test_spellings(name: bytes) -> None:
    """Names have no case, and lists may have gaps (C-9)."""
    assert decoded(gzip.compress(BODY), name, MB) == BODY


def test_lists_are_undone_from_the_end() -> None:
    """The last coding was applied last; three are enough for anybody (C-9)."""
    assert decoded(zstd(br(gzip.compress(BODY))), b"gzip, br, zstd", MB) == BODY
    assert why(zstd(br(gzip.compress(BODY))), b"zstd, br, gzip") == "broken"
    assert why(gzip.compress(BODY), b"gzip, gzip, gzip, gzip") == "too_many_codings"


@pytest.mark.parametrize("name", [b"compress", b"gzip, aws-chunked", b"\xff", b"zstd;q=1"])
def test_unknown_codings(name: bytes) -> None:
    """What we cannot read stays packed (C-9)."""
    assert why(gzip.compress(BODY), name) == "unknown_coding"


@EACH
def test_cut_off_bodies(name: bytes, pack: Pack) -> None:
    """Wherever it is cut, a part is not taken for the whole (C-9)."""
    packed = pack(BODY * 3)
    for stop in range(1, len(packed)):
        assert why(packed[:stop], name) == "broken", stop


@EACH
@pytest.mark.parametrize("rest", [b"\x00", b"rest", b"\x00" * 100])
def test_something_behind_the_end(name: bytes, pack: Pack, rest: bytes) -> None:
    """Another reader might use it (C-9)."""
    assert why(pack(BODY) + rest, name) == "broken"


@EACH
def test_not_compressed_at_all(name: bytes, pack: Pack) -> None:
    """A wrong field hides nothing but the body that it is on (C-9)."""
    assert why(BODY, name) == "broken"


@EACH
@given(body=st.binary(min_size=1, max_size=200))
def test_noise_never_raises_anything_else(name: bytes, pack: Pack, body: bytes) -> None:
    """Whatever comes, it is a body or a reason (C-9)."""
    with suppress(EncodingError):
        assert len(decoded(body, name, MB)) <= 256 * 1024


def test_several_members() -> None:
    """gzip and zstd bodies may be made of several; many empty ones would be work without end (C-9)."""
    assert decoded(gzip.compress(BODY) * 3, b"gzip", MB) == BODY * 3
    assert decoded(zstd(BODY) + zstd_stream(BODY), b"zstd", MB) == BODY * 2
    assert why(gzip.compress(b"") * 17, b"gzip") == "broken"
    assert why(gzip.compress(BODY) * 3, b"gzip", len(BODY) * 2) == "too_large"


def outcome(packed: bytes, name: bytes, max_bytes: int) -> bytes | str:
    try:
        return decoded(packed, name, max_bytes, values_max=50_000)
    except EncodingError as error:
        return error.reason


SKIPPED = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
LONGER = hashlib.shake_256(b"long").hexdigest(315_000).encode()  # nearly the largest that is decompressed at once
ZSTD_BODIES = {
    "empty": zstd(b""),
    "nothing": b"",
    "after an empty frame": zstd(b"") + zstd(BODY),
    "after a skipped frame": SKIPPED + zstd(BODY),
    "before a skipped frame": zstd(BODY) + SKIPPED,
    "only a skipped frame": SKIPPED,
    "two frames": zstd(BODY) + zstd(BODY),
    "before a frame that is cut off": zstd(BODY) + zstd(BODY)[:-1],
    "with a checksum": zstandard.ZstdCompressor(write_checksum=True).compress(LONGER),
    "with a wrong checksum": zstandard.ZstdCompressor(write_checksum=True).compress(BODY)[:-1] + b"?",
    "smaller than stated": zstd(b"q" * 1000).replace(b"\xe8\x02", b"\xe9\x02", 1),
    "larger than stated": zstd(b"q" * 1000).replace(b"\xe8\x02", b"\xe7\x02", 1),
    "too long for one step": zstd(LONGER + LONGER),
    "dense": zstd(b"[" + b"[]," * 60_000 + b"1]"),
}


@pytest.mark.parametrize("max_bytes", [10 * MB, len(LONGER), len(LONGER) - 1, len(BODY), len(BODY) - 1])
@pytest.mark.parametrize("packed", ZSTD_BODIES.values(), ids=ZSTD_BODIES)
def test_a_frame_that_states_its_size_is_decompressed_as_others_are(packed: bytes, max_bytes: int) -> None:
    """At once or in pieces, as for a list of codings: the same comes out, or the same reason (C-9)."""
    assert outcome(packed, b"zstd", max_bytes) == outcome(packed, b"identity, zstd", max_bytes)


def test_a_larger_frame_is_decompressed_in_pieces() -> None:
    """So that one step does not take longer than those of other codings (Y-2)."""
    assert encoding._zstd_at_once(zstd(LONGER), MB) == LONGER
    assert encoding._zstd_at_once(zstd(LONGER * 2), 2 * MB) is None


def test_a_zstd_body_cannot_swallow_the_mark() -> None:
    """A cut-off raw block that takes the end mark for its content is still cut off (C-9)."""
    end = encoding._ZSTD_END
    size = 4 + len(end)
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + ((size << 3) | 1).to_bytes(3, "little") + b"text"
    assert why(frame, b"zstd") == "broken"


def test_windows_are_bounded() -> None:
    """A zstd body that asks for more than 8 MB of memory is refused before it gets it (C-9)."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    packing = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert why(packing.compress(BODY) + packing.flush(), b"zstd") == "broken"


@EACH
def test_ratio(name: bytes, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bodies that grow beyond all measure are stopped early; a repetitive chat is none (C-9)."""
    monkeypatch.setattr(encoding, "RATIO_MAX", 10)
    assert why(pack(bytes(8 * MB)), name) == "ratio"
    monkeypatch.setattr(encoding, "RATIO_MAX", 1)
    assert len(decoded(pack(bytes(256 * 1024)), name, 10 * MB)) == 256 * 1024


def zeros(name: bytes, mega: int) -> bytes:
    """So many megabytes of zeros, packed."""
    piece = bytes(MB)
    if name == b"br":
        packing = brotli.Compressor(quality=3)
        return b"".join([packing.process(piece) for _ in range(mega)]) + bytes(packing.finish())
    whole = zstandard.ZstdCompressor(level=1).compressobj() if name == b"zstd" else zlib.compressobj(1, wbits=31)
    return b"".join([whole.compress(piece) for _ in range(mega)]) + whole.flush()


@pytest.mark.slow
@pytest.mark.parametrize("name", [b"gzip", b"br", b"zstd"])
def test_bombs(name: bytes) -> None:
    """No more is unpacked than the limit and one piece, in time and memory, whatever is packed (C-9, Y-2)."""
    packed = zeros(name, 128)
    packed += bytes(max(0, MB - len(packed)))  # so that the ratio lets it run up to the limit of size
    decoder = encoding._DECODERS[name]()
    with pytest.raises(encoding._PastLimitError):
        b"".join(decoder.pieces(packed, 10 * MB))
    made = decoder._sink.made if isinstance(decoder, encoding._ZstdDecoder) else decoder._made  # type: ignore[attr-defined]
    assert 10 * MB < made <= 10 * MB + 2 * encoding._PIECE_BYTES
    tracemalloc.start()
    try:
        assert why(packed, name) == "too_large"
        assert tracemalloc.get_traced_memory()[1] < 30 * MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("package", "coding"), [("brotli", "br"), ("zstandard", "zstd")])
def test_without_its_package_a_coding_is_unknown(package: str, coding: str) -> None:
    """br and zstd are part of the extra `server`; the library leaves such bodies as they are (C-9)."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from breakloop.dialects.encoding import EncodingError, decoded\n"
        "try:\n"
        f"    decoded(b'x', {coding.encode()!r}, 100)\n"
        "except EncodingError as error:\n"
        "    print(error.reason)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{encoding.UNKNOWN_CODING}\n"


@EACH
def test_a_body_with_too_many_values_is_not_decompressed_to_its_end(name: bytes, pack: Pack) -> None:
    """Its end is missing, which is not noticed. What only a string contains is no value (Y-2)."""
    dense = b"[" + b",".join([b"[%d]" % number for number in range(300_000)]) + b"]"
    packed = pack(dense)
    for body in (packed, packed[: -len(packed) // 4]):
        with pytest.raises(EncodingError, match=encoding.TOO_MANY_VALUES):
            decoded(body, name, 10 * MB, values_max=50_000)
    text = b'["' + dense + b'"]'
    assert decoded(pack(text), name, 10 * MB, values_max=50_000) == text
