"""`Store`: who keeps state. One conditional commit a decision; the contract suite runs over every implementation.

A commit, in the order of its operations:
1. If windows come with it and the version of one has moved on: nothing changes, all that moved on come back.
2. `Repeat` always counts, unless it joins a flight (see below); tripped and denying, it denies its group.
   `Refuse` denies its group, `Noted` nothing. Everything below is looked at only while its group is not denied:
3. `Bucket` and `Spend` are checked; too little left denies their group. `Breaker` is counted for good; open, it does.
4. If the enforced group is not denied, everything checked is charged whose own group is not denied: all or none.
   In the same way every tracked `Repeat` begins a flight that was counted and did not trip.
5. The windows are written.
Keys of one commit are distinct. Time comes from the caller, or is the store's own where many callers share it; it may
step back, and then nothing refills or expires.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from breakloop.errors import StateError
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


class RemoteStore(Protocol):
    """The same over a connection. Nothing here waits: each call returns at once, and `then` gets the result, or the
    `StateError` in its place, exactly once and on the event loop. Time is the store's own.

    What was sent may be carried out though its answer never comes: nothing is sent twice that charges or counts.
    """

    def commit(
        self, ops: Sequence[Op], windows: Sequence[WindowWrite], then: Callable[[Committed | StateError], None]
    ) -> None:
        """Carry out `ops` and write `windows`, all in one; `Committed.at` is the store's time."""
        ...

    def read_windows(self, keys: Sequence[str], then: Callable[[list[Window] | StateError], None]) -> None:
        """Read several windows in one round trip, in the order of their keys."""
        ...

    def settle(self, ops: Sequence[Settle], then: Callable[[int | StateError], None], *, failed: bool) -> None:
        """Say that requests have ended; `then` gets how many counts were taken back."""
        ...

    def correct(self, ops: Sequence[Correct], then: Callable[[StateError | None], None]) -> None:
        """Correct what was charged."""
        ...

    def drop(self, keys: Sequence[str], then: Callable[[StateError | None], None]) -> None:
        """Drop what is kept under these very keys."""
        ...

    def note(self, key: str, value: str, ttl_s: float) -> None:
        """Keep a text for others to find. Nobody waits for it, and it may be lost."""
        ...

    def recall(self, key: str, then: Callable[[str | StateError], None]) -> None:
        """Return what somebody noted, or ""."""
        ...

    def breakers(self, prefix: str, most: int, then: Callable[[list[BreakerKept] | StateError], None]) -> None:
        """Find breakers whose key begins with `prefix`, open ones first: for operators, not for requests."""
        ...

    def probe(self, then: Callable[[StateError | None], None]) -> None:
        """Find out whether the store answers and takes writes."""
        ...

    def forget(self, prefix: str, then: Callable[[int | StateError], None]) -> None:
        """Drop every key that begins with `prefix`: for operators, not for requests."""
        ...
