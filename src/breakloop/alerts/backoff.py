"""When something is tried again: one delivery after waits that grow, and a target that failed again and again only
after a rest (a breaker of its own). Pure: time and chance are handed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# After try 1, 2, ...: together 16 hours, so that a receiver that is down for a night misses nothing.
WAITS_S: Final = (1.0, 4.0, 16.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0)
TRIES_MAX: Final = len(WAITS_S) + 1
AGE_MAX_S: Final = 86_400.0

FAILURES: Final = 5
REST_S: Final = 60.0
REST_MAX_S: Final = 600.0


def wait_s(tries: int, chance: float) -> float:
    """Return how long to wait after so many tries: up to a tenth more than the table says, so that not all come back
    at the same moment."""
    return WAITS_S[min(tries, len(WAITS_S)) - 1] * (1.0 + 0.1 * chance)


def given_up(tries: int, made_at: float, next_at: float) -> bool:
    """Tell whether there is no next try."""
    return tries >= TRIES_MAX or next_at - made_at > AGE_MAX_S


@dataclass(slots=True)
class Breaker:
    """Of one target. Closed, open until `rests_until`, or half open: then one try decides."""

    failures: int = 0
    rest_s: float = 0.0  # of the last opening; 0: closed
    rests_until: float = 0.0

    @property
    def state(self) -> str:
        """`ok`, or `failing`: the last tries failed."""
        return "failing" if self.failures else "ok"

    def room(self, now: float, most: int) -> int:
        """Return how many tries may be under way."""
        if now < self.rests_until:
            return 0
        return 1 if self.rest_s else most

    def succeeded(self) -> bool:
        """Close; tell whether it was open."""
        was_open = self.rest_s > 0
        self.failures, self.rest_s, self.rests_until = 0, 0.0, 0.0
        return was_open

    def failed(self, now: float, retry_after_s: float = 0.0) -> None:
        """Count a failure; the fifth opens it for a minute, and each failed probe for twice as long as before."""
        self.failures += 1
        if self.rest_s and now >= self.rests_until:
            self.rest_s = min(self.rest_s * 2, REST_MAX_S)
            self.rests_until = now + self.rest_s
        elif not self.rest_s and self.failures >= FAILURES:
            self.rest_s = REST_S
            self.rests_until = now + self.rest_s
        if retry_after_s:
            self.rests_until = max(self.rests_until, now + retry_after_s)
