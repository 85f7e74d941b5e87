"""64-bit SimHash over word 3-grams (SPEC LD-3): texts that share most of their 3-grams differ in few bits.

A 3-gram's hash is made of its words' hashes, so every word is hashed once and no 3-gram is ever spelled out. The votes
of all 3-grams on one bit are counted at once, as the ones in a long integer, and not one by one.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

import xxhash

_GRAM: Final = 3  # words
_BYTES: Final = 8  # of a SimHash; a word's hash has twice as many


def simhash(text: str, seed: int = 0) -> int:
    """Return the SimHash of a normalised text; 0 where there is no word in it. Who lacks the seed can test no guess."""
    words = text.encode("utf-8", "surrogatepass").split()
    hashes = b"".join(map(xxhash.xxh3_128_digest, words, repeat(seed)))
    # Column k holds byte k of every word's hash, the first word's lowest.
    columns = [int.from_bytes(hashes[place :: 2 * _BYTES], "little") for place in range(2 * _BYTES)]
    grams = len(words)
    if grams >= _GRAM:
        grams -= _GRAM - 1
        columns = [_joined(columns, place) for place in range(_BYTES)]
    ones = int.from_bytes(b"\x01" * grams, "little")
    masks = [ones << bit for bit in range(8)]
    majority, found, value = grams // 2, 0, 1
    for column in columns[:_BYTES]:
        for mask in masks:
            if (column & mask).bit_count() > majority:
                found += value
            value += value
    return found


def distance(one: int, other: int) -> int:
    """Return in how many bits two SimHashes differ: about 32 for texts that have nothing in common."""
    return (one ^ other).bit_count()


def _joined(columns: list[int], place: int) -> int:
    """One byte of every 3-gram: its first word's, its second's and its third's, each from another place of the hash.

    Were they from the same place, the order of the words would make no difference.
    """
    return columns[place] ^ (columns[_BYTES + place] >> 8) ^ (columns[(place + 3) % _BYTES] >> 16)
