"""Whether a shared store can be used now (SPEC S-3): one failure is enough to go on without it, some good answers in a
row bring it back, and after a relapse it takes more of them, so that a store that flutters is not followed. Who
probes, and what happens without the store, is `remote`'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PROBE_S: Final = 0.1  # from one probe to the next
_FEW: Final = 2  # good probes in a row that bring it back
_MANY: Final = 8  # at the most: with the second that a new connection may take, a store is used 2 s after it is well
_CALM_S: Final = 30.0  # so long after its return a failure is no relapse


class Health:
    """Up or down. `told(up, why)` hears of each change, and of nothing else."""

    __slots__ = ("_good", "_needed", "_returned_at", "_told", "changes", "up")

    def __init__(self, told: Callable[[bool, str], None]) -> None:
        self._told = told
        self.up = True
        self.changes = 0
        self._good = 0
        self._needed = _FEW
        self._returned_at = float("-inf")

    def failed(self, why: str, now: float) -> None:
        """It did not answer, not in time, or with an error of its own."""
        self._good = 0
        if self.up:
            relapse = now - self._returned_at < _CALM_S
            self._needed = min(2 * self._needed, _MANY) if relapse else _FEW
            self._change(up=False, why=why)

    def answered(self, now: float) -> None:
        """A probe was answered as it should be."""
        if self.up:
            return
        self._good += 1
        if self._good >= self._needed:
            self._returned_at = now
            self._change(up=True, why=f"{self._good} probes in a row were answered")

    def _change(self, *, up: bool, why: str) -> None:
        self.up = up
        self.changes += 1
        self._told(up, why)
