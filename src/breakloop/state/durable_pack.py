"""Entries of the memory store as bytes, and back. A part is one row of the file: packs of a few hundred entries of one
table each, so that reading or making one never takes long. Which entries, and when, is `durable`'s to say.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from breakloop.state.table import Entry

PART_BYTES: Final = 256 * 1024
WINDOWS: Final = "windows"

_AT_ONCE: Final = 500  # entries made or read in one go: a quarter of a millisecond
_WINDOWS_AT_ONCE: Final = 64  # they have some kilobytes each
_SIZE_BYTES: Final = 4
_INT_MAX: Final = 2**63 - 1
_first: Final = itemgetter(0)


class Part(NamedTuple):
    """One row. `expires` is when the last of its entries does; keys that were dropped have none.

    `versions` is of one that has nothing but windows: by them it is seen without reading it what is overtaken.
    """

    data: bytes
    entries: int
    expires: float
    versions: dict[str, int] | None = None


class Pack(NamedTuple):
    """A few entries of one table; None stands for a key that was dropped."""

    table: str
    keys: list[str]
    entries: list[Entry | None]


def _hook(value: object) -> bytes:
    """Times of hits are the only thing that is not plain. `durable` sees to it that one kind of machine reads them."""
    if isinstance(value, array):
        return value.tobytes()
    raise TypeError(f"{type(value).__name__} cannot be kept")


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_hook).encode
_decode: Final = msgspec.msgpack.Decoder(tuple[str, bool, msgspec.Raw, msgspec.Raw]).decode
_decode_keys: Final = msgspec.msgpack.Decoder(list[str]).decode
_decode_odd_keys: Final = msgspec.msgpack.Decoder(list[bytes]).decode
# As `memory_repeats`, `memory_limits` and `memory` say. What is not of this form was not written by this version.
# Flights are not kept: their leaders are gone.
_FORMS: Final[dict[str, Any]] = {
    "counts": list[tuple[float, int | bytes] | None],
    "cooldowns": list[tuple[float, float, int, float, float] | None],
    "buckets": list[tuple[float, float, float] | None],
    "accounts": list[tuple[float, int] | None],
    "rates": list[tuple[float, float, float, float, float] | None],
    "open": list[tuple[float, float, float, float, float] | None],
    WINDOWS: list[tuple[float, int, bytes] | None],
}
_decoders: Final = {name: msgspec.msgpack.Decoder(form).decode for name, form in _FORMS.items()}


def at_once(table: str) -> int:
    """How many entries make a pack."""
    return _WINDOWS_AT_ONCE if table == WINDOWS else _AT_ONCE


class Packer:
    """Collects entries into parts."""

    __slots__ = ("_entries", "_expires", "_pieces", "_size", "_size_max", "_versions", "parts")

    def __init__(self, size_max: int = PART_BYTES) -> None:
        self.parts: list[Part] = []
        self._size_max = size_max
        self._begin()

    def _begin(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._entries = 0
        self._expires = 0.0
        self._versions: dict[str, int] | None = {}

    def add(self, table: str, keys: Sequence[str], entries: Sequence[Entry | None]) -> None:
        """Take some entries, about as many as `at_once` says."""
        if not keys:
            return
        packed = _pack(table, keys, entries)
        self._pieces += (len(packed).to_bytes(_SIZE_BYTES), packed)
        self._size += len(packed) + _SIZE_BYTES
        self._entries += len(keys)
        self._expires = max(self._expires, max(map(_first, filter(None, entries)), default=0.0))
        if table != WINDOWS:
            self._versions = None
        elif self._versions is not None:
            self._versions.update((key, entry[1] if entry else 0) for key, entry in zip(keys, entries, strict=True))
        if self._size >= self._size_max:
            self.close()

    def close(self) -> list[Part]:
        """End the part that is being filled; return all."""
        if self._pieces:
            self.parts.append(Part(b"".join(self._pieces), self._entries, self._expires, self._versions))
            self._begin()
        return self.parts


def _pack(table: str, keys: Sequence[str], entries: Sequence[Entry | None]) -> bytes:
    try:
        return _encode((table, False, keys, entries))
    except (OverflowError, UnicodeEncodeError):  # half a surrogate pair, out of a client's JSON
        odd_keys = [key.encode("utf-8", "surrogatepass") for key in keys]
        return _encode((table, True, odd_keys, [entry and tuple(map(_fit, entry)) for entry in entries]))


def _fit(value: object) -> object:
    """What nobody could ever use up need not be exact."""
    return max(-_INT_MAX, min(value, _INT_MAX)) if type(value) is int else value


def unpack(data: bytes) -> Iterator[Pack]:
    """Return the packs of a part, one by one. Raises `ValueError` where it is not one."""
    at = 0
    while at < len(data):
        stop = at + _SIZE_BYTES + int.from_bytes(data[at : at + _SIZE_BYTES])
        if stop > len(data):
            raise ValueError("a pack is cut off")
        yield _unpack(data[at + _SIZE_BYTES : stop])
        at = stop


def _unpack(packed: bytes) -> Pack:
    try:
        table, odd, raw_keys, raw_entries = _decode(packed)
        keys = _odd_keys(raw_keys) if odd else _decode_keys(raw_keys)
        entries = _decoders[table](raw_entries)
    except (msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"a pack cannot be read ({error})") from None
    if len(keys) != len(entries):
        raise ValueError("a pack has keys without entries")
    if table == "counts":
        entries = [_timed(entry) if entry and type(entry[1]) is bytes else entry for entry in entries]
    return Pack(table, keys, entries)


def _odd_keys(raw: msgspec.Raw) -> list[str]:
    return [key.decode("utf-8", "surrogatepass") for key in _decode_odd_keys(raw)]


def _timed(entry: tuple[float, bytes]) -> Entry:
    times = array("d")
    times.frombytes(entry[1])
    return entry[0], times
