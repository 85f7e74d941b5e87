"""A cache of windows in a shared store, so that most decisions need a single round trip.

A copy may be outdated. The store compares versions and returns the newer window. A window counts as written as soon
as it is sent, because commands run in the order in which they are sent; the next request of the same session does
not have to wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from breakloop.store.ops import StoredWindow, WindowWrite

KEPT: Final = 10_000  # at most 6 KB each

NONE: Final = StoredWindow(0, b"")
_UNKNOWN: Final = -1  # version of a copy that may be outdated


class RemoteWindowCache:
    """A least recently used cache of windows."""

    __slots__ = ("_kept", "_windows")

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._windows: OrderedDict[str, StoredWindow] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys that have no copy, or only one that may be outdated."""
        windows = self._windows
        return [key for key in keys if (window := windows.get(key)) is None or window[0] == _UNKNOWN]

    def get(self, key: str, _now: float = 0.0) -> StoredWindow:
        """Return the copy, or an empty window with version 0."""
        window = self._windows.get(key)
        if window is None:
            return NONE
        self._windows.move_to_end(key)
        return window

    def put(self, key: str, window: StoredWindow) -> None:
        """Cache a window that was read from the store."""
        windows = self._windows
        windows[key] = window
        windows.move_to_end(key)
        if len(windows) > self._kept:
            windows.popitem(last=False)

    def sent(self, writes: Sequence[WindowWrite]) -> None:
        """Cache windows that are being written, as if they had been written."""
        for write in writes:
            if write.data is not None:
                self.put(write.key, StoredWindow(write.becomes, write.data))

    def refused(self, writes: Sequence[WindowWrite], newer: Mapping[str, StoredWindow]) -> None:
        """Handle a conflict: nothing was written. The newer windows are cached; other copies may be outdated."""
        self.lost(writes)
        for key, window in newer.items():
            self.put(key, window)

    def lost(self, writes: Sequence[WindowWrite]) -> None:
        """Mark copies as possibly outdated after a write with an unknown outcome. They are used while the store is
        unavailable, and read again once it is back.
        """
        for write in writes:
            copy = self._windows.get(write.key)
            if copy is not None:
                self._windows[write.key] = StoredWindow(_UNKNOWN, copy.data)

    def drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._windows.pop(key, None)
