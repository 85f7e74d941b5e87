"""A Bloom filter in two halves that age: when the younger half is full it becomes the older one, and what was older is
forgotten. So a long session neither grows nor finds everything known (DETECTION: dry)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

HALF: Final = 64  # 64-bit words of a half
BYTES: Final = 2 * HALF * 8
CAPACITY: Final = HALF * 8  # of a half, 8 bits a digest: when it is full about 3 % of new ones look known
_EMPTY: Final = memoryview(bytes(HALF * 8)).cast("Q")
# Which bits of its word a digest sets, by its last 12 bits: working that out each time would cost as much as the rest.
_BITS: Final = tuple(
    [1 << (one & 63) | 1 << (one >> 6) | 1 << ((one & 63) * 7 + (one >> 6) * 13 + 29 & 63) for one in range(4096)]
)


class AgedFilter:
    """Remembers 32-bit digests: three bits in one word of each half. The words themselves are the window's."""

    __slots__ = ("_at", "_words", "count")

    def __init__(self, words: memoryview, at: int, count: int) -> None:
        """Take over two halves of `words` from `at` on, the younger first, which holds `count` digests."""
        self._words = words
        self._at = at
        self.count = count

    def sift(self, digests: Sequence[int]) -> list[int]:
        """Remember digests; return at which places those stand that were not known."""
        new: list[int] = []
        if self.count + len(digests) < CAPACITY:  # as nearly always
            self._sift(digests, 0, new)
            return new
        start = 0
        while start < len(digests):
            some = digests[start : start + CAPACITY - self.count]
            self._sift(some, start, new)
            start += len(some)
            if self.count >= CAPACITY:
                self._age()
        return new

    def _sift(self, digests: Sequence[int], start: int, new: list[int]) -> None:
        """Sift no more digests than there is room for: the loop of which every step costs as much as the rest."""
        before, aged = len(new), 0
        young = self._words[self._at : self._at + HALF]
        old = self._words[self._at + HALF : self._at + 2 * HALF]
        for place, digest in enumerate(digests, start):
            bits = _BITS[digest & 4095]
            at = digest >> 26
            word = young[at]
            if word & bits != bits:
                young[at] = word | bits
                if old[at] & bits == bits:
                    aged += 1
                else:
                    new.append(place)
        self.count += len(new) - before + aged

    def add(self, *digests: int) -> None:
        """Remember digests, one after the other."""
        words, start = self._words, self._at
        for digest in digests:
            bits = _BITS[digest & 4095]
            at = start + (digest >> 26)
            word = words[at]
            if word & bits != bits:
                words[at] = word | bits
                self.count += 1
                if self.count >= CAPACITY:
                    self._age()

    def learns(self, digest: int) -> bool:
        """Remember one digest, if it is not known; tell whether it was new."""
        bits, words = _BITS[digest & 4095], self._words
        at = self._at + (digest >> 26)
        word = words[at]
        if word & bits == bits or words[at + HALF] & bits == bits:
            return False
        words[at] = word | bits
        self.count += 1
        if self.count >= CAPACITY:
            self._age()
        return True

    def knows(self, digest: int) -> bool:
        """Tell whether a digest was remembered, and leave it at that."""
        bits, words = _BITS[digest & 4095], self._words
        at = self._at + (digest >> 26)
        return words[at] & bits == bits or words[at + HALF] & bits == bits

    def _age(self) -> None:
        words, young = self._words, self._at
        words[young + HALF : young + 2 * HALF] = words[young : young + HALF]
        words[young : young + HALF] = _EMPTY
        self.count = 0
