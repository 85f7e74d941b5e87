"""Decompressing bodies for inspection, at once or as they pass. The original bytes are forwarded.

The sender decides how much a body expands, so output is limited in size and in ratio. A body that exceeds a limit stays
compressed; callers count and report that. br and zstd need packages of the extra `server`: without these, they are
unknown codings.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Final, NamedTuple, Protocol, cast

from breakloop.dialects.content import Steps, ValueCounter, in_one_go
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
_STEP_BYTES: Final = 640 * 1024  # gzip takes 2 ms
_EMPTY_PIECE_BYTES: Final = 32 * 1024  # a piece without output takes time, too
_PACKED_PIECE_BYTES: Final = 64 * 1024  # input that is not yet consumed is copied for each piece of output
_BROTLI_PIECE_BYTES: Final = 16 * 1024  # it decodes all of them at once, whatever the limit of its output
_ZSTD: Final = b"zstd"
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
    return in_one_go(_decode(body, content_encoding, max_bytes, values_max))


def _decode(body: bytes, content_encoding: bytes, max_bytes: int, values_max: int) -> Steps[bytes]:
    values = ValueCounter(values_max) if values_max else None
    whole = _zstd_at_once(body, max_bytes) if content_encoding == _ZSTD and _ZSTD in _DECODERS else None
    pieces: list[bytes] = []
    if whole is not None:
        pieces.append(whole)
        _count_values(values, whole)
        if len(whole) > _PIECE_BYTES:
            yield
    else:
        unpacker = Unpacker(content_encoding, max_bytes, values)
        made = 0
        for piece in unpacker.pieces(body):
            pieces.append(piece)
            made += len(piece) + _EMPTY_PIECE_BYTES
            if made > _STEP_BYTES:
                made = 0
                yield
        unpacker.finish()
    for too_many in values.rest() if values is not None else ():
        if too_many:
            raise EncodingError(TOO_MANY_VALUES)
        yield
    return b"".join(pieces)


class Packed(Protocol):
    """A request or a call, whose body may be compressed."""

    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...
    @property
    def repeated(self) -> Sequence[tuple[str, bytes]]: ...


class Unpacked(NamedTuple):
    """A body that was decompressed."""

    packed: bytes
    body: bytes  # the same as `packed` if it is left as it is
    why: str  # the reason if it could not be decompressed, or ""
    is_plain: bool  # `body` has no coding, also if the header fields name one


def unpack_steps(packed: Packed, max_bytes: int) -> Steps[Unpacked]:
    """Decompress the body of a request, step by step. The headers must include `content-encoding`."""
    body = packed.body
    fields = [packed.headers["content-encoding"]]
    fields += [value for name, value in packed.repeated if name == "content-encoding"]
    try:
        plain = yield from _decode(body, b",".join(fields), max_bytes, VALUES_MAX)
    except EncodingError as error:
        # JSON with a wrong field is still read: an upstream that ignores the field would read it too.
        is_plain = error.reason != TOO_MANY_VALUES and body.lstrip()[:1] in _JSON_STARTS
        return Unpacked(body, body, error.reason, is_plain)
    return Unpacked(body, plain, "", is_plain=True)


def unpack(call: Call, max_bytes: int, done: Unpacked | None = None) -> str:
    """Replace the compressed body of a call by its content, which is `done` if that is of this body. Return "", or the
    reason why it was left as it is. The headers must include `content-encoding`.
    """
    if not call.body or call.body_unseen:
        return ""
    if done is None or done.packed is not call.body:
        done = in_one_go(unpack_steps(call, max_bytes))
    if done.is_plain:
        # The field described the compressed bytes; readers would not touch the content if it remained.
        headers = {name: value for name, value in call.headers.items() if name != "content-encoding"}
        call.replace_body(done.body, headers)
    return done.why


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

    def __init__(self, encoding: bytes, max_bytes: int, values: ValueCounter | None = None) -> None:
        self._decoders: list[_Decoder] = [_DECODERS[name]() for name in reversed(_codings(encoding))]
        if self._decoders:
            self._decoders[-1].values = values
        self._max_bytes = max_bytes
        self._received = 0

    def feed(self, packed: bytes) -> bytes:
        """Return the content that these bytes complete. Raises `EncodingError` if it exceeds a limit or is broken."""
        return b"".join(self.pieces(packed))

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        """Do the same piece by piece. Some may be empty."""
        self._received += len(packed)
        limit = _limit(self._received, self._max_bytes)
        try:
            yield from _through(self._decoders, packed, limit)
        except _PastLimitError:
            raise EncodingError(TOO_LARGE if limit == self._max_bytes else RATIO) from None
        except _decoder_errors:
            raise EncodingError(BROKEN) from None

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


def _limit(received: int, max_bytes: int) -> int:
    """Return how large the output of so many bytes may be."""
    return min(max_bytes, max(RATIO_FREE_BYTES, received * RATIO_MAX))


def _through(decoders: Sequence[_Decoder], packed: bytes, limit: int) -> Iterator[bytes]:
    if not decoders:
        yield packed
    elif len(decoders) == 1:
        yield from decoders[0].pieces(packed, limit)
    else:
        for piece in decoders[0].pieces(packed, limit):
            yield from _through(decoders[1:], piece, limit)


class _Decoder(Protocol):
    """Decodes one content coding. `limit` applies to the total output."""

    values: ValueCounter | None  # counts the values of the output, if that is JSON

    def pieces(self, packed: bytes, limit: int) -> Iterator[bytes]:
        """Return the output in pieces that do not take long, of which some may be empty."""

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

    def pieces(self, packed: bytes, limit: int) -> Iterator[bytes]:
        if not self._bits:
            packed, self._head = self._head + packed, b""
            if len(packed) < 2:
                self._head = packed
                return
            self._bits = _deflate_bits(packed)
        for start in range(0, len(packed), _PACKED_PIECE_BYTES):
            yield from self._inflate(packed[start : start + _PACKED_PIECE_BYTES], limit)

    def _inflate(self, packed: bytes, limit: int) -> Iterator[bytes]:
        more = True
        while packed or more:  # there may be output without further input
            unpacking = self._unpacking or self._next_member()
            piece = unpacking.decompress(packed, _PIECE_BYTES)
            if piece:
                self._made += len(piece)
                if self._made > limit:
                    raise _PastLimitError
                _count_values(self.values, piece)
            packed = unpacking.unconsumed_tail
            more = len(piece) == _PIECE_BYTES
            if unpacking.eof:
                packed, more = unpacking.unused_data, False
                self._unpacking = None
            yield piece

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

    def pieces(self, packed: bytes, limit: int) -> Iterator[bytes]:
        unpacking = self._unpacking
        for start in range(0, len(packed), _BROTLI_PIECE_BYTES):
            if unpacking.is_finished():
                raise EncodingError(BROKEN)
            # Without a limit it would double its buffer until far beyond ours.
            given = packed[start : start + _BROTLI_PIECE_BYTES]
            piece = unpacking.process(given, output_buffer_limit=_PIECE_BYTES)
            while piece:
                self._made += len(piece)
                if self._made > limit:
                    raise _PastLimitError
                _count_values(self.values, piece)
                yield piece
                piece = b"" if unpacking.is_finished() else unpacking.process(b"", output_buffer_limit=_PIECE_BYTES)

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

    def pieces(self, packed: bytes, limit: int) -> Iterator[bytes]:
        sink = self._sink
        sink.limit = limit
        for start in range(0, len(packed), _PACKED_PIECE_BYTES):
            self._unpacking.write(packed[start : start + _PACKED_PIECE_BYTES])
            made, sink.pieces = sink.pieces, []
            yield from made

    def is_complete(self) -> bool:
        limit = self._sink.made + len(_ZSTD_MARK)
        # In two pieces: a whole frame in one write is decoded even after half a header.
        ends = (self.pieces(part, limit) for part in (_ZSTD_END[:4], _ZSTD_END[4:]))
        return b"".join(piece for pieces in ends for piece in pieces) == _ZSTD_MARK


def _zstd_at_once(packed: bytes, max_bytes: int) -> bytes | None:
    """Return the content of a frame that states its size, without copying pieces together. None if the frame does not
    state it, or is too large for one step, or is not all there is: then `_ZstdDecoder` returns the content, or the
    reason why there is none.
    """
    try:
        stated = zstandard.get_frame_parameters(packed)
        size = stated.content_size
        if size > min(_STEP_BYTES, _limit(len(packed), max_bytes)) or stated.window_size > _ZSTD_WINDOW_BYTES:
            return None
        content = zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
    return content if 0 < len(content) == size else None  # what follows an empty frame would not be seen


_gzip: Final = partial(_InflateDecoder, zlib.MAX_WBITS | 16)
_DECODERS: Final[dict[bytes, Callable[[], _Decoder]]] = {
    b"gzip": _gzip,
    b"x-gzip": _gzip,
    b"deflate": _InflateDecoder,
    **({b"br": _BrotliDecoder} if "brotli" in globals() else {}),
    **({_ZSTD: _ZstdDecoder} if "zstandard" in globals() else {}),
}
