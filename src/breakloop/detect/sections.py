"""The parts of one session window: each detector keeps its own, under a tag of eight bytes. A window is one value in
the store, because one commit changes all of it or nothing (SPEC E-5)."""

from __future__ import annotations

from typing import Final

TAG_BYTES: Final = 8
_SIZE_BYTES: Final = 2
_HEAD: Final = TAG_BYTES + _SIZE_BYTES
SECTION_MAX: Final = 2 ** (8 * _SIZE_BYTES) - 1


def unpack(data: bytes) -> dict[bytes, bytes]:
    """Return the sections by tag; what cannot be read counts as new."""
    if int.from_bytes(data[TAG_BYTES:_HEAD]) == len(data) - _HEAD > 0:  # only one, as nearly always
        return {data[:TAG_BYTES]: data[_HEAD:]}
    sections: dict[bytes, bytes] = {}
    at = 0
    while at + _HEAD <= len(data):
        size = int.from_bytes(data[at + TAG_BYTES : at + _HEAD])
        stop = at + _HEAD + size
        if stop > len(data):
            return {}
        sections[data[at : at + TAG_BYTES]] = data[at + _HEAD : stop]
        at = stop
    return sections if at == len(data) else {}


def pack(sections: dict[bytes, bytes]) -> bytes:
    """Return the sections as one value; one that is too long is left out, which makes it new the next time."""
    pieces: list[bytes] = []
    for tag, content in sections.items():
        size = len(content)
        if 0 < size <= SECTION_MAX:
            pieces += (tag, size.to_bytes(_SIZE_BYTES), content)
    return b"".join(pieces)
