"""Bounded memories of what was worked out lately. `Remembered` is for what follows from its key alone and comes again
in every request (lines of heads, paths, hosts): a hit costs one lookup. `Recent` is for what is worked out elsewhere
(digests of keys, verified tokens, trusted peers): two generations instead of a strict LRU, so that a hit in the young
one is a single lookup, too. When it is full it becomes the old one and the older is forgotten, so at most twice the
limit is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K", str, bytes)
V = TypeVar("V")
Key = TypeVar("Key", bound=str | bytes)


class MemoDict(dict[Key, V]):
    """Key -> what `work_out` makes of it.

    Short ones only, and all are forgotten when there are too many: no client can make this grow, or keep it full.
    """

    max_entries = 2048
    max_key = 1024  # a bearer token fits

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
