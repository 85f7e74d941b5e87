"""When a process that died is started again: at once, unless it dies again and again; and when that is hopeless.
Starting is `supervisor`'s."""

from __future__ import annotations

from typing import Final

STEADY_S: Final = 10.0  # whoever lived so long was well
FIRST_DELAY_S: Final = 0.25
DELAY_MAX_S: Final = 30.0
HOPELESS: Final = 5  # starts in a row that came to nothing


class Restarts:
    """The starts and deaths of one process. The first death in a while costs no time, the next ones ever more."""

    __slots__ = ("_in_vain", "_quick", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._quick = 0  # deaths in a row, each soon after its start
        self._in_vain = 0  # of these: before it was ready

    @property
    def hopeless(self) -> bool:
        """Tell whether it does not even start."""
        return self._in_vain >= HOPELESS

    def started(self, now: float) -> None:
        """It was started."""
        self._since = now

    def ready(self) -> None:
        """It serves."""
        self._in_vain = 0

    def died(self, now: float, *, ready: bool) -> float:
        """It is gone, and was ready or never came so far; returns how long to wait before the next start."""
        if ready and now - self._since >= STEADY_S:
            self._quick = 0
        self._in_vain = 0 if ready else self._in_vain + 1
        self._quick += 1
        return 0.0 if self._quick == 1 else min(DELAY_MAX_S, FIRST_DELAY_S * 2.0 ** min(self._quick - 2, 20))
