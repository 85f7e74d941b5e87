"""A Bloom filter in two halves that age: when the younger half is full it becomes the older one, and what was older is
forgotten. So a long session neither grows nor finds everything known (DETECTION: dry)."""

from __future__ import annotations

from collections.abc import Iterable

_WORD_BYTES = 8


class AgedFilter:
    """Remembers 64-bit digests: three bits in one 64-bit word of each half."""

    __slots__ = ("_capacity", "_half", "_mask", "_old", "_young", "count")

    def __init__(self, half_bytes: int) -> None:
        """Make an empty filter; `half_bytes` is a power of two."""
        self._half = half_bytes
        self._mask = half_bytes // _WORD_BYTES - 1
        self._capacity = half_bytes  # 8 bits a digest: about 3 % of new ones look known when the half is full
        self._young = memoryview(bytearray(half_bytes)).cast("Q")
        self._old = memoryview(bytearray(half_bytes)).cast("Q")
        self.count = 0

    def load(self, data: bytes, count: int) -> None:
        """Take over both halves, the younger first, as `dump` gave them."""
        self._young = memoryview(bytearray(data[: self._half])).cast("Q")
        self._old = memoryview(bytearray(data[self._half :])).cast("Q")
        self.count = count

    def dump(self) -> bytes:
        """Return both halves, the younger first."""
        return self._young.tobytes() + self._old.tobytes()

    def sift(self, weighed: Iterable[tuple[int, int]]) -> int:
        """Remember digests, each with its weight; return how much of the weight was not known."""
        new, young, old, mask = 0, self._young, self._old, self._mask
        for digest, weight in weighed:
            bits = 1 << (digest & 63) | 1 << (digest >> 6 & 63) | 1 << (digest >> 12 & 63)
            at = digest >> 20 & mask
            if young[at] & bits == bits:
                continue
            if old[at] & bits != bits:
                new += weight
            young[at] |= bits
            self.count += 1
            if self.count >= self._capacity:
                young, old = self._age()
        return new

    def knows(self, digest: int) -> bool:
        """Tell whether a digest was remembered, and leave it at that."""
        bits = 1 << (digest & 63) | 1 << (digest >> 6 & 63) | 1 << (digest >> 12 & 63)
        at = digest >> 20 & self._mask
        return self._young[at] & bits == bits or self._old[at] & bits == bits

    def _age(self) -> tuple[memoryview, memoryview]:
        self._old = self._young
        self._young = memoryview(bytearray(self._half)).cast("Q")
        self.count = 0
        return self._young, self._old
