"""What links requests of one conversation that carry no session id (SPEC C-7): chains of `previous_response_id`, and
traces that go on over several requests. Bounded, and kept in this process; where instances share a store, chains are
there, too. After a restart without one, a chain goes by the first id that is seen of it. Callers never share an entry,
whatever ids they send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.policy.recent import Recent

# An entry takes some 300 bytes, and up to twice as many are held: 10 MB.
_CHAINS_MAX: Final = 16_384
_TRACES_MAX: Final = 16_384
_SIZE_MAX: Final = 4 * 1024 * 1024  # of keys, should ids be long


class Chains:
    """Knows which session an answer belonged to, so that the request that continues it is of the same one."""

    __slots__ = ("_sessions", "told")

    def __init__(self, limit: int = _CHAINS_MAX) -> None:
        self._sessions: Recent[str, str] = Recent(limit, _SIZE_MAX)
        self.told: Callable[[str, str, str], None] | None = None  # hears of caller, answer and session

    def knows(self, caller: str, previous_id: str) -> bool:
        """Tell whether it is known which session that answer belonged to."""
        return self._sessions.get(f"{caller}\0{previous_id}") is not None

    def learn(self, caller: str, previous_id: str, session: str) -> None:
        """Note what another instance has seen."""
        self._sessions.put(f"{caller}\0{previous_id}", session)

    def root(self, caller: str, previous_id: str) -> str:
        """Return the session that the answer `previous_id` belonged to; for one that is not known, its own id."""
        return self._sessions.get(f"{caller}\0{previous_id}") or previous_id

    def remember(self, caller: str, response_id: str, session: str) -> None:
        """Note that the answer `response_id` belongs to `session`."""
        if response_id and session:
            self._sessions.put(f"{caller}\0{response_id}", session)
            if self.told is not None:
                self.told(caller, response_id, session)

    def __len__(self) -> int:
        """Return how many answers are known."""
        return len(self._sessions)


class Traces:
    """Tells traces that cover several requests from those that are made anew for each."""

    __slots__ = ("_seen",)

    def __init__(self, limit: int = _TRACES_MAX) -> None:
        self._seen: Recent[str, bool] = Recent(limit, _SIZE_MAX)

    def recurs(self, caller: str, trace_id: str) -> bool:
        """Say whether an earlier request of this caller had the same trace. Ask once a request."""
        key = f"{caller}\0{trace_id}"
        if self._seen.get(key):
            return True
        self._seen.put(key, True)
        return False

    def __len__(self) -> int:
        """Return how many traces are known."""
        return len(self._seen)
