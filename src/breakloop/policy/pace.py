"""How often a source that is not on this machine is looked at (SPEC B-3): steadily while it answers, less and less
often while it does not; never in step with other instances. Chance comes in through the door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_SPREAD: Final = 0.1  # so much earlier than it has to


@dataclass(frozen=True, slots=True)
class Pace:
    """Every `every_s` seconds at the latest; after failures twice as long each time, up to `most_s`."""

    every_s: float
    most_s: float
    chance: Callable[[], float]  # 0 to 1

    def wait_s(self, failures: int) -> float:
        """Return how long to wait, after so many failures in a row."""
        if failures == 0:
            return self.every_s * (1 - _SPREAD * self.chance())
        longest = min(self.every_s * 2.0 ** min(failures, 30), max(self.most_s, self.every_s))
        return longest * (1 - 0.5 * self.chance())
