"""`Store`: who keeps state. One conditional commit a decision; the contract suite runs over every implementation.

A commit, in the order of its operations:
1. If windows come with it and the version of one has moved on: nothing changes, the newer one comes back.
2. `Repeat` always counts, unless it joins a flight (see below); tripped and denying, it denies its group.
   `Refuse` denies its group, `Noted` nothing. Everything below is looked at only while its group is not denied:
3. `Bucket` and `Spend` are checked, and too little left denies their group. `Breaker` is counted for good; open, it
   denies its group.
4. If the enforced group is not denied, everything checked is charged whose own group is not denied: all or none.
   In the same way every tracked `Repeat` begins a flight that was counted and did not trip.
5. The windows are written.
Keys of one commit are distinct. Time comes from the caller; it may step back, and then nothing refills or expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from breakloop.state.ops import BreakerKept, Committed, Correct, Op, Settle, Window, WindowWrite


class Store(Protocol):
    """Synchronous form, for stores that do no I/O."""

    def commit(self, ops: Sequence[Op], now: float, windows: Sequence[WindowWrite] = ()) -> Committed:
        """Carry out `ops` and write `windows`, all in one; see the module's contract."""
        ...

    def settle(self, ops: Sequence[Settle], now: float, *, failed: bool) -> int:
        """Say that requests have ended; return how many counts were taken back.

        A flight is open to tracked requests of its key for `FLIGHT_S`, until its leader is settled, the key is
        detected (cooldown), or `concurrent_free` have joined. Who joins is not counted and has the leader's count as
        its result; the next one counts and may lead the next flight.

        A failed one's count is taken back, once, if it is still in the window, no detection has used it up, and fewer
        than `retry_free` of its key were taken back within `window_s`. No cooldown is undone.
        """
        ...

    def correct(self, ops: Sequence[Correct], now: float) -> None:
        """Correct what was charged (SPEC L-3), each for itself and in any order; see `Correct`."""
        ...

    def read_window(self, key: str, now: float) -> Window:
        """Return the session window under `key`, with version 0 if there is none."""
        ...

    def breakers(self, prefix: str, now: float, most: int) -> list[BreakerKept]:
        """Return up to `most` breakers whose key begins with `prefix`: open ones first, by key; then, in any order,
        closed ones with a rate. May walk everything: for operators, not for requests."""
        ...

    def drop(self, keys: Sequence[str]) -> None:
        """Drop what is kept under these very keys."""
        ...

    def forget(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`; return how many."""
        ...
