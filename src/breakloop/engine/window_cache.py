"""Copies of the windows in a shared store, so that most decisions need one round trip.

A copy may be old. The store compares versions, and returns the newer window. A window that was sent counts as written
at once, so that the next request of the same session need not wait: commands run in the order in which they are sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from breakloop.store.ops import StoredWindow, WindowWrite

KEPT: Final = 10_000  # of at most 6 KB each

NONE: Final = StoredWindow(0, b"")
_UNKNOWN: Final = -1  # the version of a copy that may be right or not


class RemoteWindowCache:
    """The most recently used ones."""

    __slots__ = ("_kept", "_windows")

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._windows: OrderedDict[str, StoredWindow] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys of which there is no copy, or none that can be relied on."""
        windows = self._windows
        return [key for key in keys if (window := windows.get(key)) is None or window[0] == _UNKNOWN]

    def get(self, key: str, _now: float = 0.0) -> StoredWindow:
        """Return the copy, or a window that is none."""
        window = self._windows.get(key)
        if window is None:
            return NONE
        self._windows.move_to_end(key)
        return window

    def put(self, key: str, window: StoredWindow) -> None:
        """Keep what the store has."""
        windows = self._windows
        windows[key] = window
        windows.move_to_end(key)
        if len(windows) > self._kept:
            windows.popitem(last=False)

    def sent(self, writes: Sequence[WindowWrite]) -> None:
        """Take for written what is on its way."""
        for write in writes:
            if write.data is not None:
                self.put(write.key, StoredWindow(write.becomes, write.data))

    def refused(self, writes: Sequence[WindowWrite], newer: Mapping[str, StoredWindow]) -> None:
        """Nothing of it was written, because some had moved on; the others are not as they were taken to be."""
        self.lost(writes)
        for key, window in newer.items():
            self.put(key, window)

    def lost(self, writes: Sequence[WindowWrite]) -> None:
        """Nobody knows whether it was written: good enough to go on without the store, and to be read again with it."""
        for write in writes:
            copy = self._windows.get(write.key)
            if copy is not None:
                self._windows[write.key] = StoredWindow(_UNKNOWN, copy.data)

    def drop(self, keys: Sequence[str]) -> None:
        """Forget copies."""
        for key in keys:
            self._windows.pop(key, None)
