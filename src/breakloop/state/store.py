"""`Store`: who keeps state. One conditional commit a decision; the contract suite runs over every implementation.

A commit, in the order of its operations:
1. If a window comes with it and its version has moved on: nothing changes, the newer window comes back.
2. `Repeat` always counts. Tripped and denying, it ends its group's evaluation from there on.
3. `Bucket` is checked, unless its group is already denied; too little in it denies its group.
4. If the enforced group is not denied, every checked bucket is charged whose own group is not denied: all or none.
5. The window is written.
Keys of one commit are distinct. Time comes from the caller; it may step back, and then nothing refills or expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from breakloop.state.ops import Committed, Op, Window, WindowWrite


class Store(Protocol):
    """Synchronous form, for stores that do no I/O."""

    def commit(self, ops: Sequence[Op], now: float, window: WindowWrite | None = None) -> Committed:
        """Carry out `ops` and write `window`, all in one; see the module's contract."""
        ...

    def read_window(self, key: str, now: float) -> Window:
        """Return the session window under `key`, with version 0 if there is none."""
        ...

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`; return how many."""
        ...
