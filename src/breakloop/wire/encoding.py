"""Compressed bodies, made plain for judging (SPEC C-9). The bytes that are forwarded are never these.

Whoever sends a body chooses what it costs to unpack it, so output stops at a limit of size and of ratio. What stays
packed, and how that is counted and told, is the door's business; what the plain bytes mean is the readers'.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import brotli  # type: ignore[import-untyped]
import zstandard

CODINGS_MAX: Final = 3
RATIO_MAX: Final = 200
RATIO_FREE_BYTES: Final = 256 * 1024  # so much comes out of any body: repetitive chats shrink further than 200 times
_MEMBERS_MAX: Final = 16  # of one gzip body; empty ones would cost time without ever reaching a limit of size
_PIECE_BYTES: Final = 256 * 1024
_ZSTD_WINDOW_BYTES: Final = 8 * 1024 * 1024  # RFC 9659: what a sender of this content coding may ask for
# zstandard's reader ends a cut-off body without a word. A small frame behind it comes out only if all before it ended;
# its checksum keeps a cut-off block from passing the frame off as its own content.
_ZSTD_MARK: Final = b"end of body"
_ZSTD_END: Final = zstandard.ZstdCompressor(write_checksum=True).compress(_ZSTD_MARK)

UNKNOWN_CODING: Final = "unknown_coding"
TOO_MANY_CODINGS: Final = "too_many_codings"
TOO_LARGE: Final = "too_large"
RATIO: Final = "ratio"
BROKEN: Final = "broken"


class EncodingError(Exception):
    """The body stays as it is. `reason` is one of the words above, never a part of the body."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _PastLimitError(Exception):
    """More would come out than may."""


def decoded(body: bytes, content_encoding: bytes, max_bytes: int, max_ratio: int = RATIO_MAX) -> bytes:
    """Return the plain body; `EncodingError` where it cannot be had within the limits.

    Decoders are stopped within a piece of the limit. For a moment the pieces and the whole are both in memory.
    """
    codings = _codings(content_encoding)
    by_ratio = max(RATIO_FREE_BYTES, len(body) * max_ratio)
    limit = min(max_bytes, by_ratio)
    try:
        for unpack in reversed(codings):
            body = unpack(body, limit)
    except _PastLimitError:
        raise EncodingError(TOO_LARGE if limit == max_bytes else RATIO) from None
    return body


def _codings(content_encoding: bytes) -> list[Callable[[bytes, int], bytes]]:
    names = [name.strip().lower() for name in content_encoding.split(b",")]
    named = [name for name in names if name and name != b"identity"]
    if len(named) > CODINGS_MAX:
        raise EncodingError(TOO_MANY_CODINGS)
    try:
        return [_UNPACK[name] for name in named]
    except KeyError:
        raise EncodingError(UNKNOWN_CODING) from None


def _gunzip(body: bytes, limit: int) -> bytes:
    plain = b""
    for _ in range(_MEMBERS_MAX):
        member, body = _inflate(body, limit - len(plain), zlib.MAX_WBITS | 16)
        plain = plain + member if plain else member
        if not body:
            return plain
    raise EncodingError(BROKEN)


def _deflate(body: bytes, limit: int) -> bytes:
    """Half of the world's "deflate" lacks the zlib header, which is told by its two bytes."""
    wrapped = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    plain, rest = _inflate(body, limit, zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS)
    if rest:
        raise EncodingError(BROKEN)
    return plain


def _inflate(body: bytes, limit: int, window_bits: int) -> tuple[bytes, bytes]:
    """Return the plain bytes and what follows their end."""
    unpacking = zlib.decompressobj(window_bits)
    try:
        plain = unpacking.decompress(body, limit + 1)
    except zlib.error:
        raise EncodingError(BROKEN) from None
    if len(plain) > limit:
        raise _PastLimitError
    if not unpacking.eof:
        raise EncodingError(BROKEN)
    return plain, unpacking.unused_data


def _unbrotli(body: bytes, limit: int) -> bytes:
    unpacking = brotli.Decompressor()
    pieces: list[bytes] = []
    size = 0
    try:
        # Asked for all at once it would grow its buffer by doubling, far past the limit.
        piece = unpacking.process(body, output_buffer_limit=_PIECE_BYTES)
        while piece:
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise _PastLimitError
            piece = b"" if unpacking.is_finished() else unpacking.process(b"", output_buffer_limit=_PIECE_BYTES)
    except brotli.error:
        raise EncodingError(BROKEN) from None
    if not unpacking.is_finished():
        raise EncodingError(BROKEN)
    return b"".join(pieces)


def _unzstd(body: bytes, limit: int) -> bytes:
    unpacking = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    reader = unpacking.stream_reader(body + _ZSTD_END, read_across_frames=True)
    try:
        plain = reader.read(limit + len(_ZSTD_MARK) + 1)
    except zstandard.ZstdError:
        raise EncodingError(BROKEN) from None
    if len(plain) > limit + len(_ZSTD_MARK):
        raise _PastLimitError
    if not plain.endswith(_ZSTD_MARK):
        raise EncodingError(BROKEN)
    return plain[: -len(_ZSTD_MARK)]


_UNPACK: Final[dict[bytes, Callable[[bytes, int], bytes]]] = {
    b"gzip": _gunzip,
    b"x-gzip": _gunzip,
    b"deflate": _deflate,
    b"br": _unbrotli,
    b"zstd": _unzstd,
}
