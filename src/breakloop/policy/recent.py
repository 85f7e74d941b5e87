"""`Recent`: a bounded map of what was worked out lately (digests of keys, verified tokens, trusted peers).

Two generations instead of a strict LRU: a hit in the young one is a single dict lookup, which is what every request
pays. When the young one is full it becomes the old one and the older is forgotten, so at most twice the limit is held.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K", str, bytes)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Holds the latest `limit` to `2 * limit` entries, and `size_limit` to about twice that of key lengths."""

    __slots__ = ("_limit", "_old", "_size", "_size_limit", "_young")

    def __init__(self, limit: int, size_limit: int = 1 << 62) -> None:
        self._limit = limit
        self._size_limit = size_limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._size = 0

    def get(self, key: K) -> V | None:
        """Return what was put under `key`, or None; an entry of the old generation becomes young again."""
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep `value`."""
        if len(self._young) >= self._limit or self._size >= self._size_limit:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[key] = value
        self._size += len(key)

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old, self._size = {}, {}, 0

    def __len__(self) -> int:
        """Return how many entries are held."""
        return len(self._young) + len(self._old)
