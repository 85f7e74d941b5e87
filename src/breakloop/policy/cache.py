"""Bounded caches.

`MemoDict` is for values that depend only on their key and recur in every request (header lines, paths, hosts): a hit
costs one lookup. `TwoGenerationCache` is for values that are computed elsewhere (digests of keys, verified tokens,
trusted peers). It uses two generations instead of a strict LRU, so that a hit in the young generation is a single
lookup, too. When the young generation is full it becomes the old one and the previous old one is dropped, so at most
twice the limit is held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K", str, bytes)
V = TypeVar("V")
Key = TypeVar("Key", bound=str | bytes)


class MemoDict(dict[Key, V]):
    """Maps a key to the result of `work_out`.

    Only short keys are stored, and all entries are dropped when there are too many, so no client can make it grow
    without bound or keep it full.
    """

    max_entries = 2048
    max_key = 1024  # long enough for a bearer token

    def __init__(self, work_out: Callable[[Key], V]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, key: Key) -> V:
        value = self._work_out(key)
        if len(key) <= self.max_key:
            if len(self) >= self.max_entries:
                self.clear()
            self[key] = value
        return value


class TwoGenerationCache(Generic[K, V]):
    """Holds the latest `limit` to `2 * limit` entries, and about twice `size_limit` in total length of keys at most."""

    def __init__(self, limit: int, size_limit: int = 1 << 62) -> None:
        self._limit = limit
        self._size_limit = size_limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._size = 0

    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None. An entry of the old generation moves to the young one."""
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._limit or self._size >= self._size_limit:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[key] = value
        self._size += len(key)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
