"""Decompressing bodies for inspection, at once or as they pass. The original bytes are forwarded.

The sender decides how much a body expands, so output is limited in size and in ratio. A body that exceeds a limit stays
compressed; callers count and report that. br and zstd need packages of the extra `server`: without these, they are
unknown codings.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO, Final, Protocol, cast

from breakloop.dialects.content import ValueCounter
from breakloop.model.call import Call

_decoder_errors: tuple[type[Exception], ...] = (zlib.error,)
with suppress(ImportError):
    import brotli  # type: ignore[import-untyped]

    _decoder_errors += (brotli.error,)
with suppress(ImportError):
    import zstandard

    _decoder_errors += (zstandard.ZstdError,)

CODINGS_MAX: Final = 3
RATIO_MAX: Final = 200
RATIO_FREE_BYTES: Final = 256 * 1024  # allowed for any body: repetitive chats compress by more than 200
# JSON values of a decompressed request. Half a kilobyte can hold as many, so this is less than for other requests: each
# takes time.
VALUES_MAX: Final = 50_000
_MEMBERS_MAX: Final = 16  # of one gzip body: empty ones cost time without reaching a limit of size
_PIECE_BYTES: Final = 256 * 1024
_PACKED_PIECE_BYTES: Final = 64 * 1024  # input that is not yet consumed is copied for each piece of output
_ZSTD_WINDOW_BYTES: Final = 8 * 1024 * 1024  # RFC 9659: the largest that this content coding allows
# zstandard does not report a truncated body. A small frame is appended, which is only read if everything
# before it is complete. Its checksum prevents a truncated block from taking the frame for its own content.
_ZSTD_MARK: Final = b"end of body"
_ZSTD_END: Final = bytes.fromhex("28b52ffd240b590000656e64206f6620626f6479e70018bf")

_JSON_STARTS: Final = (b"{", b"[")

UNKNOWN_CODING: Final = "unknown_coding"
TOO_MANY_CODINGS: Final = "too_many_codings"
TOO_LARGE: Final = "too_large"
TOO_MANY_VALUES: Final = "too_many_values"
RATIO: Final = "ratio"
BROKEN: Final = "broken"


class EncodingError(Exception):
    """A body cannot be decompressed. `reason` is one of the constants above, never a part of the body."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _PastLimitError(Exception):
    """The output exceeds the limit."""


def decoded(body: bytes, content_encoding: bytes, max_bytes: int, values_max: int = 0) -> bytes:
    """Return the decompressed body. Raises `EncodingError` if that is impossible within the limits. A body with more
    JSON values than `values_max` is decompressed no further than necessary; 0: they are not counted.
    """
    unpacker = Unpacker(content_encoding, max_bytes, values_max)
    plain = unpacker.feed(body)
    unpacker.finish()
    return plain


def unpack(call: Call, max_bytes: int) -> str:
    """Replace the compressed body of a call by its content. Return "", or the reason why it was left as it is. The
    headers must include `content-encoding`."""
    if not call.body or call.body_unseen:
        return ""
    fields = [call.headers["content-encoding"]]
    fields += [value for name, value in call.repeated if name == "content-encoding"]
    why, body = "", call.body
    try:
        body = decoded(call.body, b",".join(fields), max_bytes, VALUES_MAX)
    except EncodingError as error:
        why = error.reason
        if why == TOO_MANY_VALUES:
            return why
        # JSON with a wrong field is still read: an upstream that ignores the field would read it too.
        if call.body.lstrip()[:1] not in _JSON_STARTS:
            return why
    # The field described the compressed bytes; readers would not touch the content if it remained.
    call.replace_body(body, {name: value for name, value in call.headers.items() if name != "content-encoding"})
    return why


def _codings(content_encoding: bytes) -> list[bytes]:
    names = [name.strip().lower() for name in content_encoding.split(b",")]
    named = [name for name in names if name and name != b"identity"]
    if len(named) > CODINGS_MAX:
        raise EncodingError(TOO_MANY_CODINGS)
    if not _DECODERS.keys() >= set(named):
        raise EncodingError(UNKNOWN_CODING)
    return named


class Unpacker:
    """Decompresses a body as it passes."""

    __slots__ = ("_decoders", "_max_bytes", "_received")

    def __init__(self, encoding: bytes, max_bytes: int, values_max: int = 0) -> None:
        self._decoders: list[_Decoder] = [_DECODERS[name]() for name in reversed(_codings(encoding))]
        if values_max and self._decoders:
            self._decoders[-1].values = ValueCounter(values_max)
        self._max_bytes = max_bytes
        self._received = 0

    def feed(self, packed: bytes) -> bytes:
        """Return the content that these bytes complete. Raises `EncodingError` if it exceeds a limit or is broken."""
        self._received += len(packed)
        by_ratio = max(RATIO_FREE_BYTES, self._received * RATIO_MAX)
        limit = min(self._max_bytes, by_ratio)
        try:
            for decoder in self._decoders:
                packed = decoder.feed(packed, limit)
        except _PastLimitError:
            raise EncodingError(TOO_LARGE if limit == self._max_bytes else RATIO) from None
        except _decoder_errors:
            raise EncodingError(BROKEN) from None
        return packed

    def finish(self) -> None:
        """Raise `EncodingError` if the body is truncated. Where HTTP framing detects that, this is not needed."""
        try:
            complete = all(decoder.is_complete() for decoder in self._decoders)
        except _PastLimitError:
            complete = False
        except _decoder_errors:
            complete = False
        if not complete:
            raise EncodingError(BROKEN)


class _Decoder(Protocol):
    """Decodes one content coding. `limit` applies to the total output."""

    values: ValueCounter | None  # counts the values of the output, if that is JSON

    def feed(self, packed: bytes, limit: int) -> bytes: ...

    def is_complete(self) -> bool: ...


def _deflate_bits(body: bytes) -> int:
    """Many senders omit the zlib header, which is recognised by its two bytes."""
    wrapped = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS


class _InflateDecoder:
    """gzip, whose bodies may have several members, and deflate with and without a zlib header."""

    __slots__ = ("_bits", "_head", "_made", "_members", "_unpacking", "values")

    def __init__(self, bits: int = 0) -> None:
        self.values: ValueCounter | None = None
        self._bits = bits  # 0 until the first two bytes are known
        self._head = b""
        self._made = 0
        self._members = 0
        self._unpacking: zlib._Decompress | None = None

    def feed(self, packed: bytes, limit: int) -> bytes:
        if not self._bits:
            packed, self._head = self._head + packed, b""
            if len(packed) < 2:
                self._head = packed
                return b""
            self._bits = _deflate_bits(packed)
        pieces: list[bytes] = []
        for start in range(0, len(packed), _PACKED_PIECE_BYTES):
            self._inflate(packed[start : start + _PACKED_PIECE_BYTES], limit, pieces)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _inflate(self, packed: bytes, limit: int, pieces: list[bytes]) -> None:
        more = True
        while packed or more:  # there may be output without further input
            unpacking = self._unpacking or self._next_member()
            piece = unpacking.decompress(packed, _PIECE_BYTES)
            if piece:
                self._made += len(piece)
                if self._made > limit:
                    raise _PastLimitError
                pieces.append(piece)
                _count_values(self.values, piece)
            packed = unpacking.unconsumed_tail
            more = len(piece) == _PIECE_BYTES
            if unpacking.eof:
                packed, more = unpacking.unused_data, False
                self._unpacking = None

    def is_complete(self) -> bool:
        return self._members > 0 and self._unpacking is None

    def _next_member(self) -> zlib._Decompress:
        self._members += 1
        if self._members > (_MEMBERS_MAX if self._bits > zlib.MAX_WBITS else 1):
            raise EncodingError(BROKEN)
        self._unpacking = zlib.decompressobj(self._bits)
        return self._unpacking


def _count_values(values: ValueCounter | None, piece: bytes) -> None:
    if values is not None and values.add(piece):
        raise EncodingError(TOO_MANY_VALUES)


class _BrotliDecoder:
    __slots__ = ("_made", "_unpacking", "values")

    def __init__(self) -> None:
        self.values: ValueCounter | None = None
        self._unpacking = brotli.Decompressor()
        self._made = 0

    def feed(self, packed: bytes, limit: int) -> bytes:
        unpacking = self._unpacking
        if packed and unpacking.is_finished():
            raise EncodingError(BROKEN)
        pieces: list[bytes] = []
        # Without a limit it would double its buffer until far beyond ours.
        piece = unpacking.process(packed, output_buffer_limit=_PIECE_BYTES)
        while piece:
            pieces.append(piece)
            self._made += len(piece)
            if self._made > limit:
                raise _PastLimitError
            _count_values(self.values, piece)
            piece = b"" if unpacking.is_finished() else unpacking.process(b"", output_buffer_limit=_PIECE_BYTES)
        return b"".join(pieces)

    def is_complete(self) -> bool:
        return bool(self._unpacking.is_finished())


class _Sink:
    """The output of zstandard. Separate from `_ZstdDecoder` to avoid a reference cycle."""

    __slots__ = ("limit", "made", "pieces", "values")

    def __init__(self) -> None:
        self.values: ValueCounter | None = None
        self.pieces: list[bytes] = []
        self.made = 0
        self.limit = 0

    def write(self, piece: bytes) -> int:
        self.made += len(piece)
        if self.made > self.limit:
            raise _PastLimitError
        self.pieces.append(bytes(piece))
        _count_values(self.values, self.pieces[-1])
        return len(piece)


class _ZstdDecoder:
    """Only zstandard's writer returns its output in pieces."""

    __slots__ = ("_sink", "_unpacking")

    def __init__(self) -> None:
        self._sink = _Sink()
        unpacking = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._unpacking = unpacking.stream_writer(cast("IO[bytes]", self._sink), _PIECE_BYTES, closefd=False)

    @property
    def values(self) -> ValueCounter | None:
        return self._sink.values

    @values.setter
    def values(self, values: ValueCounter | None) -> None:
        self._sink.values = values

    def feed(self, packed: bytes, limit: int) -> bytes:
        sink = self._sink
        sink.limit = limit
        self._unpacking.write(packed)
        plain = b"".join(sink.pieces)
        sink.pieces.clear()
        return plain

    def is_complete(self) -> bool:
        limit = self._sink.made + len(_ZSTD_MARK)
        # In two pieces: a whole frame in one write is decoded even after half a header.
        return self.feed(_ZSTD_END[:4], limit) + self.feed(_ZSTD_END[4:], limit) == _ZSTD_MARK


_gzip: Final = partial(_InflateDecoder, zlib.MAX_WBITS | 16)
_DECODERS: Final[dict[bytes, Callable[[], _Decoder]]] = {
    b"gzip": _gzip,
    b"x-gzip": _gzip,
    b"deflate": _InflateDecoder,
    **({b"br": _BrotliDecoder} if "brotli" in globals() else {}),
    **({b"zstd": _ZstdDecoder} if "zstandard" in globals() else {}),
}
